"""Application of a list of edits to the weights of a model, and what each of them really removed.

    mass of an edit         ‖ΔW‖_F / ‖W‖_F, for schur ‖ΔT‖_F / ‖T‖_F, which is the same number
    mass of an ablation     the same over all entries that its targets name, each counted once

Each edit's mass is relative to what the edits before it have left. For the ablation W are the
weights before the first edit, ΔW what they have become after the last one, less that: so it doesn't
depend on how an ablation is cut into edits. A symmetry names the weights that it moves.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.ablation import schur, symmetry
from serve.ablation.ablation import Ablation, AblationError, Edit
from serve.ablation.norm import frobenius
from serve.ablation.ops import Outcome, Part, operate, ordered
from serve.ablation.parse import ALPHA, find_target, ops_of
from serve.ablation.schur import Floats
from serve.manifest.page import Manifest, Symmetry, Target
from serve.manifest.values import Json
from serve.wire import responses
from serve.wire.codec import to_json
from serve.wire.responses import Spectrum, Structure

ROUNDING = 8  # machine epsilons; weights that were computed have errors of some

Array = NDArray[Any]
Weights = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What an edit really removed."""

    target: str
    op: str
    mass: float
    norm: float  # ‖W‖_F of the target before
    negligible: bool = False  # whether the mass is no more than rounding error
    spectrum: Spectrum | None = None  # of the target before the edit; schur, and what is like it
    detail: dict[str, Json] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Applied:
    """The edited weights, only those, as new arrays; and what each edit removed, in order."""

    weights: dict[str, Array]
    removed: tuple[Removed, ...]
    mass: dict[str, Json]  # of all together, as `mass_page` says


def apply_ablation(ablation: Ablation, weights: Weights, manifest: Manifest) -> Applied:
    """The edited weights and what each edit removed; `weights` is left as it is.

    Raises `AblationError` for an edit that changes nothing, values that aren't finite, and weights
    that aren't as the manifest says.
    """
    edited: dict[str, Array] = {}
    removed = []
    for index, edit in enumerate(ablation.edits):
        where = f"ablation.edits[{index}]"
        apply = _apply_symmetry if edit.kind is not None else _apply_to_target
        removed.append(apply(edit, weights, edited, manifest, where))
    together = total_mass(weights, edited, _named(ablation, weights, manifest))
    mass = mass_page(together, [r.mass for r in removed], [r.negligible for r in removed])
    return Applied(weights=edited, removed=tuple(removed), mass=mass)


def removed_json(removed: Removed) -> dict[str, Json]:
    """Plain JSON types and finite numbers; an eigenvalue is [re, im]."""
    page: dict[str, Json] = {
        "target": removed.target,
        "op": removed.op,
        "mass": removed.mass,
        "norm": removed.norm,
    }
    page |= to_json(removed.spectrum) if removed.spectrum else {}
    return page | removed.detail | {"warnings": list(removed.warnings)}


def structure(manifest: Manifest, weights: Weights) -> Structure:
    """Per target what may be edited; for square ones also the spectrum and ‖N_x‖_F / ‖T‖_F.

    Raises `AblationError` for weights that aren't as the manifest says.
    """
    return Structure(
        model=manifest.name,
        targets=tuple(_describe(target, weights) for target in manifest.targets),
        symmetries=tuple(map(_describe_symmetry, manifest.symmetries)),
    )


def _describe(target: Target, weights: Weights) -> responses.Target:
    where, ops = f"targets.{target.name}", tuple(ops_of(target))
    part = view(weights, target, where).astype(np.float64)
    split = schur.spectrum(ordered(part, where), ALPHA) if "schur" in ops else None
    return responses.Target(
        name=target.name,
        weight=target.weight,
        meaning=target.meaning,
        shape=tuple(target.shape),
        ops=ops,
        norm=frobenius(part),
        spectrum=split,
    )


def _describe_symmetry(found: Symmetry) -> responses.Symmetry:
    return responses.Symmetry(
        name=found.name,
        group=found.group,
        size=found.size,
        meaning=found.meaning,
        weights=tuple(dict.fromkeys(action.weight for action in found.actions)),
    )


def decompose(weights: Weights, target: Target) -> None:
    """Have the Schur form of a target at hand, so that nobody waits for it; `AblationError`."""
    where = f"targets.{target.name}"
    ordered(view(weights, target, where).astype(np.float64), where)


