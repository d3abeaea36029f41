"""Random controls of a point: the same mass taken away in a random direction of the same kind.

A structured ablation says something only beside unstructured ones that remove as much.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from serve.wire.requests import MAX_SEED

Json = Any


def control_of(ablation: Mapping[str, Json], seed: int) -> dict[str, Json]:
    """An ablation with a random edit in the place of every edit."""
    edits = [{"op": "random", "like": edit, "seed": seed} for edit in ablation.get("edits", ())]
    return {"name": f"control {seed}", "edits": edits}


def seeds_of(first: int, count: int) -> list[int]:
    """The seeds of a point's controls; past the largest one they begin again at 0."""
    return [(first + i) % (MAX_SEED + 1) for i in range(count)]


def combined_mass(removed: Sequence[Mapping[str, Json]]) -> float:
    """The mass that several edits removed together, as a share of all that they edited.

    sqrt(Σ (mass_i norm_i)² / Σ norm_i²); where the norms aren't known, sqrt(Σ mass_i²).
    """
    if len(removed) == 1:
        return float(removed[0]["mass"])
    norms = [float(entry.get("norm") or 0.0) for entry in removed]
    masses = [float(entry["mass"]) for entry in removed]
    if not removed or not all(norms):
        return math.hypot(*masses)
    return math.hypot(*(m * n for m, n in zip(masses, norms, strict=True))) / math.hypot(*norms)


def summary_of(runs: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """The controls of a point, with the mean and the standard deviation of their deltas."""
    deltas = [run["delta"] for run in runs if run["delta"] is not None]
    return {
        "controls": list(runs),
        "controls_mean": statistics.fmean(deltas) if deltas else None,
        "controls_deviation": statistics.stdev(deltas) if len(deltas) > 1 else None,
    }
