"""Targets of ablations in the manifest's words, with their subspaces and symmetries."""

import torch

from serve.manifest.page import Action, Manifest, Symmetry, Target, TaskSpec
from train.model import Model, Weights

ORTHONORMAL = 1e-5  # largest |B Bᵀ - I| of a basis B
SAME = 1e-3  # largest |difference| of projections on one subspace, found twice


def describe_targets(model: Model, weights: Weights) -> tuple[Target, ...]:
    """The model's targets, with the shapes of what they name."""
    return tuple(
        Target(**target._asdict(), shape=_shape(target.slice, weights[target.weight].shape))
        for target in model.targets()
    )


def describe_symmetries(model: Model) -> tuple[Symmetry, ...]:
    """The model's symmetries."""
    return tuple(
        Symmetry(
            **{key: value for key, value in symmetry._asdict().items() if key != "actions"},
            actions=tuple(Action(**action._asdict()) for action in symmetry.actions),
        )
        for symmetry in model.symmetries()
    )


def find_subspaces(model: Model, weights: Weights, task: TaskSpec | None) -> Weights:
    """The bases that targets name. Outputs that are no logits count as they are."""
    return model.subspaces(weights, task is None or task.targets == "classes")


def check_subspaces(manifest: Manifest, model: Model, weights: Weights, stored: Weights) -> str:
    """What the stored bases are, in words; `ValueError` where one isn't that of the weights."""
    named = {t.subspace: t.shape[0] for t in manifest.targets if t.subspace is not None}
    found, told = find_subspaces(model, weights, manifest.task), list[str]()
    for name, D in named.items():
        basis = stored.get(name)
        if basis is None or basis.ndim != 2 or basis.shape[1] != D:
            shape = None if basis is None else tuple(basis.shape)
            raise ValueError(f"{name}: found shape {shape}, expected (r, {D})")
        if name not in found:
            raise ValueError(f"{name}: found a subspace that a {manifest.family} doesn't have")
        ours, theirs = (B.double().mT @ B.double() for B in (found[name], basis))
        rows = basis.double()
        error = float((rows @ rows.mT - torch.eye(len(rows))).abs().max()) if len(rows) else 0.0
        if error > ORTHONORMAL:
            raise ValueError(f"{name}: found rows that are orthonormal to {error:.1e} only")
        if (difference := float((ours - theirs).abs().max())) > SAME:
            raise ValueError(f"{name}: found a projection {difference:.1e} off that of the weights")
        told.append(f"{name} has {len(rows)} of {D} directions")
    return "; ".join(told) or "none"


def _shape(slices: tuple[tuple[int, int], ...] | None, whole: torch.Size) -> tuple[int, ...]:
    if slices is None:
        return tuple(whole)
    sizes = tuple(stop - start for start, stop in slices)
    return sizes if max(sizes) > 1 else (1,)  # a number is no square matrix
