"""Everything that answers requests in one process: bundles, vocabularies, the engine, a worker.

HTTP and gRPC both stand on this, on `serve.writing` and on `serve.scoring`.
"""

import dataclasses
from typing import Any

from serve.ablation import AblationError, parse_ablation, structure
from serve.bounded import BoundedWorker
from serve.engine import Engine, Limits
from serve.runtime import Bundle, Variant
from serve.vocabulary import Vocabulary
from serve.wire.errors import RequestError, invalid
from serve.wire.requests import MAX_TOKENS

MAX_QUEUED_ABLATIONS = 32
MAX_QUEUED_INFERENCES = 16


class Host:
    """The served models. `bundles` in the order of the command line; the first is the default."""

    def __init__(self, bundles: dict[str, Bundle], limits: Limits | None = None) -> None:
        self.bundles = bundles
        texts = {name: b for name, b in bundles.items() if b.manifest.task is None}
        self.engine = Engine(texts.values(), limits)
        self.vocabularies = {
            n: Vocabulary(b.manifest.vocabulary, b.manifest.symbols) for n, b in texts.items()
        }
        # Decompositions and sessions are made here, off the event loop and off the engine.
        self._worker = BoundedWorker("ablations are being prepared", MAX_QUEUED_ABLATIONS)
        # Single runs for clients that keep the state themselves: one at a time beside the engine.
        self.inference = BoundedWorker("inferences are waiting", MAX_QUEUED_INFERENCES)
        self._structures: dict[str, list[dict[str, Any]]] = {}

    def start(self) -> None:
        """Start the engine."""
        self.engine.start()

    def close(self) -> None:
        """Stop the engine and the workers."""
        self.engine.stop()
        self._worker.close()
        self.inference.close()

    def bundle(self, model: str | None) -> Bundle:
        """The bundle of a model's id, the first one for None; `RequestError` if there is none."""
        if model is None:
            return next(iter(self.bundles.values()))
        if model not in self.bundles:
            raise RequestError(
                "not_found",
                f"model: found {model!r:.80}, expected one of {', '.join(self.bundles)}",
                "model",
            )
        return self.bundles[model]

    def text_bundle(self, model: str | None) -> Bundle:
        """The bundle of a model of text, the first one for None; `RequestError` for any other."""
        if model is None and self.vocabularies:
            model = next(iter(self.vocabularies))
        bundle = self.bundle(model)
        if (task := bundle.manifest.task) is not None:
            texts = ", ".join(self.vocabularies) or "none of them is served here"
            raise invalid(
                "model",
                f"found {bundle.name!r}, a model of the task {task.name!r}, expected a model of "
                f"text: {texts}; GET /v1/models says what each model is",
            )
        return bundle

    async def variant(self, bundle: Bundle, ablation: dict[str, Any] | None) -> Variant:
        """The model under an ablation; `RequestError` names the edit that doesn't fit."""
        if ablation is None:
            return bundle.plain
        try:
            parsed = parse_ablation(ablation, bundle.manifest)
            variant: Variant = await self._worker.run(bundle.variant, parsed)
        except AblationError as error:
            raise RequestError("invalid_request", str(error), error.field) from None
        return variant

    async def structure(self, bundle: Bundle) -> list[dict[str, Any]]:
        """What can be ablated, with spectra and masses; computed once a bundle."""
        if bundle.name not in self._structures:
            found = await self._worker.run(structure, bundle.manifest, bundle.weights)
            self._structures[bundle.name] = found
        return self._structures[bundle.name]

    def describe(self, bundle: Bundle) -> dict[str, Any]:
        """A model as `/v1/models` shows it."""
        manifest = bundle.manifest
        return {
            "id": manifest.name,
            "object": "model",
            "created": 0,
            "owned_by": "torsor",
            "root": manifest.name,
            "max_model_len": MAX_TOKENS,
            "family": manifest.family,
            "config": manifest.config,
            "num_parameters": manifest.num_parameters,
            "symbols": manifest.symbols,
            "vocabulary_size": len(manifest.vocabulary),
            "task": None if manifest.task is None else dataclasses.asdict(manifest.task),
            "device": bundle.device.kind,
            "provider": bundle.plain.session.provider,
            "kernels": bundle.plain.session.kernels,
            "targets": [target.name for target in manifest.targets],
            "training": manifest.training,
        }

    def readiness(self) -> dict[str, Any]:
        """What `/readyz` shows: whether new streams are taken, and what really runs them."""
        return {
            "ready": self.engine.accepting and self.engine.alive,
            "models": [
                {k: v for k, v in self.describe(bundle).items() if k in READY_KEYS}
                for bundle in self.bundles.values()
            ],
        }


READY_KEYS = ("id", "device", "provider", "kernels")
