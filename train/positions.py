"""Positions native to a matrix group: rotation by an element of its maximal torus.

    R_p = rotation by p·ω_k in plane k,   R_i* R_j = R_(j-i)

R_p acts from the left, so it leaves right multiplication, by which states move, alone; and since
only R_i* R_j ever matters, everything is relative. Plane k has the rows k and m + k of the first 2m
rows, m = ⌊n/2⌋; for the torus of SO(n) the rows 2k and 2k + 1.

Letters: n size of the real matrices, m number of planes.
"""

import torch
from torch import Tensor

from train.groups.group import Group
from train.groups.torus import Torus


def num_planes(group: Group) -> int:
    """m."""
    return group.size // 2


def plane_rows(group: Group) -> Tensor:
    """Rows in the order: first axes, second axes, what is left: (n)."""
    rows = torch.arange(group.size, device="cpu")
    return torch.cat([rows[0::2], rows[1::2]]) if isinstance(group, Torus) else rows


def rotate(X: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """R X for rows of X in the order of `plane_rows`; X (..., n, n), cos and sin (..., m)."""
    m = cos.shape[-1]
    cos, sin = cos.unsqueeze(-1), sin.unsqueeze(-1)
    first, second, rest = X[..., :m, :], X[..., m : 2 * m, :], X[..., 2 * m :, :]
    turned = [cos * first - sin * second, sin * first + cos * second]
    if X.shape[-2] == 2 * m:
        return torch.cat(turned, dim=-2)
    return torch.cat([*turned, rest.expand(*turned[0].shape[:-2], -1, -1)], dim=-2)
