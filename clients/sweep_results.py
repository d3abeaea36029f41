"""Results of sweeps, as plain frozen values; HTTP and gRPC give equal ones.

They are what the server answers (serve/wire/query_responses.py), and their tables. `scores` holds
the numbers of the query: of `score` bpc, delta_bpc and mean_kl; of `trials` those that `trials`
answers of an ablation.
"""

from typing import Any

from clients.frames import Row, frame
from serve.wire import query_responses
from serve.wire.codec import Json, JsonObject, from_json
from serve.wire.query_responses import Control as Control

ENDED = ("done", "cancelled", "failed")


class Sweep(query_responses.Sweep):
    """One query for many ablations, and how far it is."""

    __slots__ = ()

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


class SweepPoint(query_responses.SweepPoint):
    """The effect of one ablation; where `error` isn't None, only that is known."""

    __slots__ = ()

    def row(self) -> Row:
        """The point as a row of a table: its numbers, without reports."""
        kept = {key: value for key, value in self.scores.items() if _is_number(value)}
        found: JsonObject = {"index": self.index, "name": self.name, "mass": self.mass}
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


def read_event(event: Json) -> list[SweepPoint | Sweep]:
    """One event of a sweep that is watched."""
    if "sweep" in event:
        return [from_json(Sweep, event["sweep"])]
    return [from_json(SweepPoint, event["point"])]


def _is_number(value: Json) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
