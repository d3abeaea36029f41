"""Linear recurrences over time, folded in parallel.

    z_t = a_t z_{t-1} + b_t

- `associative_scan` is the general form: any associative law, in 2 log2(T) calls of it.
- `linear_scan` is for a factor a that stays the same, and for one thread: it moves chunks side by
  side, √T steps inside and √T steps across, and reads its data thrice instead of log2(T) times.

Time is the first dimension.

Letters: T time, C positions a chunk, K chunks.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Elements = tuple[Tensor, ...]  # each (T, ...)


def associative_scan(law: Callable[[Elements, Elements], Elements], elements: Elements) -> Elements:
    """e_0, e_0 ∘ e_1, ..., e_0 ∘ ... ∘ e_{T-1}, where `law(earlier, later)` is ∘, side by side."""
    T = len(elements[0])
    if T < 2:
        return elements
    even, odd = (tuple(e[start:T:2] for e in elements) for start in (0, 1))
    pairs = law(tuple(e[: T // 2] for e in even), odd)  # e_0 ∘ e_1, e_2 ∘ e_3, ...
    ends = associative_scan(law, pairs)  # what ends at 1, 3, 5, ...
    later = tuple(e[1:] for e in even)
    inner = law(tuple(e[: len(n)] for e, n in zip(ends, later, strict=True)), later)
    firsts = (torch.cat([e[:1], i]) for e, i in zip(even, inner, strict=True))  # at 0, 2, 4, ...
    return tuple(_interleave(f, e) for f, e in zip(firsts, ends, strict=True))


def then_rotate(earlier: Elements, later: Elements) -> Elements:
    """(γ_i γ_j, θ_i + θ_j, γ_j R(θ_j) z_i + z_j): the law of z' = γ R(θ) z + b on planes.

    γ and θ are (T, ...), z is (T, ..., 2), all of one broadcast shape.
    """
    (decay_i, angle_i, z_i), (decay_j, angle_j, z_j) = earlier, later
    return decay_i * decay_j, angle_i + angle_j, rotate(decay_j, angle_j, z_i) + z_j


def rotate(decay: Tensor, angle: Tensor, z: Tensor) -> Tensor:  # (..., 2) -> (..., 2)
    """γ R(θ) z on planes: R(θ) = [[cos θ, -sin θ], [sin θ, cos θ]]."""
    cos, sin = decay * angle.cos(), decay * angle.sin()
    x, y = z[..., 0], z[..., 1]
    return torch.stack([cos * x - sin * y, sin * x + cos * y], -1)


def linear_scan(factor: Tensor, driven: Tensor, start: Tensor) -> Tensor:
    """All z_t = a z_{t-1} + b_t, elementwise: a (p), b (T, ..., p), z_0 (..., p) -> (T, ..., p)."""
    scanned: Tensor = _LinearScan.apply(factor, driven, start)  # type: ignore[no-untyped-call]
    return scanned


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, factor: Tensor, driven: Tensor, start: Tensor) -> Tensor:
        zs = _fold(factor, driven, start)
        ctx.save_for_backward(factor, start, zs)
        return zs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, wish: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        factor, start, zs = ctx.saved_tensors
        # the wishes of all later times, gathered on the way back
        gathered = _fold(factor.conj(), wish.flip(0), torch.zeros_like(start)).flip(0)
        before = gathered[0] * start.conj()
        others = (gathered[1:] * zs[:-1].conj()).flatten(0, -2).sum(0)
        return before.flatten(0, -2).sum(0) + others, gathered, gathered[0] * factor.conj()


def _fold(factor: Tensor, driven: Tensor, start: Tensor) -> Tensor:
    T = len(driven)
    C = math.isqrt(max(T - 1, 0)) + 1
    K = -(-T // C)
    whole = driven.new_zeros(K * C, *driven.shape[1:])
    whole[:T] = driven
    whole[0].addcmul_(factor, start)
    zs = whole.view(K, C, *driven.shape[1:])
    for position in range(1, C):
        zs[:, position].addcmul_(factor, zs[:, position - 1])
    powers = factor ** torch.arange(1, C + 1, device=factor.device).unsqueeze(-1)  # (C, p)
    for chunk in range(1, K):
        zs[chunk, -1].addcmul_(powers[-1], zs[chunk - 1, -1])
    inner = powers[:-1].view(C - 1, *[1] * (driven.ndim - 2), len(factor))
    zs[1:, :-1].addcmul_(inner, zs[:-1, -1:])
    return whole[:T]


def _interleave(evens: Tensor, odds: Tensor) -> Tensor:
    whole = torch.empty(len(evens) + len(odds), *evens.shape[1:]).to(evens)
    whole[0::2], whole[1::2] = evens, odds
    return whole
