"""The readout of group-valued states: how near they are to prototypes in the group.

    y_v = τ Re tr(H* P_v) + b_v

"Subgroups of U(d) Induce Natural RNN and Transformer Architectures", arXiv 2602.18417, section 3.

| weight                | shape     | paper |                                        |
|-----------------------|-----------|-------|----------------------------------------|
| `readout.prototypes`  | (Y, n, n) | P     | in G, in every component of it in turn |
| `readout.temperature` | ()        | τ     | positive                               |
| `readout.bias`        | (Y)       | b     |                                        |

Letters: Y output size, n size of the real matrices, D = dim g.
"""

import torch
from torch import Tensor, nn

from train.groups.group import Group
from train.model import Target, Weights

VISIBLE = "subspace.visible"  # the name of what `visible_tangents` gives
VISIBLE_TOLERANCE = 1e-5  # singular values below this times the largest are rounding of float32


class Prototypes(nn.Module):
    """P_v = exp(tangent(u_v)) in its component, τ = exp(·), b: what a group readout learns."""

    def __init__(
        self, group: Group, num: int, std: float, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.group = group
        self.coordinates = nn.Parameter(torch.randn(num, group.dim, generator=generator) * std)
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.zeros(num))

    def weights(self) -> Weights:
        """The three weights of the table above."""
        sides = self.group.components(len(self.coordinates)).to(self.coordinates)
        return {
            "readout.prototypes": self.group.exp(self.group.tangent(self.coordinates)) @ sides,
            "readout.temperature": self.log_temperature.exp(),
            "readout.bias": self.bias,
        }


def read(group: Group, weights: Weights, H: Tensor) -> Tensor:
    """τ Re tr(H* P_v) + b_v: (..., n, n) -> (..., Y)."""
    P = weights["readout.prototypes"].flatten(-2)
    scale = weights["readout.temperature"] * group.trace_scale
    return scale * (H.flatten(-2) @ P.mT) + weights["readout.bias"]


def visible_tangents(group: Group, weights: Weights, logits: bool) -> Tensor:
    """Orthonormal basis of the tangents at I that the readout sees, in coordinates: (r, D).

    At H, dy_v along H X is τ <X, proj(H* P_v)>: the tangents that are seen are the span of
    proj(H* P_v), or, since logits count up to a shift only, of proj(H* (P_v - mean P)). They depend
    on H. These are those at H = I, where streams start; the others are what keeps a memory there.
    In float64, singular values above `VISIBLE_TOLERANCE` of the largest.
    """
    P = weights["readout.prototypes"].double()
    seen = group.coordinates(P - P.mean(0) if logits else P)
    _, sizes, rows = torch.linalg.svd(seen, full_matrices=False)
    visible: Tensor = rows[sizes > VISIBLE_TOLERANCE * sizes.max()]
    return visible.float()


PROTOTYPES = Target(
    "prototypes",
    "readout.prototypes",
    ("zero",),
    "group elements that the outputs compare the state with",
)
