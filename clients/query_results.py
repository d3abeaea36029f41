"""Results of `compare` and `trials`, as plain frozen values; HTTP and gRPC give equal ones.

Scores that aren't finite are None, and `warnings` say why. `ablation` is as in clients/results.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clients.answers import plain
from clients.frames import Row, frame
from clients.results import Json

Scores = dict[str, float | None]
Bounds = dict[str, tuple[float, float] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probability:
    """A character that may come next."""

    character: str
    probability: float
    logprob: float  # natural logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What may come next: the most probable characters."""

    entropy_bits: float
    top: tuple[Probability, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Distribution):
    """What may come next under an ablation."""

    ablation: dict[str, Json]
    kl_bits: float  # KL(baseline || ablated)
    total_variation: float
    probabilities: tuple[float, ...]  # under it, of the baseline's top characters


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareResult:
    """What comes next after a prompt, without and with each ablation."""

    model: str
    num_characters: int  # of the prompt
    baseline: Distribution
    ablations: tuple[Compared, ...]  # in the order that was asked for

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Percentile bootstrap over trials, the same resamples for both models: (lower, upper)."""

    level: float
    resamples: int
    seed: int
    baseline: Bounds
    ablated: Bounds | None
    delta: Bounds | None
    s_delta_t: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsResult:
    """How well a model of a task does on trials, and what an ablation changes.

    Scores go by the names loss, fvu, accuracy, replay_accuracy; `delta` by delta_loss and so on.
    """

    model: str
    num_trials: int
    num_steps: int
    counted: float  # sum of the mask; pooled: trials
    baseline: Scores
    ablated: Scores | None
    delta: Scores | None  # ablated - baseline
    mass: float | None  # removed, as a share
    s_delta_t: float | None  # delta_fvu / mass
    per_mass: Scores | None  # delta / mass
    intervals: Intervals | None
    warnings: tuple[str, ...]
    ablation: dict[str, Json] | None

    def rows(self) -> list[Row]:
        """A row a score: baseline, ablated, delta and their intervals' ends."""
        return [self._row(name) for name in self.baseline]

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
    """What a table calls an ablation: its name, else its hash."""
    return str(ablation["name"] or ablation["hash"])


def read_compare(page: Json) -> CompareResult:
    """`POST /v1/ablations/compare`."""
    return CompareResult(
        model=page["model"],
        num_characters=int(page["num_characters"]),
        baseline=Distribution(**_distribution(page["baseline"])),
        ablations=tuple(
            Compared(
                **_distribution(found),
                ablation=plain(found["ablation"]),
                kl_bits=float(found["kl_bits"]),
                total_variation=float(found["total_variation"]),
                probabilities=tuple(map(float, found["probabilities"])),
            )
            for found in page["ablations"]
        ),
    )


def read_trials(page: Json) -> TrialsResult:
    """`POST /v1/ablations/trials`."""
    scores = {key: _scores(page[key]) for key in ("ablated", "delta", "per_mass")}
    return TrialsResult(
        model=page["model"],
        num_trials=int(page["num_trials"]),
        num_steps=int(page["num_steps"]),
        counted=float(page["counted"]),
        baseline=_scores(page["baseline"]) or {},
        mass=_float(page["mass"]),
        s_delta_t=_float(page["s_delta_t"]),
        intervals=None if page["intervals"] is None else _intervals(page["intervals"]),
        warnings=tuple(page["warnings"]),
        ablation=plain(page["ablation"]),
        **scores,
    )


def _distribution(page: Json) -> dict[str, Any]:
    top = [
        Probability(
            character=entry["character"],
            probability=float(entry["probability"]),
            logprob=float(entry["logprob"]),
        )
        for entry in page["top"]
    ]
    return {"entropy_bits": float(page["entropy_bits"]), "top": tuple(top)}


def _intervals(page: Json) -> Intervals:
    return Intervals(
        level=float(page["level"]),
        resamples=int(page["resamples"]),
        seed=int(page["seed"]),
        baseline=_bounds(page["baseline"]) or {},
        ablated=_bounds(page["ablated"]),
        delta=_bounds(page["delta"]),
        s_delta_t=_pair(page["s_delta_t"]),
    )


def _scores(page: Json) -> Scores | None:
    # A protobuf Struct keeps no order of its keys
    return None if page is None else {name: _float(page[name]) for name in sorted(page)}


def _bounds(page: Json) -> Bounds | None:
    return None if page is None else {name: _pair(page[name]) for name in sorted(page)}


def _pair(page: Json) -> tuple[float, float] | None:
    return None if page is None else (float(page[0]), float(page[1]))


def _float(value: Json) -> float | None:
    return None if value is None else float(value)
