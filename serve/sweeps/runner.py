"""One sweep at work: its points, a few side by side, each saved before the next step.

    open the query (the plain model) -> for each point: ablated model, measure, controls -> save

An ablation that fails makes an error point, and the sweep goes on. What is wrong with the whole
sweep (`SweepFailed`) ends it. Where the server is merely busy, a point waits and tries again.

A structured ablation says something only beside unstructured ones that remove as much: controls of
a point take the same mass away in a random direction of the same kind.
"""

import asyncio
import logging
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from serve.ablation.ablation import canonical, controls
from serve.ablation.apply import divisor_of
from serve.ablation.parse import parse_ablation
from serve.manifest.page import Manifest
from serve.models import Models
from serve.queries.trials import task_bundle
from serve.runtime.bundle import AblatedModel, Bundle
from serve.sweeps.measure import Measurement, ScoreQuery, TrialsQuery
from serve.sweeps.store import Job
from serve.wire.codec import Json, JsonObject
from serve.wire.errors import RequestError, invalid, server_failed
from serve.wire.limits import MAX_EDIT_SEED
from serve.wire.queries import SweepRequest
from serve.wire.query_responses import Control, SweepPoint
from serve.wire.requests import parse_request

log = logging.getLogger("torsor")

Result = TypeVar("Result")
SIDE_BY_SIDE = 4  # points that are measured at once
RETRY_S = 0.5
BUSY = ("queue_full", "unavailable")  # codes of what may go well later

Save = Callable[[SweepPoint], Awaitable[None]]


class SweepFailed(Exception):
    """A sweep that can't go on; `error` says why."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error


class Query(Protocol):
    """The query of a sweep, asked of every ablation."""

    bundle: Bundle

    async def open(self) -> JsonObject:
        """Ask it of the plain model."""

    async def measure(self, variant: AblatedModel, mass: float | None) -> Measurement:
        """Ask it of an ablated one."""

    async def delta(self, variant: AblatedModel) -> float | None:
        """The change of the headline alone."""


def make_query(models: Models, bundle: Bundle, request: SweepRequest) -> Query:
    """The query of a sweep; `RequestError` if it doesn't fit the model."""
    if request.query == "score":
        return ScoreQuery(models, models.text_bundle(bundle.name), request)
    return TrialsQuery(models, task_bundle(models, bundle.name))


def bundle_of(models: Models, model: str, identity: str) -> Bundle:
    """The served bundle of a sweep; `SweepFailed` if it is gone or has other weights."""
    bundle = models.bundles.get(model)
    if bundle is None:
        found = f"model: {model!r} is not served any more, expected it until the sweep's end"
        raise SweepFailed(RequestError("not_found", f"{found}; start the sweep again", "model"))
    if bundle.identity != identity:
        raise SweepFailed(
            invalid(
                "model",
                f"{model!r} has other weights or another graph than when the sweep began, expected "
                "the same ones for all points; start the sweep again",
            )
        )
    return bundle


