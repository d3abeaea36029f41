"""Attention without softmax: a sum over the past, moved on by one position or by many.

Letters: B batch, T time, h heads, n values of a head, a attention dimension of a head, γ decay.
"""

from collections.abc import Callable

import torch
from torch import Tensor

CHUNK = 64  # positions that see each other through a mask; what is older is in the sum

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


def attend_one(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None
) -> tuple[Tensor, Tensor]:
    """S' = γ S + v kᵀ and S' q: (B, h, n, a), (B, h, a), (B, h, a), (B, h, n), (h)."""
    kept = S if decay is None else decay.view(-1, 1, 1) * S
    S = kept + v.unsqueeze(-1) * k.unsqueeze(-2)
    return S, (S @ q.unsqueeze(-1)).squeeze(-1)


def attend_all(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`attend_one` folded over the first axis of q, k and v (T, B, h, ...)."""
    decay = (q.new_ones(q.shape[-2]) if decay is None else decay).view(-1, 1, 1)
    ys = []
    for chunk in zip(*(torch.split(z, CHUNK) for z in (q, k, v)), strict=True):
        q, k, v = (z.permute(1, 2, 0, 3) for z in chunk)  # (B, h, T, ...)
        S, y = _attend_chunk(S, q, k, v, decay)
        ys.append(y.permute(2, 0, 1, 3))
    return S, torch.cat(ys)


def _attend_chunk(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    # y_i = Σ_{j <= i} γ^(i - j) (k_j · q_i) v_j + γ^(i + 1) S q_i;
    times = torch.arange(q.shape[-2], device=q.device)
    ages = times.unsqueeze(-1) - times  # (T, T): of j at i
    mask = torch.where(ages >= 0, decay ** ages.clamp(min=0), 0.0)  # (h, T, T)
    y = (q @ k.mT * mask) @ v + decay ** (times + 1).unsqueeze(-1) * (q @ S.mT)
    return decay ** len(times) * S + (v * mask[:, -1].unsqueeze(-1)).mT @ k, y
