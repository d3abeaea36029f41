"""Measurement of a sweep's points: the queries `score` and `trials`.

`score`: the plain model takes the text once, and its logits are kept, so a point costs one stream.
A point's numbers equal those of `serve.queries.score` to the last bit.

`trials`: the bundle's own trials. A point's numbers equal those of `POST /v1/ablations/trials` with
its defaults; its headline is the score that the task is known by.

Letters: N characters of the text, V of the vocabulary.
"""

import asyncio
import math
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serve.engine.follow import Following
from serve.engine.stream import Delivery, Stream
from serve.engine.wakeup import Wakeup
from serve.models import Models
from serve.queries.intervals import Measured, contrast, score_names
from serve.queries.prompts import report_unknown
from serve.queries.score import bits_per_character, kl_bits
from serve.queries.trials import measure, own_trials, task_of
from serve.runtime.bundle import AblatedModel, Bundle
from serve.runtime.session import Session
from serve.runtime.trials import Trials
from serve.wire.codec import to_json
from serve.wire.errors import RequestError, invalid
from serve.wire.queries import SweepRequest, TrialsRequest
from serve.wire.query_responses import Contrast, Scores

Array = NDArray[Any]
MAX_LOGITS_BYTES = 256 << 20  # of the plain model's logits; more are kept in a temporary file
COMPARED = 512  # characters that are compared at once, off the event loop


class Measurement(NamedTuple):
    """The numbers of a query under an ablation; `delta` is the change of the headline."""

    scores: dict[str, Any]
    delta: float | None


class ScoreQuery:
    """Bits per character of one text. `open` comes first."""

    def __init__(self, models: Models, bundle: Bundle, request: SweepRequest) -> None:
        """`RequestError` for a text that the model can't take."""
        assert request.text is not None
        self.bundle, self._models = bundle, models
        vocabulary = models.vocabularies[bundle.name]
        unknown = request.unknown or models.unknown
        self._forced, counts = vocabulary.encode_counted(request.text, "text", unknown)
        self._unknown = report_unknown(unknown, [counts])
        if not len(self._forced):
            raise invalid("text", "found no character of the model's vocabulary, expected some")
        self._bpc = math.nan
        self._logits: Array | None = None  # (N, V)

    async def open(self) -> dict[str, Any]:
        """Score the plain model; what every point is compared with."""
        logprobs = list[float]()
        async with aclosing(self._read(self.bundle.plain.session, True)) as pieces:
            async for arrived in pieces:
                for delivery in arrived:
                    self._keep(delivery, len(logprobs))
                    logprobs += delivery.logprobs
        self._bpc = bits_per_character(logprobs)
        told = {"unknown": to_json(self._unknown)} if self._unknown else {}
        return {"num_characters": len(logprobs), "bpc": self._bpc, **told}

    async def measure(self, variant: AblatedModel, mass: float | None) -> Measurement:
        """The score under an ablation, and its change."""
        del mass  # divides the headline only, which the caller does
        logprobs, divergences, waiting = list[float](), list[float](), list[Delivery]()
        async with aclosing(self._read(variant.session, True)) as pieces:
            async for arrived in pieces:
                for delivery in arrived:
                    logprobs += delivery.logprobs
                waiting += arrived
                if len(logprobs) - len(divergences) >= COMPARED:
                    divergences += await asyncio.to_thread(self._compare, waiting, len(divergences))
                    waiting = []
        divergences += await asyncio.to_thread(self._compare, waiting, len(divergences))
        bpc = bits_per_character(logprobs)
        delta = bpc - self._bpc
        mean_kl = math.fsum(divergences) / len(divergences)
        return Measurement({"bpc": bpc, "delta_bpc": delta, "mean_kl": mean_kl}, delta)

    async def delta(self, variant: AblatedModel) -> float:
        """The headline of `measure` alone."""
        logprobs = list[float]()
        async with aclosing(self._read(variant.session, False)) as pieces:
            async for arrived in pieces:
                for delivery in arrived:
                    logprobs += delivery.logprobs
        return bits_per_character(logprobs) - self._bpc

    def _keep(self, delivery: Delivery, position: int) -> None:
        assert delivery.logits is not None
        if self._logits is None:
            shape = (len(self._forced), delivery.logits.shape[1])
            is_large = 4 * shape[0] * shape[1] > MAX_LOGITS_BYTES
            self._logits = (
                np.memmap(tempfile.TemporaryFile(), np.float32, "w+", shape=shape)
                if is_large
                else np.empty(shape, np.float32)
            )
        self._logits[position : position + len(delivery.characters)] = delivery.logits

    def _compare(self, arrived: list[Delivery], position: int) -> list[float]:
        """KL in bits of consecutive characters, the first of them at a position."""
        found = list[float]()
        assert self._logits is not None
        for delivery in arrived:
            assert delivery.logits is not None
            plain = self._logits[position : position + len(delivery.characters)]
            found += kl_bits(plain, delivery.logits).tolist()
            position += len(delivery.characters)
        return found

    async def _read(self, session: Session, logits: bool) -> AsyncGenerator[list[Delivery], None]:
        wakeup = Wakeup()
        stream = Stream(
            self.bundle,
            session,
            self._forced,
            max_tokens=0,
            seed=0,
            deliver_forced=True,
            deliver_logits=logits,
            wake=wakeup.ring,
            background=True,  # behind those of clients who wait
        )
        with Following(self._models.engine, [stream], wakeup) as following:
            while not following.is_done:
                await following.wait()
                for place, arrived in following.collect():
                    following.raise_error(place)
                    if following.is_done and stream.finish_reason != "length":  # the engine drains
                        raise RequestError("unavailable", "the server is shutting down")
                    yield arrived


