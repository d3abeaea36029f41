"""Rotary positions: planes of every head turn by place, so that only lags count.

The halves of a head hold first and second rows of its planes.

Letters: d width, H heads, S places.
"""

import torch
from torch import Tensor

ROTARY_BASE = 100.0  # planes turn by 1 to almost 1/100 radian a character

Turn = tuple[Tensor, Tensor, Tensor]  # cosines, sines, and of each number the other of its plane


def turns(heads: int, d: int, num_places: int, places: Tensor, like: Tensor) -> Turn:
    """What `turned` needs at places (M); from one table, so that others change no bit."""
    half = d // heads // 2
    angles = angles_at(num_places, 2 * half).repeat(1, 2 * heads)  # (num_places, d)
    sign = torch.tensor([-1.0, 1.0]).repeat_interleave(half).repeat(heads)
    cos, sin = (value.to(like) for value in (angles.cos(), angles.sin() * sign))
    other = torch.arange(d).view(heads, 2, half).flip(1).flatten()
    return cos.index_select(0, places), sin.index_select(0, places), other.to(places.device)


def angles_at(S: int, size: int) -> Tensor:
    """Angles of the planes of a head at places 0 ... S-1: (S, d/2H)."""
    half = size // 2
    speeds = ROTARY_BASE ** (-torch.arange(half) / half)
    return torch.arange(float(S)).unsqueeze(-1) * speeds


def turned(x: Tensor, turn: Turn) -> Tensor:
    """`rotate` of all heads side by side: x (..., d) by cosines and sines (..., d)."""
    cos, sin, other = turn
    return cos * x + sin * x.index_select(-1, other)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Planes of x (..., d/H), of which the halves hold first and second rows, turned."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
