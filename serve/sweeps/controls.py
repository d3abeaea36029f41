"""Random controls of a point: the same mass taken away in a random direction of the same kind.

A structured ablation says something only beside unstructured ones that remove as much.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from serve.ablation.ablation import canonical, controls
from serve.ablation.parse import parse_ablation
from serve.manifest.read import Manifest
from serve.wire.errors import invalid
from serve.wire.requests import MAX_SEED

Json = Any


def control_of(ablation: Mapping[str, Json], seed: int, manifest: Manifest) -> dict[str, Json]:
    """An ablation with a random edit in the place of every edit that removes something.

    `RequestError` where none does: it would be its own control.
    """
    parsed = parse_ablation(ablation, manifest)
    if all(edit.op in ("random", "symmetry") for edit in parsed.edits):
        expected = "some edit that is neither random nor a symmetry"
        raise invalid("controls", f"found none of this ablation, expected {expected}")
    return canonical(controls(parsed, seed))


def seeds_of(first: int, count: int) -> list[int]:
    """The seeds of a point's controls; past the largest one they begin again at 0."""
    return [(first + i) % (MAX_SEED + 1) for i in range(count)]


def summary_of(runs: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """The controls of a point, with the mean and the standard deviation of their deltas."""
    deltas = [run["delta"] for run in runs if run["delta"] is not None]
    return {
        "controls": list(runs),
        "controls_mean": statistics.fmean(deltas) if deltas else None,
        "controls_deviation": statistics.stdev(deltas) if len(deltas) > 1 else None,
    }
