"""Responses of the queries about ablations and of sweeps: their schemas, and the CSV's columns.

Responses may come to have more keys. Times are seconds since 1970. A point's own numbers depend on
the query:

    score    bpc, delta_bpc, mean_kl          the headline, `delta`, is delta_bpc
    trials   what POST /v1/ablations/trials answers of an ablation
"""

import csv
import io
from collections.abc import Mapping
from typing import Any

from serve.wire.responses import Page

Json = dict[str, Any]
Scores = dict[str, float | None]  # null: not finite
Bounds = dict[str, list[float] | None]  # lower and upper end; null: undefined


class SchemaPage(Page):
    """`GET /v1/ablations/schema`: the JSON Schema of an ablation."""

    title: str
    type: str
    properties: Json


class BranchScorePage(Page):
    """The score of one branch; `logprobs` where detail was asked for."""

    bpc: float
    logprobs: list[float] = []


class ScorePage(Page):
    """`POST /v1/ablations/score`."""

    model: str
    num_characters: int
    baseline: BranchScorePage
    ablated: BranchScorePage | None
    delta_bpc: float | None
    mean_kl: float | None
    kl: list[float] | None
    ablation: Json | None


class ProbabilityPage(Page):
    """A character that may come next."""

    character: str
    probability: float
    logprob: float  # natural logarithm


class DistributionPage(Page):
    """What may come next: the most probable characters."""

    entropy_bits: float
    top: list[ProbabilityPage]


class ComparedPage(DistributionPage):
    """What may come next under an ablation; `probabilities`: of the baseline's top characters."""

    ablation: Json
    kl_bits: float  # KL(baseline || ablated)
    total_variation: float
    probabilities: list[float]


class ComparePage(Page):
    """`POST /v1/ablations/compare`."""

    model: str
    num_characters: int  # of the prompt
    baseline: DistributionPage
    ablations: list[ComparedPage]  # in the request's order


class IntervalsPage(Page):
    """Paired percentile bootstrap over trials: [lower, upper] by the names of the scores."""

    level: float
    resamples: int
    seed: int
    baseline: Bounds
    ablated: Bounds | None
    delta: Bounds | None
    s_delta_t: list[float] | None


class TrialsPage(Page):
    """`POST /v1/ablations/trials`.

    Scores by name: loss; fvu of vectors; accuracy or replay_accuracy where the task has it. `delta`
    and `per_mass`, which is that over the removed mass, have delta_NAME.
    """

    model: str
    num_trials: int
    num_steps: int
    counted: float  # sum of the mask; pooled: trials
    baseline: Scores
    ablated: Scores | None
    delta: Scores | None
    mass: float | None
    s_delta_t: float | None  # delta_fvu / mass
    per_mass: Scores | None
    intervals: IntervalsPage | None
    warnings: list[str]
    ablation: Json | None


NUMBERS = {  # by query: the numbers that stand in the CSV between mass and delta
    "score": ("bpc", "delta_bpc", "mean_kl"),
    "trials": (
        *("loss", "fvu", "delta_fvu", "s_delta_t"),
        *("accuracy", "delta_accuracy", "replay_accuracy", "delta_replay_accuracy"),
    ),
}


class SweepPage(Page):
    """One sweep."""

    id: str
    state: str  # queued, running, done, cancelled or failed
    model: str
    query: str
    num_points: int
    num_done: int  # of them the failed ones
    num_failed: int
    created: float
    started: float | None
    ended: float | None
    error: Json | None  # why it failed: code and message
    baseline: Json | None  # the same query of the plain model


class SweepsPage(Page):
    """`GET /v1/sweeps`, the newest first."""

    sweeps: list[SweepPage]


class CancelledSweepPage(SweepPage):
    """`DELETE /v1/sweeps/{id}`."""

    deleted: bool  # it had ended and is forgotten; else it is cancelled now, and its points stay


class SweepPointPage(Page):
    """One point; beside these the numbers of the query. Only `error` where that isn't null."""

    index: int
    name: str
    seconds: float
    error: Json | None  # code, message, field
    mass: float | None = None  # removed, as a share of what was edited
    delta: float | None = None  # of the headline, ablated - baseline
    per_mass: float | None = None  # delta / mass
    ablation: Json | None = None
    controls: list[Json] = []  # seed, mass, delta, error
    controls_mean: float | None = None  # of their deltas
    controls_deviation: float | None = None


class SweepPointsPage(Page):
    """`GET /v1/sweeps/{id}/points`: in order; none is left out while the sweep goes on."""

    points: list[SweepPointPage]
    next: int  # ask for more from here


def csv_columns(query: str) -> tuple[str, ...]:
    """The first line of a sweep's CSV."""
    ends = ("delta", "per_mass", "controls_mean", "controls_deviation", "seconds", "error")
    return ("index", "name", "hash", "mass", *NUMBERS[query], *ends)


def csv_line(query: str, point: Mapping[str, Any]) -> str:
    """A point as a line of CSV with its line break; what it lacks is empty."""
    extra = {
        "hash": (point.get("ablation") or {}).get("hash"),
        "error": (point["error"] or {}).get("message"),
    }
    cells = {**point, **extra}
    return csv_text([cells.get(name) for name in csv_columns(query)])


def csv_text(cells: list[Any]) -> str:
    """One line of CSV with its line break."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