def view(weights: Weights, target: Target, where: str) -> Array:
    """A target's part of its weight, as the target's shape; `AblationError` if it isn't so."""
    weight = weights.get(target.weight, np.empty(0))
    slices = _slices(target, weight)
    fits = target.weight in weights and weight.dtype.kind == "f" and len(slices) == weight.ndim
    part = weight[slices] if fits and slices else weight  # a number stays an array
    # Axes of length 1 may be dropped: one head of (heads, d, d) is a (d, d) target
    if not fits or [s for s in part.shape if s != 1] != [s for s in target.shape if s != 1]:
        found = f"{part.dtype} {list(part.shape)}" if target.weight in weights else "nothing"
        expected = f"floating point {list(target.shape)} in weight {target.weight}"
    elif not np.isfinite(part).all():
        found, expected = "NaN or infinite values", f"finite numbers in weight {target.weight}"
    else:
        return part.reshape(target.shape)
    raise AblationError(f"{where}.target", found, expected, "export the bundle again")


def _slices(target: Target, weight: Array) -> tuple[slice, ...]:
    bounds = target.slice or [(0, size) for size in weight.shape]
    return tuple(slice(start, stop) for start, stop in bounds)


def _named(ablation: Ablation, weights: Weights, manifest: Manifest) -> dict[str, Array]:
    """By weight, which entries the edits name."""
    named: dict[str, Array] = {}
    for edit in ablation.edits:
        if edit.kind is not None:
            moves = next(s.actions for s in manifest.symmetries if s.name == edit.kind)
            named |= {a.weight: np.ones(weights[a.weight].shape, bool) for a in moves}
        else:
            target = find_target(edit.place, "ablation", manifest)
            weight = weights[target.weight]
            named.setdefault(target.weight, np.zeros(weight.shape, bool))
            named[target.weight][_slices(target, weight)] = True
    return named


def _apply_to_target(
    edit: Edit, weights: Weights, edited: dict[str, Array], manifest: Manifest, where: str
) -> Removed:
    target = find_target(edit.place, f"{where}.target", manifest)
    if target.weight in weights and target.weight not in edited:
        edited[target.weight] = np.array(weights[target.weight], order="C")
    part = view(edited, target, where)
    before = part.astype(np.float64)
    seen = None if target.subspace is None else weights[target.subspace].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # looked at in the next lines
        outcome = operate(Part(W=before, basis=seen), edit, where)
        after = outcome.W.astype(part.dtype)
    if not np.isfinite(after).all():
        raise AblationError(where, "a result that isn't finite", "finite values", "leave it out")
    if np.array_equal(after, part):
        found = f"that it changes no entry of {target.name}"
        raise AblationError(where, found, "something to remove", "leave it out")
    mass, noise = _mass(before, after, outcome.spectrum)
    doubts = [*(outcome.spectrum.warnings if outcome.spectrum else ())]
    if math.isinf(mass):
        doubts.append("the target was 0 before this edit; the mass is relative to its new value")
    elif mass <= noise:
        doubts.append(f"mass {mass:.3g} is rounding error of {after.dtype}")
    part[...] = after
    return Removed(
        target=target.name,
        op=edit.op,
        mass=1.0 if math.isinf(mass) else mass,
        norm=frobenius(before),
        negligible=mass <= noise,
        spectrum=outcome.spectrum,
        detail=_detail(edit, outcome),
        warnings=tuple(doubts),
    )


def _detail(edit: Edit, outcome: Outcome) -> dict[str, Json]:
    if edit.like is None:
        return outcome.detail
    return {"like": edit.like.op, "seed": edit.seed, **outcome.detail}


def _apply_symmetry(
    edit: Edit, weights: Weights, edited: dict[str, Array], manifest: Manifest, where: str
) -> Removed:
    found = next((s for s in manifest.symmetries if s.name == edit.kind), None)
    if found is None or edit.seed is None:
        expected = f"a symmetry of {manifest.name}"
        raise AblationError(f"{where}.kind", f"{edit.kind!r:.60}", expected, "use one of its own")
    before = {**weights, **edited}
    try:
        moved = symmetry.act(found, symmetry.draw(found, edit.seed), before)
    except ValueError as error:
        raise AblationError(f"{where}.kind", str(error), "one that fits", "export again") from None
    edited |= moved
    whole = math.hypot(*(frobenius(before[name]) for name in moved))
    gone = math.hypot(*(frobenius(moved[name] - before[name].astype(float)) for name in moved))
    return Removed(
        target=found.name,
        op=edit.op,
        mass=gone / whole if whole else 0.0,
        norm=whole,
        detail={"seed": edit.seed, "weights": list(moved)},
    )


def _mass(before: Floats, after: Array, spectrum: Spectrum | None) -> tuple[float, float]:
    """‖ΔW‖_F / ‖W‖_F, infinite where W was 0; and what of it may be rounding error."""
    whole = frobenius(before)
    mass = frobenius(after - before) / whole if whole else math.inf
    return mass, max(
        ROUNDING * np.finfo(after.dtype).eps, 10 * spectrum.backward_error if spectrum else 0
    )


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
