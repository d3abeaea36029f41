"""Ablations from parsed JSON, checked against what a model offers; and the JSON Schema of both.

What the keys mean stands in serve/ablation/ablation.py.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from serve.ablation.ablation import Ablation, AblationError, Edit, Range
from serve.ablation.schur import COUPLINGS
from serve.manifest.page import Manifest, Target
from serve.manifest.values import Json
from serve.wire.edit_fields import ABLATION_KEYS, KEYS, edit_keys, stray_key
from serve.wire.limits import MAX_EDIT_SEED, MAX_EDITS, MAX_NAME
from serve.wire.preview import shown

ALPHA = 0.9  # chosen a priori in the paper; it only sets the R/C split
MAX_NAMED = 24  # targets that an error names
SUBSPACES = ("readout-visible", "readout-null")
UNCONTROLLED = ("random", "symmetry")  # ops that have no random control


class _Absent:
    """What stands where a key is missing."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()
DEFAULTS = {"alpha": ALPHA, "seed": 0}
REQUIRED = ("target", "zero", "factor", "keep", "subspace", "like", "kind")
IMPLIED = ("scale",)  # ops that a target has wherever it has "zero"
SQUARE = ("schur", "identity")
MATRIX = ("schur", "identity", "rank", "project")


def parse_ablation(value: Json, manifest: Manifest) -> Ablation:
    """The checked value of a parsed JSON object; None is the empty ablation.

    Raises `AblationError` for unknown keys, wrong values, and what this manifest doesn't offer.
    """
    page = _object({} if value is None else value, "ablation", ABLATION_KEYS)
    name, edits = page.get("name", ""), page.get("edits", [])
    # A lone surrogate is a character to Python, but no UTF-8, so no answer could carry it
    if not isinstance(name, str) or len(name) > MAX_NAME or re.search("[\ud800-\udfff]", name):
        expected = f"a string of at most {MAX_NAME} characters"
        raise AblationError("ablation.name", shown(name), expected, "choose another name")
    if not isinstance(edits, list) or len(edits) > MAX_EDITS:
        found = f"{len(edits)} edits" if isinstance(edits, list) else shown(edits)
        expected, remedy = f"a list of at most {MAX_EDITS} edits", "give fewer edits, in a list"
        raise AblationError("ablation.edits", found, expected, remedy)
    parsed = [_edit(e, f"ablation.edits[{i}]", manifest) for i, e in enumerate(edits)]
    return Ablation(name=name, edits=tuple(parsed))


def find_target(name: Json, field: str, manifest: Manifest) -> Target:
    """The target of that name; `AblationError` if there is none."""
    target = manifest.target(name) if isinstance(name, str) else None
    if target is None:
        names = [target.name for target in manifest.targets]
        more = len(names) - MAX_NAMED
        known = ", ".join(names[:MAX_NAMED]) or "none"
        known += f" and {more} more, see its structure" if more > 0 else ""
        raise AblationError(field, shown(name), f"a target of {manifest.name}", f"use: {known}")
    return target


def ops_of(target: Target) -> list[str]:
    """What may be done to a target: what the manifest names, and what goes with it."""
    sides = len(target.shape)
    square = sides == 2 and target.shape[0] == target.shape[1] > 0
    declared = [op for op in KEYS if op in target.ops and op not in UNCONTROLLED]
    fits = [op for op in declared if (square or op not in SQUARE) and (sides == 2 or op != "rank")]
    if "zero" in fits:
        implied = [*IMPLIED, *(["rank"] if sides == 2 and min(target.shape) > 1 else [])]
        fits = [op for op in KEYS if op in (*fits, *implied)]
    # A single number has no other direction in which as much could be removed
    return [*fits, "random"] if fits and math.prod(target.shape) > 1 else fits


def ablation_schema() -> dict[str, Json]:
    """The JSON Schema of an ablation; which targets and ops fit is a question of the model."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "/v1/ablations/schema",
        "title": "Ablation",
        "description": "A named list of edits to the effective weights of a model, in order.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "maxLength": MAX_NAME},
            "edits": {"type": "array", "maxItems": MAX_EDITS, "items": {"$ref": "#/$defs/edit"}},
        },
        "$defs": {
            "edit": {"oneOf": [_op_schema(op) for op in KEYS]},
            "removal": {"oneOf": [_op_schema(op) for op in KEYS if op not in UNCONTROLLED]},
        },
    }


def _op_schema(op: str) -> Json:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["op", *(key for key in KEYS[op] if key in REQUIRED)],
        "properties": {"op": {"const": op}, **{key: KEY_RULES[key].schema for key in KEYS[op]}},
    }


def _object(value: Json, field: str, keys: Sequence[str]) -> dict[str, Json]:
    if not isinstance(value, dict):
        expected = f"an object with no keys but {', '.join(keys)}"
        raise AblationError(field, shown(value), expected, "give it these keys")
    if stray := stray_key(value, keys):
        raise AblationError(f"{field}.{stray[0]:.60}", "this key", *stray[1:])
    return value


def _edit(value: Json, field: str, manifest: Manifest, ops: Sequence[str] = tuple(KEYS)) -> Edit:
    page = _object(value, field, edit_keys(value if isinstance(value, dict) else {}))
    has_target = page.get("op") not in UNCONTROLLED
    named = page.get("target", ABSENT)
    target = find_target(named, f"{field}.target", manifest) if has_target else None
    op = _op(page.get("op", ABSENT), f"{field}.op", target, ops)
    keys = KEYS[op]
    values = {k: DEFAULTS.get(k, ABSENT) for k in keys if k in REQUIRED or k in DEFAULTS} | page
    scene = Scene(manifest, target)
    found = {k: KEY_RULES[k].read(values[k], f"{field}.{k}", scene) for k in keys if k in values}
    return Edit(op=op, **found)


def _op(name: Json, field: str, target: Target | None, ops: Sequence[str]) -> str:
    if not isinstance(name, str) or name not in ops:
        raise AblationError(field, shown(name), "an op", f"use: {', '.join(ops)}")
    if target is not None and name not in (fits := ops_of(target)):
        expected, remedy = f"an op for {target.name}", f"use: {', '.join(fits) or 'none'}"
        raise AblationError(field, shown(name), expected, remedy)
    return name


class Scene(NamedTuple):
    """What a key's value is checked against."""

    manifest: Manifest
    target: Target | None


