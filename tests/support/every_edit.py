"""Edits of everything that a manifest offers: each target, each op, each symmetry."""

import re
from typing import Any

from serve.ablation.parse import ops_of
from serve.manifest.page import Manifest, Target

KEYS: dict[str, dict[str, Any]] = {
    "schur": {"alpha": 0.7, "zero": ["RR", "C→R", "CC"]},
    "scale": {"factor": -0.5},
    "rank": {"keep": 0},
    "project": {"subspace": "readout-null"},
}


def edits_of(manifest: Manifest) -> list[dict[str, Any]]:
    """One op on every target, and every op on one target of each kind, with its control.

    Targets are of one kind where their names differ by numbers only.
    """
    found, seen = list[dict[str, Any]](), set[tuple[str, str]]()
    for target in manifest.targets:
        kind, ops = re.sub(r"\d+", "#", target.name), ops_of(target)
        for op in ops:
            is_new = (kind, op) not in seen
            seen.add((kind, op))
            if op != "random" and (is_new or op == ops[0]):
                found.append(_edit(target, op))
            if op != "random" and is_new and "random" in ops:
                found.append({"op": "random", "like": _edit(target, op), "seed": 1})
    return found


def symmetries_of(manifest: Manifest) -> list[dict[str, Any]]:
    """Every symmetry."""
    return [{"op": "symmetry", "kind": s.name, "seed": 1} for s in manifest.symmetries]


def _edit(target: Target, op: str) -> dict[str, Any]:
    return {"target": target.name, "op": op, **KEYS.get(op, {})}
