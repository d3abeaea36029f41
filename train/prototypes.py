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


PROTOTYPES = Target(
    "prototypes",
    "readout.prototypes",
    ("zero",),
    "group elements that the logits compare the state with",
)
