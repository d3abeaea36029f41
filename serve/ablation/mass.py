"""How much an ablation removes, all its edits together.

    mass = ‖ΔW‖_F / ‖W‖_F   over all entries that its targets name, each counted once

W: the weights before the first edit, ΔW: what they have become after the last one, less that. So it
doesn't depend on how an ablation is cut into edits. A symmetry names the weights that it moves.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Json = Any
Named = Mapping[str, Array]  # by weight: True where a target names an entry


def total_mass(before: Mapping[str, Array], after: Mapping[str, Array], named: Named) -> float:
    """The mass; infinite where all that is named was 0."""
    whole, gone = 0.0, 0.0
    for name, where in named.items():
        old = before[name][where].astype(np.float64)
        whole = math.hypot(whole, float(np.linalg.norm(old)))
        gone = math.hypot(gone, float(np.linalg.norm(after[name][where] - old)))
    if whole:
        return gone / whole
    return math.inf if gone else 0.0


def mass_page(mass: float, masses: Sequence[float], doubts: Sequence[bool]) -> dict[str, Json]:
    """Of a report: the mass, and whether it is no more than rounding error.

    `masses` and `doubts` are of the single edits. A single one's is the whole's, also where it is
    relative to its new value, since the old one was 0.
    """
    if len(masses) == 1:
        mass = masses[0]
    return {"mass": mass if math.isfinite(mass) else None, "negligible": all(doubts)}


def divisor_of(report: Mapping[str, Json] | None) -> float | None:
    """What deltas are divided by: the mass of an ablation; None where that would mean nothing."""
    if report is None or report["negligible"]:
        return None
    return report["mass"] or None
