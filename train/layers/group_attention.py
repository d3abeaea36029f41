"""Attention over group elements: similarity Re tr(H_i* H_j), with relative positions.

    s_hij = β_h Re tr((R_i K_h H_i)* R_j H_j) / d,   α_hi = softmax_j s_hi,
    mean_i = Σ_hj α_hij R_i* R_j H_j

R_p turns plane k by p·ω_k, K_h by its angle φ_hk (`train.layers.torus_positions`). The mean is no
element of the group; its tangent at H_i is what moves H_i.

Letters: B batch, T positions, S ≥ T places that are seen, the last T of them the positions' own,
n size of the real matrices, m planes, h heads.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from train.groups.group import Group
from train.layers.sliding_window import mean, scores
from train.layers.torus_positions import (
    from_planes,
    partners,
    row_angles,
    to_planes,
    with_still_plane,
)
from train.model import Target

Turn = tuple[Tensor, Tensor]  # cosines and sines of angles


class Heads(NamedTuple):
    """The weights of one layer's attention."""

    sharpness: Tensor  # (h), β
    frequency: Tensor  # (m), ω in radians a position
    phase: Tensor  # (h, m), φ


def attention_targets(name: str, layer: str, num_heads: int) -> list[Target]:
    """What ablations may edit of the attention of a layer, beside what is taken of its means."""
    told = f"angles by which positions turn the keys of {layer}; 0: it knows no positions"
    frequency = Target(f"{name}.frequency", f"{name}.frequency", ("freeze", "zero"), told)
    return [frequency] + [
        Target(
            f"{name}.heads.{head}",
            f"{name}.sharpness",
            ("zero",),
            f"sharpness of head {head} of {layer}; at 0 it sees all positions alike",
            ((head, head + 1),),
        )
        for head in range(num_heads)
    ]


def attend(group: Group, heads: Heads, H: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
    """The means for H (B, T, n, n) over keys (B, S, n, n); `hidden` (B, 1, T, S) adds to scores.

    A plane's two rows are one complex row here, so a rotation is one product.
    """
    if torch.onnx.is_in_onnx_export():
        return attend_reference(group, heads, H, keys, hidden)
    T, places, sought = H.shape[1], *_angles(group, heads, H, keys)
    scale = _scaled_sharpness(group, heads)
    G = torch.complex(*to_planes(group, keys)) * _turn(places)  # (B, S, p, n)
    own = torch.complex(*to_planes(group, H)).unsqueeze(1)
    Q = own * (_turn(sought) * scale.view(-1, 1, 1, 1))  # (B, h, T, p, n)
    flat = torch.view_as_real(G).flatten(2)  # (B, S, 2pn)
    scores = torch.view_as_real(Q).flatten(3).flatten(1, 2) @ flat.mT
    share = (torch.unflatten(scores, 1, (-1, T)) + hidden).softmax(-1).sum(1)  # (B, T, S)
    mean = torch.view_as_complex(
        torch.unflatten((share @ flat).to(flat.dtype), 2, (*G.shape[2:], 2))
    )
    back = mean * _turn(places[-T:]).conj()
    return from_planes(group, back.real, back.imag)


def attend_reference(group: Group, heads: Heads, H: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
    """`attend` in real numbers: what is exported."""
    T, places, sought = H.shape[1], *_angles(group, heads, H, keys)
    G = torch.cat(_rotate(to_planes(group, keys), _turn_by(places)), dim=-2).flatten(2)
    own = to_planes(group, H.unsqueeze(1))
    Q = torch.cat(_rotate(own, _turn_by(sought)), dim=-2).flatten(3)  # (B, h, T, 2pn)
    # Heads are rows: a batch of one is then the same product as one of many, bit for bit.
    scores = torch.unflatten(Q.flatten(1, 2) @ G.mT, 1, (-1, T))  # (B, h, T, S)
    scaled = scores * _scaled_sharpness(group, heads).view(-1, 1, 1)
    share = (scaled + hidden).softmax(-1).sum(1)  # (B, T, S)
    mean = torch.unflatten(share @ G, 2, (-1, group.size))
    half, back = mean.shape[2] // 2, _turn_by(-places[places.shape[0] - T :])
    return from_planes(group, *_rotate((mean[..., :half, :], mean[..., half:, :]), back))


def turns_at(group: Group, heads: Heads, places: Tensor, num_places: int) -> Turn:
    """Rows of R, and of β_h R K_h / d for all heads, at places less than `num_places`.

    Cosines and sines (..., 1 + h, n) as `turned` wants them, from one table: then no bit depends on
    which other places are asked for.
    """
    at = torch.arange(num_places).to(heads.frequency).unsqueeze(-1) * heads.frequency
    phases = torch.cat([torch.zeros_like(heads.phase[:1]), heads.phase])
    angles = row_angles(group, at.unsqueeze(1) + phases)  # (num_places, 1 + h, n)
    sharpness = _scaled_sharpness(group, heads)
    scale = torch.cat([torch.ones_like(sharpness[:1]), sharpness]).unsqueeze(-1)
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return cos.index_select(0, places), sin.index_select(0, places)


def turned(group: Group, H: Tensor, turn: Turn) -> Tensor:
    """R H, one number after the other, for R with rows (..., n) and H (..., n, n): (..., nn)."""
    (cos, sin), others = (part.unsqueeze(-1) for part in turn), partners(group).to(H.device)
    return (cos * H + sin * H.index_select(-2, others)).flatten(-2)


def attend_in_block(
    group: Group, rows: Tensor, turn: Turn, past: Tensor, own: Tensor, hidden: Tensor
) -> Tensor:
    """The mean (B, n, n) for `rows` β_h R K_h H / d (B, h, nn), R of `turn` (B, n).

    Past (B, S, nn) and block (B, N, nn) hold R_j H_j.
    """
    share = (scores(rows, past, own) + hidden).softmax(-1).sum(1, keepdim=True)  # (B, 1, S + N)
    mixed = torch.unflatten(mean(share, past, own).squeeze(1), 1, (group.size, -1))
    return torch.unflatten(turned(group, mixed, (turn[0], -turn[1])), 1, (group.size, -1))


def _angles(group: Group, heads: Heads, H: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Angles of R at all places (S, p), and of R K_h at the positions (h, T, p)."""
    S, T = keys.shape[1], H.shape[1]
    places = torch.arange(S, device=H.device).to(heads.frequency).unsqueeze(-1) * heads.frequency
    sought = heads.phase.unsqueeze(1) + places[S - T :]
    return with_still_plane(group, places), with_still_plane(group, sought)


def _scaled_sharpness(group: Group, heads: Heads) -> Tensor:
    return heads.sharpness * (group.trace_scale / group.d)


def _turn(angles: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(-1)


def _turn_by(angles: Tensor) -> Turn:
    return angles.cos(), angles.sin()


def _rotate(planes: tuple[Tensor, ...], turn: Turn) -> tuple[Tensor, Tensor]:
    (first, second), (cos, sin) = planes, (part.unsqueeze(-1) for part in turn)
    return cos * first - sin * second, sin * first + cos * second
