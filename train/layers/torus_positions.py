"""Positions native to a matrix group: rotation by an element of its maximal torus.

    R_p = rotation by p·ω_k in plane k,   R_i* R_j = R_(j-i)

R_p acts from the left, so it leaves right multiplication, by which states move, alone; and since
only R_i* R_j ever matters, everything is relative. Plane k has the rows k and m + k of the first 2m
rows, m = ⌊n/2⌋; for the torus of SO(n) the rows 2k and 2k + 1. A row that is left over stays. For
SU(d), R_p lies in the torus of U(d): states stay in SU(d) all the same, as tangents are projected.

Letters: n size of the real matrices, m number of planes.
"""

import torch
from torch import Tensor

from train.groups.group import Group
from train.groups.torus import Torus


def num_planes(group: Group) -> int:
    """m."""
    return group.size // 2


def to_planes(group: Group, X: Tensor) -> tuple[Tensor, Tensor]:
    """First and second rows of all planes: (..., n, n) -> twice (..., ⌈n/2⌉, n).

    The row that is left over is a plane's first row; its second is 0.
    """
    m = num_planes(group)
    if isinstance(group, Torus):
        return X[..., 0::2, :], X[..., 1::2, :]
    first, second, rest = X[..., :m, :], X[..., m : 2 * m, :], X[..., 2 * m :, :]
    if group.size == 2 * m:
        return first, second
    return torch.cat([first, rest], dim=-2), torch.cat([second, torch.zeros_like(rest)], dim=-2)


def from_planes(group: Group, first: Tensor, second: Tensor) -> Tensor:
    """`to_planes` undone: twice (..., ⌈n/2⌉, n) -> (..., n, n)."""
    m = num_planes(group)
    if isinstance(group, Torus):
        return torch.stack([first, second], dim=-2).flatten(-3, -2)
    return torch.cat([first[..., :m, :], second[..., :m, :], first[..., m:, :]], dim=-2)


def with_still_plane(group: Group, angles: Tensor) -> Tensor:
    """Angles (..., m) with a 0 for the row that is left over, if there is one: (..., ⌈n/2⌉)."""
    if group.size == 2 * num_planes(group):
        return angles
    return torch.cat([angles, torch.zeros_like(angles[..., :1])], dim=-1)


def row_angles(group: Group, angles: Tensor) -> Tensor:
    """Angles θ of rows, with which R X = cos θ · X + sin θ · X[partners]: (..., m) -> (..., n)."""
    angles = with_still_plane(group, angles).unsqueeze(-1)
    return from_planes(group, -angles, angles).squeeze(-1)


def partners(group: Group) -> Tensor:
    """The other row of the plane of each row; of a row that is left over, any: (n)."""
    first, second = to_planes(group, torch.arange(group.size).unsqueeze(-1))
    return from_planes(group, second, first).squeeze(-1)
