"""Responses of queries about ablations, and of sweeps; the CSV's columns.

As in serve/wire/responses.py, each shape once. Times are seconds since 1970. `ablation` quotes
what was done: `name`, `hash`, `edits`, `mass`, and `removed` with an entry an edit. A point's own
numbers depend on the query:

    score    bpc, delta_bpc, mean_kl          the headline, `delta`, is delta_bpc
    trials   what POST /v1/ablations/trials answers of an ablation
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serve.wire.codec import JsonObject, left_out, rest, sometimes, to_json
from serve.wire.responses import UnknownCharacters

Scores = dict[str, float | None]  # null: not finite
Bounds = dict[str, tuple[float, float] | None]  # lower and upper end; null: undefined


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationSchema:
    """`GET /v1/ablations/schema`: the JSON Schema of an ablation."""

    title: str
    type: str
    properties: JsonObject
    more: JsonObject = rest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of one model on a text; `logprobs` where detail was asked for."""

    bpc: float
    logprobs: tuple[float, ...] = left_out(())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """`POST /v1/ablations/score`: the plain model's score, and the ablated one's beside it."""

    model: str
    num_characters: int
    baseline: Score
    ablated: Score | None
    delta_bpc: float | None  # ablated - baseline
    mean_kl: float | None  # KL(baseline || ablated), bits
    kl: tuple[float, ...] | None  # by character, where detail was asked for
    ablation: JsonObject | None
    unknown: UnknownCharacters | None = left_out(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probability:
    """A character that may come next."""

    character: str
    probability: float
    logprob: float  # natural logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The distribution of the next character: its most probable ones."""

    entropy_bits: float
    top: tuple[Probability, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Distribution):
    """The same under an ablation; `probabilities` are those of the baseline's top characters."""

    ablation: JsonObject
    kl_bits: float  # KL(baseline || ablated)
    total_variation: float
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`POST /v1/ablations/compare`."""

    model: str
    num_characters: int  # of the prompt
    baseline: Distribution
    ablations: tuple[Compared, ...]  # in the request's order
    unknown: UnknownCharacters | None = left_out(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Paired percentile bootstrap over trials: [lower, upper] by the names of the scores."""

    level: float
    resamples: int
    seed: int
    baseline: Bounds | None
    ablated: Bounds | None
    delta: Bounds | None
    s_delta_t: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Scores by name: loss; fvu of vectors; accuracy or replay_accuracy where the task has it.

    `delta`, and `per_mass`, which is that over the removed mass, have delta_NAME.
    """

    num_trials: int
    num_steps: int
    counted: float  # sum of the mask; pooled: trials
    baseline: Scores
    ablated: Scores | None
    delta: Scores | None  # ablated - baseline
    s_delta_t: float | None  # delta_fvu / mass
    per_mass: Scores | None
    intervals: Intervals | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialScores(Contrast):
    """`POST /v1/ablations/trials`: scores of a task model, and what an ablation changes.

    Scores by name: loss; fvu of vectors; accuracy or replay_accuracy where the task has it. `delta`
    and `per_mass`, which is that over the removed mass, have delta_NAME.
    """

    model: str
    mass: float | None  # removed, as a share of what was edited
    ablation: JsonObject | None


NUMBERS = {  # by query: the numbers that stand in the CSV between mass and delta
    "score": ("bpc", "delta_bpc", "mean_kl"),
    "trials": (
        *("loss", "fvu", "delta_fvu", "s_delta_t"),
        *("accuracy", "delta_accuracy", "replay_accuracy", "delta_replay_accuracy"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One query for many ablations, and how far it is."""

    id: str
    state: str  # queued, running, done, cancelled or failed
    model: str
    query: str  # "score" or "trials"
    num_points: int
    num_done: int  # of them the failed ones
    num_failed: int
    created: float
    started: float | None
    ended: float | None
    error: JsonObject | None  # why it failed: code, message, field
    baseline: JsonObject | None  # the same query of the plain model
    deleted: bool | None = left_out(None)  # DELETE's: forgotten, else cancelled and its points stay


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps:
    """`GET /v1/sweeps`, the newest first."""

    sweeps: tuple[Sweep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A random ablation of the same mass."""

    seed: int
    mass: float | None
    delta: float | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One point, with the numbers of its query; where `error` isn't null it has the first four."""

    index: int
    name: str
    seconds: float
    error: JsonObject | None  # code, message, field
    mass: float | None = sometimes(None)  # removed, as a share of what was edited
    scores: JsonObject = rest()  # the query's numbers
    delta: float | None = sometimes(None)  # of the headline, ablated - baseline
    per_mass: float | None = sometimes(None)  # delta / mass
    ablation: JsonObject | None = sometimes(None)
    controls: tuple[Control, ...] = sometimes(())
    controls_mean: float | None = sometimes(
        None
    )  # of their deltas; these two where there are controls
    controls_deviation: float | None = sometimes(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoints:
    """`GET /v1/sweeps/{id}/points`: in order; none is left out while the sweep goes on."""

    points: tuple[SweepPoint, ...]
    next: int  # ask for more from here


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEvent:
    """An event of a sweep that is watched: a point, and at the end the sweep."""

    point: SweepPoint | None = left_out(None)
    sweep: Sweep | None = left_out(None)


FAILED = ("index", "name", "error", "seconds")
CONTROLS = ("controls", "controls_mean", "controls_deviation")


def point_json(point: SweepPoint) -> JsonObject:
    """A point as the wire and files have it."""
    found: JsonObject = to_json(point)
    if point.error is not None:
        return {key: found[key] for key in FAILED}
    return {key: found[key] for key in found if point.controls or key not in CONTROLS}


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