def changed(found: Contrast) -> Scores:
    """The scores under an ablation, and what it changed."""
    return {**(found.ablated or {}), **(found.delta or {})}


DEFAULTS = TrialsRequest.model_validate({})


class TrialsQuery:
    """Scores of a task model on its own trials. `open` comes first."""

    def __init__(self, models: Models, bundle: Bundle) -> None:
        self.bundle, self._models = bundle, models
        task = task_of(bundle)
        names = score_names(task)
        self._headline = task.headline if task.headline in names else names[-1]

    async def open(self) -> dict[str, Any]:
        """Run the plain model; what every point is compared with."""
        self._trials: Trials = await self._models.trials.run(own_trials, self.bundle)
        self._plain = await self._run(self.bundle.plain)
        found = await self._contrast(None, None, DEFAULTS.resamples)
        kept = ("num_trials", "num_steps", "counted", "intervals", "warnings")
        numbers = {key: to_json(getattr(found, key)) for key in kept}
        return {"headline": self._headline, **found.baseline, **numbers}

    async def measure(self, variant: AblatedModel, mass: float | None) -> Measurement:
        """The scores under an ablation, and their change."""
        found = await self._contrast(await self._run(variant), mass, DEFAULTS.resamples)
        kept = {key: to_json(getattr(found, key)) for key in ("s_delta_t", "intervals", "warnings")}
        return Measurement({**changed(found), **kept}, self._headline_of(found))

    async def delta(self, variant: AblatedModel) -> float | None:
        """The headline of `measure` alone."""
        return self._headline_of(await self._contrast(await self._run(variant), None, 0))

    def _headline_of(self, found: Contrast) -> float | None:
        return (found.delta or {})[f"delta_{self._headline}"]

    async def _run(self, variant: AblatedModel) -> Measured:
        return await measure(self._models, self.bundle, variant.session, self._trials)

    async def _contrast(
        self, ablated: Measured | None, mass: float | None, resamples: int
    ) -> Contrast:
        task, seed = task_of(self.bundle), DEFAULTS.seed
        arguments = (task, self._plain, ablated, mass, resamples, seed)
        return await self._models.trials.run(contrast, *arguments)
