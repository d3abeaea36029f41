"""Ablations: lists of edits to effective weights, as data (Draeger, arXiv 2606.18457, section 2).

    {"name": "no-CC",
     "edits": [{"target": "recurrent", "op": "schur", "alpha": 0.9, "zero": ["CC"]}]}

| op         | on            | meaning                                                            |
|------------|---------------|--------------------------------------------------------------------|
| `schur`    | square matrix | W' = Q T' Q^T; T' is T with the couplings named in `zero` set to 0 |
| `zero`     | any target    | 0                                                                  |
| `identity` | square matrix | the identity                                                       |

- Edits are applied in order; several may hit one weight.
- An edit that changes nothing is an error, never a no-op.
- The name is a label: two ablations are the same if their canonical edits are.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serve import schur
from serve.manifest import Json, Manifest, Target
from serve.schur import COUPLINGS, Floats, Spectrum, frobenius

Array = NDArray[Any]
ALPHA = 0.9  # chosen a priori in the paper; it only sets the R/C split
MAX_EDITS = 64
MAX_NAME = 100  # characters


class AblationError(ValueError):
    """An ablation that can't be used: `field` is the dotted path of what is wrong."""

    def __init__(self, field: str, found: str, expected: str, remedy: str) -> None:
        self.field = field
        super().__init__(f"{field}: found {found}, expected {expected}; {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change of one target; what an op doesn't take is None or empty."""

    target: str
    op: str
    alpha: float | None = None
    zero: tuple[str, ...] = ()  # of COUPLINGS, in that order


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """A named list of edits; without edits it is the plain model."""

    name: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What an edit really removed: mass ||dW||_F / ||W||_F, for schur ||dT||_F / ||T||_F."""

    target: str
    op: str
    mass: float
    spectrum: Spectrum | None  # of the target before the edit; schur only
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Applied:
    """The edited weights, only those, as new arrays; and what each edit removed, in order."""

    weights: dict[str, Array]
    removed: tuple[Removed, ...]


def parse_ablation(value: Json, manifest: Manifest) -> Ablation:
    """The checked value of a parsed JSON object; None is the empty ablation.

    Raises `AblationError` for unknown keys, wrong values, and what this manifest doesn't offer.
    """
    page = _object({} if value is None else value, "ablation", ("name", "edits"))
    name, edits = page.get("name", ""), page.get("edits", [])
    # A lone surrogate is a character to Python, but no UTF-8, so no answer could carry it
    if not isinstance(name, str) or len(name) > MAX_NAME or re.search("[\ud800-\udfff]", name):
        expected = f"a string of at most {MAX_NAME} characters"
        raise AblationError("ablation.name", f"{name!r:.60}", expected, "choose another name")
    if not isinstance(edits, list) or len(edits) > MAX_EDITS:
        found = f"{len(edits)} edits" if isinstance(edits, list) else f"{edits!r:.60}"
        expected, remedy = f"a list of at most {MAX_EDITS} edits", "give fewer edits, in a list"
        raise AblationError("ablation.edits", found, expected, remedy)
    parsed = [_edit(e, f"ablation.edits[{i}]", manifest) for i, e in enumerate(edits)]
    return Ablation(name=name, edits=tuple(parsed))


def canonical(ablation: Ablation) -> dict[str, Json]:
    """The ablation as JSON with every default written out; it parses to an equal ablation."""
    pages: list[dict[str, Json]] = []
    for edit in ablation.edits:
        every: dict[str, Json] = dataclasses.asdict(edit)
        every["zero"] = [name for name in COUPLINGS if name in edit.zero]
        pages.append({key: every[key] for key in ("target", "op", *OPERATIONS[edit.op].keys)})
    return {"name": ablation.name, "edits": pages}


def ablation_hash(ablation: Ablation) -> str:
    """16 hex digits of the SHA-256 of the canonical edits; the name doesn't count."""
    edits = canonical(ablation)["edits"]
    text = json.dumps(edits, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def apply_ablation(ablation: Ablation, weights: Mapping[str, Array], manifest: Manifest) -> Applied:
    """The edited weights and what each edit removed; `weights` is left as it is.

    Raises `AblationError` for an edit that changes nothing, values that aren't finite, and weights
    that aren't as the manifest says.
    """
    edited: dict[str, Array] = {}
    removed = []
    for index, edit in enumerate(ablation.edits):
        field = f"ablation.edits[{index}]"
        target = _target(edit.target, f"{field}.target", manifest)
        if target.weight in weights and target.weight not in edited:
            edited[target.weight] = np.array(weights[target.weight], order="C")
        removed.append(_apply(edit, _view(edited, target, field), field))
    return Applied(weights=edited, removed=tuple(removed))


def removed_json(removed: Removed) -> dict[str, Json]:
    """Plain JSON types and finite numbers; an eigenvalue is [re, im]."""
    page = {key: getattr(removed, key) for key in ("target", "op", "mass")}
    page |= _spectrum_json(removed.spectrum) if removed.spectrum else {}
    return page | {"warnings": list(removed.warnings)}


def structure(manifest: Manifest, weights: Mapping[str, Array]) -> list[dict[str, Json]]:
    """Per target what may be edited; for square ones also the spectrum and ||N_x||_F / ||T||_F.

    Raises `AblationError` for weights that aren't as the manifest says.
    """
    pages = []
    for target in manifest.targets:
        field = f"targets.{target.name}"
        part = _view(weights, target, field).astype(np.float64)
        page = {key: getattr(target, key) for key in ("name", "weight", "meaning")}
        page |= {"shape": list(target.shape), "ops": list(target.ops), "norm": frobenius(part)}
        if _square(target):
            page |= _spectrum_json(schur.spectrum(_ordered(part, field), ALPHA))
        pages.append(page)
    return pages


def _schur(W: Floats, edit: Edit, field: str) -> tuple[Floats, Spectrum]:
    assert edit.alpha is not None
    form = _ordered(W, field)
    spectrum = schur.spectrum(form, edit.alpha)
    masks = schur.couplings(form, spectrum.n_R)
    empty = [f"{name} has no entries" for name in edit.zero if not masks[name].any()]
    if len(empty) == len(edit.zero):
        found = f"at n_R = {spectrum.n_R}, n_C = {spectrum.n_C}: {' and '.join(empty)}"
        remedy = "choose another alpha or coupling"
        raise AblationError(f"{field}.zero", found, "something to remove", remedy)
    dT = np.where(np.any([masks[name] for name in edit.zero], axis=0), form.T, 0.0)
    spectrum = dataclasses.replace(spectrum, warnings=(*spectrum.warnings, *empty))
    # W less the removed part, not Q T' Q^T: what isn't touched keeps its bits as far as possible
    return W - form.Q @ dT @ form.Q.T, spectrum


class _Operation(NamedTuple):
    # (target in float64, edit, field) -> its new value, and its spectrum where that was computed
    run: Callable[[Floats, Edit, str], tuple[Floats, Spectrum | None]]
    keys: tuple[str, ...] = ()  # what an edit with this op may say beside target and op
    square: bool = False


OPERATIONS: Mapping[str, _Operation] = {
    "schur": _Operation(_schur, keys=("alpha", "zero"), square=True),
    "zero": _Operation(lambda part, edit, field: (np.zeros_like(part), None)),
    "identity": _Operation(lambda part, edit, field: (np.eye(len(part)), None), square=True),
}


def _object(value: Json, field: str, keys: Sequence[str]) -> dict[str, Json]:
    expected = f"an object with no keys but {', '.join(keys)}"
    if not isinstance(value, dict):
        raise AblationError(field, f"{value!r:.60}", expected, "give it these keys")
    if unknown := [key for key in value if key not in keys]:
        raise AblationError(f"{field}.{unknown[0]!s:.60}", "this key", expected, "leave it out")
    return value


def _edit(value: Json, field: str, manifest: Manifest) -> Edit:
    page = _object(value, field, [key.name for key in dataclasses.fields(Edit)])
    target = _target(page.get("target"), f"{field}.target", manifest)
    op = _op(page.get("op"), f"{field}.op", target)
    keys = OPERATIONS[op].keys
    _object(page, field, ("target", "op", *keys))
    alpha = _alpha(page.get("alpha", ALPHA), f"{field}.alpha") if "alpha" in keys else None
    zero = _couplings(page.get("zero"), f"{field}.zero") if "zero" in keys else ()
    return Edit(target=target.name, op=op, alpha=alpha, zero=zero)


def _target(name: Json, field: str, manifest: Manifest) -> Target:
    target = manifest.target(name) if isinstance(name, str) else None
    if target is None:
        known = ", ".join(target.name for target in manifest.targets) or "none"
        raise AblationError(field, f"{name!r:.60}", f"a target of {manifest.name}", f"use: {known}")
    return target


def _op(name: Json, field: str, target: Target) -> str:
    if not isinstance(name, str) or name not in OPERATIONS:
        raise AblationError(field, f"{name!r:.60}", "an op", f"use: {', '.join(OPERATIONS)}")
    square = _square(target)
    fits = [o for o, op in OPERATIONS.items() if o in target.ops and (square or not op.square)]
    if name not in fits:
        expected, remedy = f"an op for {target.name}", f"use: {', '.join(fits) or 'none'}"
        raise AblationError(field, f"{name!r:.60}", expected, remedy)
    return name


def _square(target: Target) -> bool:
    return len(target.shape) == 2 and target.shape[0] == target.shape[1] > 0


def _alpha(value: Json, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise AblationError(field, f"{value!r:.60}", "a number, 0 < alpha <= 1", "leave it out")
    return float(value)


def _couplings(value: Json, field: str) -> tuple[str, ...]:
    found = [str(name).replace("->", "→") for name in value] if isinstance(value, list) else []
    known = tuple(name for name in COUPLINGS if name in found)
    if not known or len(known) != len(found):
        expected = f"a list of one or more of {', '.join(COUPLINGS)}, each once"
        raise AblationError(field, f"{value!r:.60}", expected, "C→R may be written C->R")
    return known


def _view(weights: Mapping[str, Array], target: Target, field: str) -> Array:
    weight = weights.get(target.weight, np.empty(0))
    bounds = target.slice or [(0, size) for size in weight.shape]
    fits = target.weight in weights and weight.dtype.kind == "f" and len(bounds) == weight.ndim
    slices = tuple(slice(start, stop) for start, stop in bounds)
    part = weight[slices] if fits and slices else weight  # a number stays an array
    # Axes of length 1 may be dropped: one head of (heads, d, d) is a (d, d) target
    if not fits or [s for s in part.shape if s != 1] != [s for s in target.shape if s != 1]:
        found = f"{part.dtype} {list(part.shape)}" if target.weight in weights else "nothing"
        expected = f"floating point {list(target.shape)} in weight {target.weight}"
    elif not np.isfinite(part).all():
        found, expected = "NaN or infinite values", f"finite numbers in weight {target.weight}"
    else:
        return part.reshape(target.shape)
    raise AblationError(f"{field}.target", found, expected, "export the bundle again")


def _apply(edit: Edit, part: Array, field: str) -> Removed:
    before = part.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # looked at in the next line
        whole, spectrum = OPERATIONS[edit.op].run(before, edit, field)
        after = whole.astype(part.dtype)
    if not np.isfinite(after).all():
        raise AblationError(field, "a result that isn't finite", "finite values", "leave it out")
    if np.array_equal(after, part):
        found = f"that it changes no entry of {edit.target}"
        raise AblationError(field, found, "something to remove", "leave it out")
    mass, doubts = _mass(before, after, spectrum)
    part[...] = after
    warnings = (*(spectrum.warnings if spectrum else ()), *doubts)
    return Removed(target=edit.target, op=edit.op, mass=mass, spectrum=spectrum, warnings=warnings)


def _mass(before: Floats, after: Array, spectrum: Spectrum | None) -> tuple[float, list[str]]:
    whole = frobenius(before)
    mass = frobenius(after - before) / whole if whole else math.inf
    if not math.isfinite(mass):
        return 1.0, ["the target was 0 before this edit; the mass is relative to its new value"]
    noise = max(2 * np.finfo(after.dtype).eps, 10 * spectrum.backward_error if spectrum else 0.0)
    return mass, [f"mass {mass:.3g} is rounding error of {after.dtype}"] if mass <= noise else []


def _ordered(W: Floats, field: str) -> schur.Schur:
    try:
        return schur.ordered_schur(W)
    except ValueError as error:
        raise AblationError(field, f"no Schur form ({error})", "one", "leave it out") from None


def _spectrum_json(spectrum: Spectrum) -> dict[str, Json]:
    page = {k: list(v) if type(v) is tuple else v for k, v in dataclasses.asdict(spectrum).items()}
    return page | {"eigenvalues": [[value.real, value.imag] for value in spectrum.eigenvalues]}
