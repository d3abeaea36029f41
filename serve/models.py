"""Everything that answers requests in one process: bundles, vocabularies, the engine, a worker.

HTTP and gRPC both stand on this, on `serve.queries.generate` and on `serve.queries.score`.
"""

import asyncio
import dataclasses
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from serve import metrics
from serve.ablation.ablation import Ablation, AblationError
from serve.ablation.apply import decompose, structure
from serve.ablation.parse import parse_ablation
from serve.engine.engine import Engine
from serve.engine.limits import EngineLimits
from serve.lru_cache import LruCache
from serve.manifest.values import BundleError
from serve.native.connections import max_connections
from serve.offload import BoundedExecutor
from serve.runtime.bundle import AblatedModel, Bundle, CacheKey
from serve.runtime.device import Device, DeviceError
from serve.runtime.vocabulary import Vocabulary
from serve.wire.errors import RequestError, invalid
from serve.wire.limits import (
    MAX_QUEUED_ABLATIONS,
    MAX_QUEUED_INFERENCES,
    MAX_QUEUED_TRIALS,
    MAX_TOKENS,
    all_limits,
)
from serve.wire.preview import shown
from serve.wire.requests import Unknown
from serve.wire.responses import BrokenModel, Model, Readiness, RunningModel, Structure

MAX_WARM_SIZE = 512  # rows of a matrix that is decomposed before anybody asks


