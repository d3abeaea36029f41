"""An edit for every op on every target that a manifest offers, and one for every symmetry."""

from typing import Any

from serve.ablation_page import ops_of
from serve.manifest import Manifest, Target

KEYS: dict[str, dict[str, Any]] = {
    "schur": {"alpha": 0.7, "zero": ["RR", "C→R", "CC"]},
    "scale": {"factor": -0.5},
    "rank": {"keep": 0},
    "project": {"subspace": "readout-null"},
}


def edits_of(manifest: Manifest) -> list[dict[str, Any]]:
    """Every op on every target, and beside each its random control."""
    plain = [(target, page) for target in manifest.targets for page in _edits(target)]
    controlled = [page for target, page in plain if "random" in ops_of(target)]
    return [page for _, page in plain] + [
        {"op": "random", "like": page, "seed": 1} for page in controlled
    ]


def symmetries_of(manifest: Manifest) -> list[dict[str, Any]]:
    """Every symmetry."""
    return [{"op": "symmetry", "kind": s.name, "seed": 1} for s in manifest.symmetries]


def _edits(target: Target) -> list[dict[str, Any]]:
    ops = [op for op in ops_of(target) if op != "random"]
    return [{"target": target.name, "op": op, **KEYS.get(op, {})} for op in ops]