class KeyRule(NamedTuple):
    """How the value of a key is read, and its JSON Schema."""

    read: Callable[[Json, str, Scene], Any]
    schema: Json


def _name_of_target(value: Json, field: str, scene: Scene) -> str:
    del value, field
    assert scene.target is not None
    return scene.target.name


def _alpha(value: Json, field: str, scene: Scene) -> float:
    del scene
    if not _is_number(value) or not 0 < value <= 1:
        raise AblationError(field, shown(value), "a number, 0 < alpha <= 1", "leave it out")
    return float(value)


def _couplings(value: Json, field: str, scene: Scene) -> tuple[str, ...]:
    del scene
    found = [str(name).replace("->", "→") for name in value] if isinstance(value, list) else []
    known = tuple(name for name in COUPLINGS if name in found)
    if not known or len(known) != len(found):
        expected = f"a list of one or more of {', '.join(COUPLINGS)}, each once"
        raise AblationError(field, shown(value), expected, "C→R may be written C->R")
    return known


def _rows(value: Json, field: str, scene: Scene) -> Range:
    return _range(value, field, scene, 0)


def _columns(value: Json, field: str, scene: Scene) -> Range:
    return _range(value, field, scene, 1)


def _range(value: Json, field: str, scene: Scene, axis: int) -> Range:
    assert scene.target is not None
    shape = scene.target.shape
    if len(shape) <= axis:
        expected = f"none: {scene.target.name} has the shape {list(shape)}"
        raise AblationError(field, shown(value), expected, "leave it out")
    pair = value if isinstance(value, list) and all(map(_is_whole, value)) else []
    if len(pair) != 2 or not 0 <= pair[0] < pair[1] <= shape[axis]:
        expected = f"[start, stop] with 0 <= start < stop <= {shape[axis]}"
        raise AblationError(field, shown(value), expected, "leave it out for all")
    return pair[0], pair[1]


def _factor(value: Json, field: str, scene: Scene) -> float:
    del scene
    if not _is_number(value) or not math.isfinite(value) or value == 1:
        expected = "a finite number other than 1"
        raise AblationError(field, shown(value), expected, "1 would change nothing")
    return float(value)


def _keep(value: Json, field: str, scene: Scene) -> int:
    assert scene.target is not None
    full = min(scene.target.shape)
    if not _is_whole(value) or not 0 <= value < full:
        expected = f"a whole number of singular values, 0 to {full - 1}"
        raise AblationError(field, shown(value), expected, f"{full} would change nothing")
    return int(value)


def _subspace(value: Json, field: str, scene: Scene) -> str:
    del scene
    if value not in SUBSPACES:
        raise AblationError(field, shown(value), "a subspace", f"use: {', '.join(SUBSPACES)}")
    return str(value)


def _like(value: Json, field: str, scene: Scene) -> Edit:
    ops = [op for op in KEYS if op not in UNCONTROLLED]
    if value is ABSENT:
        expected = "an edit whose mass and kind it matches"
        remedy = 'add it: "like": {"target": ..., "op": ...}'
        raise AblationError(field, shown(value), expected, remedy)
    return _edit(value, field, scene.manifest, ops)


def _kind(value: Json, field: str, scene: Scene) -> str:
    names = [symmetry.name for symmetry in scene.manifest.symmetries]
    if value not in names:
        expected = f"a symmetry of {scene.manifest.name}"
        remedy = f"use: {', '.join(names)}" if names else "it has none"
        raise AblationError(field, shown(value), expected, remedy)
    return str(value)


def _seed(value: Json, field: str, scene: Scene) -> int:
    del scene
    if not _is_whole(value) or not 0 <= value <= MAX_EDIT_SEED:
        expected = "a whole number, 0 to 2^53 - 1"
        raise AblationError(field, shown(value), expected, "take another, or leave it out")
    return int(value)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_RANGE = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0},
    "minItems": 2,
    "maxItems": 2,
    "description": "start and stop; left out: all",
}
_COUPLINGS = [*COUPLINGS, *(name.replace("→", "->") for name in COUPLINGS if "→" in name)]
_SEED: Json = {"type": "integer", "minimum": 0, "maximum": MAX_EDIT_SEED, "default": 0}

KEY_RULES = {
    "target": KeyRule(_name_of_target, {"type": "string"}),
    "alpha": KeyRule(
        _alpha, {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": ALPHA}
    ),
    "zero": KeyRule(
        _couplings,
        {"type": "array", "items": {"enum": _COUPLINGS}, "minItems": 1, "uniqueItems": True},
    ),
    "rows": KeyRule(_rows, _RANGE),
    "columns": KeyRule(_columns, _RANGE),
    "factor": KeyRule(_factor, {"type": "number", "not": {"const": 1}}),
    "keep": KeyRule(_keep, {"type": "integer", "minimum": 0}),
    "subspace": KeyRule(_subspace, {"enum": list(SUBSPACES)}),
    "like": KeyRule(_like, {"$ref": "#/$defs/removal"}),
    "kind": KeyRule(_kind, {"type": "string"}),
    "seed": KeyRule(_seed, _SEED),
}