class Models:
    """The served models. `bundles` in the order of the command line; the first is the default."""

    def __init__(
        self,
        bundles: dict[str, Bundle],
        limits: EngineLimits | None = None,
        state_key: bytes | None = None,  # that saved states are signed with; None: of this process
        unknown: Unknown = "error",  # of characters, where a request is silent
        broken: Mapping[str, str] | None = None,  # why models couldn't be loaded, by their folders
        bundles_root: str = "",  # that folders to load are relative to; empty: where we started
    ) -> None:
        self._bundles_root = bundles_root
        self.unknown, self._broken = unknown, dict(broken or {})
        self.bundles, self.state_key = dict[str, Bundle](), state_key or secrets.token_bytes(32)
        self._device = next((b.device for b in bundles.values()), Device("cpu", 1))
        texts = [b for b in bundles.values() if b.manifest.task is None]
        self.engine = Engine(texts, limits)
        self.sessions = LruCache[CacheKey, AblatedModel](self.engine.limits.ablation_cache_bytes)
        self.vocabularies: dict[str, Vocabulary] = {}
        # Decompositions and sessions are made here, off the event loop and off the engine.
        self._worker = BoundedExecutor(
            "ablations are being prepared", MAX_QUEUED_ABLATIONS, "max_queued_ablations"
        )
        # Single runs for clients that keep the state themselves: one at a time beside the engine.
        self.inference = BoundedExecutor(
            "inferences are waiting", MAX_QUEUED_INFERENCES, "max_queued_inferences"
        )
        # Trials of tasks, in many runs: one query at a time beside the engine.
        self.trials = BoundedExecutor("trials are waiting", MAX_QUEUED_TRIALS, "max_queued_trials")
        self.baselines: WeakKeyDictionary[Bundle, Any] = WeakKeyDictionary()  # of their own trials
        self._structures: WeakKeyDictionary[Bundle, Structure] = WeakKeyDictionary()
        self._warming = set[asyncio.Task[None]]()
        for bundle in bundles.values():
            self._serve(bundle)

    async def load(self, folder: Path) -> Bundle:
        """Serve one more bundle, or another one under the name of one that is served.

        Streams of a bundle that is replaced end as they began; new ones get the new bundle. Raises
        `RequestError` for a folder that holds no bundle that works here; nothing changes then.
        """
        place = self._place(folder)
        try:
            bundle = await self._worker.run(Bundle, place, self._device)
        except (BundleError, DeviceError, OSError) as error:
            raise invalid("folder", f"{error}; {self._whose(folder)}") from None
        before = self.bundles.get(bundle.name)
        if bundle.manifest.task is None:
            self.engine.add(bundle)
        self._serve(bundle)
        if before is not None:
            self._forget_sessions(before)
            self.engine.retire(before)
        self.warm(bundle)
        return bundle

    def _place(self, folder: Path) -> Path:
        """The folder that a request names; `RequestError` where it leaves a root that is set."""
        root = self._bundles_root or os.getcwd()
        place = os.path.normpath(os.path.join(root, folder))
        if self._bundles_root and not folder.is_absolute():
            if not Path(place).is_relative_to(os.path.normpath(root)):
                raise invalid("folder", f"found {str(folder)!r:.200}, expected one below {root}")
        return Path(place)

    def _whose(self, folder: Path) -> str:
        """Whose path it is, and what it is relative to."""
        if folder.is_absolute():
            return "the path is one of the server's machine"
        if self._bundles_root:
            return f"on the server, {folder} is relative to its --bundles-root {self._bundles_root}"
        return f"on the server, {folder} is relative to {os.getcwd()}; --bundles-root sets another"

    async def reload(self, model: str) -> Bundle:
        """Read a served model's folder again."""
        return await self.load(self.bundle(model).folder)

    def unload(self, model: str) -> None:
        """Serve a model no more; its streams end as they began."""
        bundle = self.bundles.pop(self.bundle(model).name)
        self.vocabularies.pop(bundle.name, None)
        self._forget_sessions(bundle)
        self.engine.retire(bundle)

    def _serve(self, bundle: Bundle) -> None:
        name, manifest = bundle.name, bundle.manifest
        self._broken.pop(bundle.folder.name, None)  # it has been mended, and loaded
        self.bundles[name], bundle.sessions = bundle, self.sessions
        if manifest.task is not None:
            self.vocabularies.pop(name, None)  # of a model of text that it replaces
        else:
            self.vocabularies[name] = Vocabulary(manifest.vocabulary, manifest.symbols)

    def start(self) -> None:
        """Start the engine."""
        self.engine.start()

    def close(self) -> None:
        """Stop the engine and the workers."""
        for task in self._warming:
            task.cancel()
        self.engine.stop()
        self._worker.close()
        self.inference.close()
        self.trials.close()

    def bundle(self, model: str | None) -> Bundle:
        """The bundle of a model's id, the first one for None; `RequestError` if there is none."""
        if model is None and self.bundles:
            return next(iter(self.bundles.values()))
        if model in self._broken and model not in self.bundles:
            told = f"found {shown(model, 80)}, which could not be loaded; GET /readyz says why"
            raise RequestError("unavailable", f"model: {told}", "model")
        if model is None or model not in self.bundles:
            served = f"one of {', '.join(self.bundles)}" if self.bundles else "some: none is served"
            sentence = f"model: found {shown(model, 80)}, expected {served}"
            raise RequestError("not_found", sentence, "model")
        return self.bundles[model]

    def text_bundle(self, model: str | None) -> Bundle:
        """The bundle of a model of text, the first one for None; `RequestError` for any other."""
        if model is None:
            model = next((name for name in self.bundles if name in self.vocabularies), None)
        bundle = self.bundle(model)
        if (task := bundle.manifest.task) is not None:
            texts = ", ".join(self.vocabularies) or "none of them is served here"
            raise invalid(
                "model",
                f"found {bundle.name!r}, a model of the task {task.name!r}, expected a model of "
                f"text: {texts}; GET /v1/models says what each model is",
            )
        return bundle

    async def variant(self, bundle: Bundle, ablation: dict[str, Any] | None) -> AblatedModel:
        """The model under an ablation; `RequestError` names the edit that doesn't fit."""
        if ablation is None:
            return bundle.plain
        try:
            parsed = parse_ablation(ablation, bundle.manifest)
            if (known := bundle.known(parsed)) is not None:
                return known
            made = await self._worker.run(self._make_variant, bundle, parsed)
        except AblationError as error:
            raise RequestError("invalid_request", str(error), error.field) from None
        return made

    def warm(self, *bundles: Bundle) -> asyncio.Task[None]:
        """Decompose what Schur ablations will ask for, between other work of the same worker."""
        task = asyncio.get_running_loop().create_task(self._decompose(bundles))
        self._warming.add(task)  # a task that nobody holds may be collected
        task.add_done_callback(self._warming.discard)
        return task

    async def _decompose(self, bundles: Sequence[Bundle]) -> None:
        for bundle in bundles:
            for target in bundle.manifest.targets:
                if "schur" in target.ops and target.shape[0] <= MAX_WARM_SIZE:
                    with suppress(AblationError, RequestError):  # who asks for it will be told
                        await self._worker.run(decompose, bundle.weights, target)

    async def structure(self, bundle: Bundle) -> Structure:
        """What can be ablated, with spectra and masses; computed once a bundle."""
        if bundle not in self._structures:
            found = await self._worker.run(structure, bundle.manifest, bundle.weights)
            self._structures[bundle] = found
        return self._structures[bundle]

    def describe(self, bundle: Bundle) -> Model:
        """A model as `/v1/models` shows it."""
        manifest = bundle.manifest
        return Model(
            **_running(bundle),
            root=manifest.name,
            max_model_len=MAX_TOKENS,
            family=manifest.family,
            config=manifest.config,
            num_parameters=manifest.num_parameters,
            symbols=manifest.symbols,
            vocabulary_size=len(manifest.vocabulary),
            task=None if manifest.task is None else dataclasses.asdict(manifest.task),
            targets=tuple(target.name for target in manifest.targets),
            training=manifest.training,
        )

    def limits(self) -> dict[str, float]:
        """All limits, by the names that errors say."""
        own = {**dataclasses.asdict(self.engine.limits), "max_connections": max_connections()}
        return all_limits(own)

    def readiness(self) -> Readiness:
        """What `/readyz` shows: whether new streams are taken, and what really runs them."""
        models = tuple(map(self._running_model, self.bundles.values()))
        broken = tuple(BrokenModel(id=name, reason=why) for name, why in self._broken.items())
        serves = any(model.ready for model in models) if models else not broken
        return Readiness(ready=self._takes_requests and serves, models=models, broken=broken)

    def is_ready(self, bundle: Bundle) -> bool:
        """Whether requests to a model are taken."""
        return self._takes_requests and self.engine.health.problem(bundle) is None

    @property
    def _takes_requests(self) -> bool:
        return self.engine.accepting and self.engine.alive

    def _running_model(self, bundle: Bundle) -> RunningModel:
        return RunningModel(
            **_running(bundle),
            threads=bundle.device.num_threads,
            ready=self.is_ready(bundle),
            reason=self.engine.health.problem(bundle),
        )

    def _make_variant(self, bundle: Bundle, ablation: Ablation) -> AblatedModel:
        made = bundle.num_made
        variant = bundle.variant(ablation)
        self._count_sessions(bundle.num_made - made)
        return variant

    def _forget_sessions(self, bundle: Bundle) -> None:
        bundle.forget()
        self._count_sessions(0)

    def _count_sessions(self, num_made: int) -> None:
        metrics.observe_sessions(len(self.sessions), self.sessions.num_bytes, num_made)


def _running(bundle: Bundle) -> dict[str, Any]:
    session = bundle.plain.session
    return {
        "id": bundle.name,
        "device": bundle.device.kind,
        "provider": session.provider,
        "kernels": session.kernels,
    }
