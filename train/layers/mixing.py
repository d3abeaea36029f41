"""Mixing: what becomes of a tangent before it is taken.

| mixing     | parameters       | tangent taken for Ξ = proj(A), coordinates u      |
|------------|------------------|---------------------------------------------------|
| `none`     | -                | Ξ                                                 |
| `linear`   | Γ: (D, D)        | coordinates Γ u                                   |
| `low-rank` | (D, r) and (r,D) | the same, Γ = I + U W                             |
| `bch`      | C ∈ g: D numbers | Ξ + C + [Ξ, C]/2 + ([Ξ, [Ξ, C]] + [C, [C, Ξ]])/12 |

Γ starts near I and C at 0, so a mixed model starts as the unmixed one. The last row is log(exp Ξ
exp C) to third order (Baker, Campbell, Hausdorff): intrinsic to the group, it needs no basis. The
names are those of arXiv 2602.18417, section 3; the forms are our reading of them.

Letters: n matrix size, D = dim g.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from train.groups.group import Group
from train.groups.matrix_exp import is_observed
from train.groups.native import available, osm_scan
from train.groups.orthogonal import SO, O
from train.layers.group_readout import VISIBLE, visible_tangents
from train.model import Target, Weights

MATRICES = ("linear", "low-rank")
MIXINGS = (*MATRICES, "bch", "none")
MIXING_STD = 0.02


class Mixing(nn.Module):
    """The parameters of one map g -> g."""

    def __init__(
        self, kind: str, group: Group, rank: int, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.kind, self.group, D = kind, group, group.dim

        def normal(std: float, *shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator) * std

        if kind == "linear":
            self.matrix = nn.Parameter(torch.eye(D) + normal(MIXING_STD, D, D))
        elif kind == "low-rank":
            self.left = nn.Parameter(normal(MIXING_STD, D, rank))
            self.right = nn.Parameter(normal(D**-0.5, rank, D))
        elif kind == "bch":
            self.constant = nn.Parameter(normal(MIXING_STD, D))

    def weights(self, name: str) -> Weights:
        """Γ under `name`, or C under `name.constant`, or nothing."""
        if self.kind == "linear":
            return {name: self.matrix}
        if self.kind == "low-rank":
            return {name: torch.eye(self.group.dim).to(self.left) + self.left @ self.right}
        return {f"{name}.constant": self.group.tangent(self.constant)} if self.kind == "bch" else {}


def mixing_targets(kind: str, group: Group, name: str, taken: str) -> list[Target]:
    """Γ, and of groups that commute its rows, or C; `taken` says whose tangent, in words."""
    if kind == "bch":
        meaning = f"constant C that is joined to {taken}; 0: no mixing"
        return [Target(f"{name}.constant", f"{name}.constant", ("zero",), meaning)]
    if kind == "none":
        return []
    ops, D = ("schur", "zero", "identity", "project"), group.dim
    whole = Target(name, name, ops, f"linear map Γ to {taken}", subspace=VISIBLE)
    planes = range(D if group.algebra is None else 0)
    return [whole] + [
        Target(
            f"{name}.planes.{k}",
            name,
            ("freeze", "zero"),
            f"what turns plane {k}, in {taken}",
            ((k, k + 1), (0, D)),
        )
        for k in planes
    ]


def mixing_subspaces(kind: str, group: Group, weights: Weights, logits: bool) -> Weights:
    """The subspace that the targets above name."""
    return {VISIBLE: visible_tangents(group, weights, logits)} if kind in MATRICES else {}


def step(
    group: Group, weights: Weights, name: str, H: Tensor, A: Tensor, gain: Tensor | None = None
) -> Tensor:
    """H exp(gain · Γ proj(H* A)), in one kernel where there is one: (..., n, n).

    In an ONNX export on SO(d) or O(d) this is one `torsor.MixStep` node.
    """
    if _observers:
        _tell(mix(group, weights, name, H.mT @ A) * (1.0 if gain is None else gain))
    if torch.onnx.is_in_onnx_export() and isinstance(group, SO | O) and name in weights:
        return _export_step(group, H, A, weights[name], gain)
    if is_native(group, weights, name, H, A) and (gain is None or name in weights):
        mixing = weights.get(name)
        mixing = mixing if mixing is None or gain is None else gain * mixing
        rows = torch.arange(H[..., 0, 0].numel()).unsqueeze(0)
        moved = osm_scan(A.flatten(0, -3), rows, H.flatten(0, -3), mixing)
        return moved.view(H.shape)
    S = mix(group, weights, name, H.mT @ A)
    return group.move(H, S if gain is None else gain * S)


@contextmanager
def observed_norms() -> Iterator[list[Tensor]]:
    """The norms ‖S‖_F / √2 (radians) of the tangents of all calls of `step` inside the block.

    On SO(d) that is √(Σ θ²) over the angles θ by which exp(S) turns its planes, on U(d) over those
    of its eigenvalues.
    """
    norms = list[Tensor]()
    _observers.append(norms.append)
    try:
        yield norms
    finally:
        _observers.remove(norms.append)


_observers: list[Callable[[Tensor], None]] = []


def _tell(S: Tensor) -> None:
    for observe in _observers:
        observe(S.flatten(-2).norm(dim=-1) / math.sqrt(2.0))


def _export_step(group: Group, H: Tensor, A: Tensor, mixing: Tensor, gain: Tensor | None) -> Tensor:
    G = (mixing if gain is None else gain * mixing).mT
    inputs = (H, A.expand(H.shape), G)
    exported: Tensor = torch.onnx.ops.symbolic(
        "torsor::MixStep", inputs, {"d": group.d}, dtype=H.dtype, shape=H.shape, version=1
    )
    return exported


def is_native(group: Group, weights: Weights, name: str, *tensors: Tensor) -> bool:
    """Whether `train.groups.native.osm_scan` can take such steps."""
    return (
        isinstance(group, SO | O)
        and f"{name}.constant" not in weights
        and not (torch.onnx.is_in_onnx_export() or is_observed())
        and available(*tensors)
    )


def mix(group: Group, weights: Weights, name: str, A: Tensor) -> Tensor:
    """The tangent to take for an ambient A, as the weights under `name` say: (..., n, n)."""
    if (constant := weights.get(f"{name}.constant")) is not None:
        return join(group.project(A), constant)
    u = group.coordinates(A)
    return group.tangent(u @ weights[name].mT if name in weights else u)


def join(X: Tensor, C: Tensor) -> Tensor:
    """log(exp X exp C) to third order: (..., n, n)."""
    XC = bracket(X, C)
    return X + C + XC / 2 + (bracket(X, XC) - bracket(C, XC)) / 12


def bracket(X: Tensor, Y: Tensor) -> Tensor:
    """[X, Y] = XY - YX."""
    return X @ Y - Y @ X
