"""Results of `compare` and `trials`, as plain frozen values; HTTP and gRPC give equal ones.

They are what the server answers (serve/wire/query_responses.py), and their tables. Scores that
aren't finite are None, and `warnings` say why. `ablation` is as in clients/results.py.
"""

from collections.abc import Mapping
from typing import Any

from clients.frames import Row, frame
from serve.wire.codec import Json
from serve.wire.query_responses import Bounds, Comparison, TrialScores


class CompareResult(Comparison):
    """Distributions of the next character, without and with each ablation."""

    __slots__ = ()

    def rows(self) -> list[Row]:
        """The baseline, then the ablations; a column `p(CHARACTER)` for each of its top."""
        names = [f"p({entry.character})" for entry in self.baseline.top]
        own = [entry.probability for entry in self.baseline.top]
        first = {"ablation": "baseline", "entropy_bits": self.baseline.entropy_bits}
        first |= {"kl_bits": 0.0, "total_variation": 0.0}
        rows: list[Row] = [first | dict(zip(names, own, strict=True))]
        for found in self.ablations:
            row = {"ablation": label(found.ablation), "entropy_bits": found.entropy_bits}
            row |= {"kl_bits": found.kl_bits, "total_variation": found.total_variation}
            rows.append(row | dict(zip(names, found.probabilities, strict=True)))
        return rows

    def to_pandas(self) -> Any:
        """The `rows` as a `pandas.DataFrame`; ImportError where there is no pandas."""
        return frame(self.rows())


class TrialsResult(TrialScores):
    """Scores of a task model on trials, and their change under an ablation.

    Scores go by the names loss, fvu, accuracy, replay_accuracy; `delta` by delta_loss and so on.
    """

    __slots__ = ()

    def rows(self) -> list[Row]:
        """A row a score, by name: baseline, ablated, delta and their intervals' ends."""
        return [self._row(name) for name in sorted(self.baseline)]

    def to_pandas(self) -> Any:
        """The `rows` as a `pandas.DataFrame`; ImportError where there is no pandas."""
        return frame(self.rows())

    def _row(self, name: str) -> Row:
        row: dict[str, Any] = {"score": name}
        all_of, none = self.intervals, Bounds()
        for part, key, values, bounds in (
            ("baseline", name, self.baseline, all_of.baseline if all_of else none),
            ("ablated", name, self.ablated, all_of.ablated if all_of else none),
            ("delta", f"delta_{name}", self.delta, all_of.delta if all_of else none),
        ):
            low, high = (bounds or {}).get(key) or (None, None)
            row |= {part: (values or {}).get(key), f"{part}_low": low, f"{part}_high": high}
        return row


def label(ablation: Mapping[str, Json]) -> str:
    """The name of an ablation in a table, else its hash."""
    return str(ablation["name"] or ablation["hash"])
