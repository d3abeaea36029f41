"""What sweeps look like over HTTP: the schemas of /docs.json, and the columns of their CSV.

Times are seconds since 1970. A point's own numbers depend on the query:

    score    bpc, delta_bpc, mean_kl          the headline, `delta`, is delta_bpc
    trials   what POST /v1/ablations/trials answers of an ablation
"""

import csv
import io
from collections.abc import Mapping
from typing import Any

from serve.wire.page import Page

Json = dict[str, Any]

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
