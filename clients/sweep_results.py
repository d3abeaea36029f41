"""Results of sweeps, as plain frozen values; HTTP and gRPC give equal ones.

Times are seconds since 1970. `scores` holds the numbers of the query: of `score` bpc, delta_bpc and
mean_kl; of `trials` those that `trials` answers of an ablation. `delta` is that of the headline.
"""

from dataclasses import dataclass
from typing import Any

from clients.answers import plain
from clients.frames import Row, frame
from clients.results import Json

ENDED = ("done", "cancelled", "failed")


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
    error: dict[str, Json] | None  # code, message and field, of a failed one
    baseline: dict[str, Json] | None  # the query's numbers of the plain model
    deleted: bool = False  # `cancel` found it ended, and the server has forgotten it

    @property
    def headline(self) -> str:
        """The score that `delta` is the change of: bpc, or what the task is known by."""
        return (
            "bpc" if self.query == "score" else str((self.baseline or {}).get("headline", "score"))
        )

    @property
    def is_over(self) -> bool:
        """Whether no more points come."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A random ablation of the same mass."""

    seed: int
    mass: float | None
    delta: float | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """What one ablation does; where `error` isn't None, only that is known."""

    index: int
    name: str
    seconds: float
    error: dict[str, Json] | None = None  # code, message and field
    mass: float | None = None  # removed, as a share of what was edited
    scores: dict[str, Json]
    delta: float | None = None  # of the headline, ablated - baseline
    per_mass: float | None = None
    ablation: dict[str, Json] | None = None
    controls: tuple[Control, ...] = ()
    controls_mean: float | None = None  # of their deltas
    controls_deviation: float | None = None

    def row(self) -> Row:
        """The point as a row of a table: its numbers, without reports."""
        kept = {key: value for key, value in self.scores.items() if _is_number(value)}
        found: dict[str, Json] = {"index": self.index, "name": self.name, "mass": self.mass}
        found |= {**kept, "delta": self.delta, "per_mass": self.per_mass}
        found |= {"controls_mean": self.controls_mean}
        found |= {"controls_deviation": self.controls_deviation, "seconds": self.seconds}
        return found | {"error": None if self.error is None else self.error["message"]}


class SweepPoints(tuple[SweepPoint, ...]):
    """Points in order."""

    __slots__ = ()

    def rows(self) -> list[Row]:
        """A row a point."""
        return [point.row() for point in self]

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` of these rows; ImportError where there is no pandas."""
        return frame(self.rows())


def read_sweep(page: Json) -> Sweep:
    """`GET /v1/sweeps/{id}`."""
    page = plain(page)
    names = set(Sweep.__dataclass_fields__) - {"deleted"}
    return Sweep(**{name: page[name] for name in names}, deleted=bool(page.get("deleted")))


def read_sweeps(page: Json) -> tuple[Sweep, ...]:
    """`GET /v1/sweeps`."""
    return tuple(read_sweep(item) for item in page["sweeps"])


def read_point(page: Json) -> SweepPoint:
    """One point, as events and pages have it."""
    page = plain(page)
    own = set(SweepPoint.__dataclass_fields__) - {"scores", "controls"}
    controls = tuple(Control(**control) for control in page.get("controls", ()))
    scores = {key: value for key, value in page.items() if key not in own | {"controls"}}
    given = {key: value for key, value in page.items() if key in own}
    return SweepPoint(**given, scores=scores, controls=controls)


def read_points(page: Json) -> tuple[list[SweepPoint], int]:
    """`GET /v1/sweeps/{id}/points`: some points, and where the next ones begin."""
    return [read_point(item) for item in page["points"]], int(page["next"])


def read_event(page: Json) -> list[SweepPoint | Sweep]:
    """One event of a sweep that is watched."""
    return [read_sweep(page["sweep"]) if "sweep" in page else read_point(page["point"])]


def point_page(point: SweepPoint) -> dict[str, Json]:
    """The point as the wire has it, for files."""
    page: dict[str, Json] = {"index": point.index, "name": point.name, "mass": point.mass}
    page |= point.scores
    page |= {"delta": point.delta, "per_mass": point.per_mass, "ablation": point.ablation}
    if point.controls:
        names = ("seed", "mass", "delta", "error")
        page["controls"] = [{name: getattr(c, name) for name in names} for c in point.controls]
        page["controls_mean"] = point.controls_mean
        page["controls_deviation"] = point.controls_deviation
    page |= {"error": point.error, "seconds": point.seconds}
    if point.error is not None:
        return {key: page[key] for key in ("index", "name", "error", "seconds")}
    return page


def _is_number(value: Json) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