class SweepJob:
    """Runs the points of a job that aren't done; `save` takes each as it is."""

    def __init__(self, models: Models, job: Job, save: Save) -> None:
        self._models, self._job, self._save = models, job, save
        self._request = parse_request(SweepRequest, job.request)

    async def open(self) -> JsonObject:
        """Measure the plain model; what all points are compared with."""
        while True:
            try:
                self._query = make_query(self._models, self._bundle(), self._request)
                baseline: JsonObject = finite(await self._query.open())
                return baseline
            except RequestError as error:
                if error.code not in BUSY:
                    self._bundle()  # says better what is wrong if that is gone
                    raise SweepFailed(error) from None
            await asyncio.sleep(RETRY_S)

    async def run(self) -> None:
        """Measure the points."""
        points = iter(self._job.todo)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(SIDE_BY_SIDE):
                    group.create_task(self._work(points))
        except* SweepFailed as failed:
            raise failed.exceptions[0] from None

    async def _work(self, points: Iterator[tuple[int, JsonObject]]) -> None:
        for position, ablation in points:
            started = time.monotonic()
            name = str(ablation.get("name") or f"point {position}")
            point = SweepPoint(
                index=position, name=name, **await self._point(ablation), seconds=0.0
            )
            await self._save(replace(point, seconds=round(time.monotonic() - started, 3)))

    async def _point(self, ablation: JsonObject) -> JsonObject:
        """The point but for what it is called and how long it took."""
        try:
            found = await self._patiently(lambda: self._measure(ablation))
        except SweepFailed:
            raise
        except Exception as error:
            return {"error": error_json(error)}
        controls = tuple([await self._control(ablation, seed) for seed in self._seeds])
        return {**found, **summary_of(controls), "error": None}

    @property
    def _seeds(self) -> list[int]:
        return seeds_of(self._request.seed, self._request.controls)

    async def _measure(self, ablation: JsonObject) -> JsonObject:
        variant = await self._models.variant(self._query.bundle, ablation)
        assert variant.report is not None
        divisor = divisor_of(variant.report)
        scores, delta = await self._query.measure(variant, divisor)
        per_mass = delta / divisor if divisor and delta is not None else None
        mass = variant.report["mass"]
        numbers = {"mass": mass, "scores": scores, "delta": delta, "per_mass": per_mass}
        return {**finite(numbers), "ablation": variant.report}

    async def _control(self, ablation: JsonObject, seed: int) -> Control:
        async def measured() -> Control:
            bundle = self._query.bundle
            control = control_of(ablation, seed, bundle.manifest)
            variant = await self._models.variant(bundle, control)
            assert variant.report is not None
            numbers = {"mass": variant.report["mass"], "delta": await self._query.delta(variant)}
            return Control(seed=seed, **finite(numbers), error=None)

        try:
            return await self._patiently(measured)
        except SweepFailed:
            raise
        except Exception as error:
            why = error_json(error)["message"]
            return Control(seed=seed, mass=None, delta=None, error=why)

    async def _patiently(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `work`, tried again for as long as the server is only busy."""
        while True:
            self._query.bundle = self._bundle()
            try:
                return await work()
            except RequestError as error:
                is_replaced = error.code == "not_found"  # the bundle, by one with its weights
                if error.code not in BUSY and not is_replaced:
                    raise
            await asyncio.sleep(RETRY_S)

    def _bundle(self) -> Bundle:
        return bundle_of(self._models, self._job.model, self._job.identity)


def finite(value: Json) -> Json:
    """JSON with null for numbers that aren't finite, which it can't hold."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def error_json(error: Exception) -> JsonObject:
    """An error as sweeps and points show it; a mistake of ours is logged, and says no more."""
    if isinstance(error, SweepFailed):
        error = error.error
    if not isinstance(error, RequestError):
        log.error("a sweep failed", exc_info=error)
        error = server_failed()
    return {"code": error.code, "message": error.message, "field": error.field}


def control_of(ablation: Mapping[str, Json], seed: int, manifest: Manifest) -> JsonObject:
    """An ablation with a random edit in the place of every edit that removes something.

    `RequestError` where none does: it would be its own control.
    """
    parsed = parse_ablation(ablation, manifest)
    if all(edit.op in ("random", "symmetry") for edit in parsed.edits):
        expected = "some edit that is neither random nor a symmetry"
        raise invalid("controls", f"found none of this ablation, expected {expected}")
    return canonical(controls(parsed, seed))


def seeds_of(first: int, count: int) -> list[int]:
    """The seeds of a point's controls; past the largest one they begin again at 0."""
    return [(first + i) % (MAX_EDIT_SEED + 1) for i in range(count)]


def summary_of(controls: tuple[Control, ...]) -> JsonObject:
    """The controls of a point, with the mean and the standard deviation of their deltas."""
    deltas = [control.delta for control in controls if control.delta is not None]
    return {
        "controls": controls,
        "controls_mean": finite(statistics.fmean(deltas)) if deltas else None,
        "controls_deviation": finite(statistics.stdev(deltas)) if len(deltas) > 1 else None,
    }
