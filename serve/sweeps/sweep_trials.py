"""The query `trials` of a sweep: the bundle's own trials, for every ablation.

A point's numbers equal those of `POST /v1/ablations/trials` with its defaults; its headline is the
score that the task is known by.
"""

from typing import Any

from serve.models import Host
from serve.queries.intervals import Measured, contrast, score_names
from serve.queries.trials import measure, own_trials, task_of
from serve.runtime.bundle import Bundle, Variant
from serve.runtime.trials import Trials
from serve.wire.queries import TrialsRequest

Json = Any
DEFAULTS = TrialsRequest.model_validate({})


class TrialsQuery:
    """How well a model of a task does. `open` comes first."""

    def __init__(self, host: Host, bundle: Bundle) -> None:
        self.bundle, self._host = bundle, host
        task = task_of(bundle)
        names = score_names(task)
        self._headline = task.headline if task.headline in names else names[-1]

    async def open(self) -> dict[str, Json]:
        """Run the plain model; what every point is compared with."""
        self._trials: Trials = await self._host.trials.run(own_trials, self.bundle)
        self._plain = await self._run(self.bundle.plain)
        page = await self._contrast(None, None, DEFAULTS.resamples)
        kept = ("num_trials", "num_steps", "counted", "intervals", "warnings")
        return {"headline": self._headline, **page["baseline"], **{k: page[k] for k in kept}}

    async def measure(self, variant: Variant, mass: float | None) -> dict[str, Json]:
        """What an ablation does to the scores."""
        ablated = await self._run(variant)
        page = await self._contrast(ablated, mass, DEFAULTS.resamples)
        kept = {key: page[key] for key in ("s_delta_t", "intervals", "warnings")}
        scores = {**page["ablated"], **page["delta"], **kept}
        return {**scores, "delta": page["delta"][f"delta_{self._headline}"]}

    async def delta(self, variant: Variant) -> float | None:
        """The headline of `measure` alone."""
        page = await self._contrast(await self._run(variant), None, 0)
        found: float | None = page["delta"][f"delta_{self._headline}"]
        return found

    async def _run(self, variant: Variant) -> Measured:
        return await measure(self._host, self.bundle, variant.session, self._trials)

    async def _contrast(
        self, ablated: Measured | None, mass: float | None, resamples: int
    ) -> dict[str, Json]:
        task, seed = task_of(self.bundle), DEFAULTS.seed
        arguments = (task, self._plain, ablated, mass, resamples, seed)
        return await self._host.trials.run(contrast, *arguments)
