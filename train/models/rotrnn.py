"""RotRNN: linear recurrences that rotate, normalised so that the state keeps its norm.

Biegun, Dolga, Cunningham and Barber, "RotRNN: Modelling Long Sequences with Rotations", arXiv
2407.07239. A head of size N moves by x' = γ P Θ Pᵀ x + ξ B u and is read by C x', with P in SO(N),
Θ a rotation of N/2 planes and ξ = √((1 - γ²) / tr BᵀB). Streams carry z = Pᵀ x: in it Θ turns
planes, and P is part of what drives them (Pᵀ ξ B) and of what reads them (C P).

Letters: D width, L layers, H heads, N head size, n = H N state size.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from train.groups.matrix_exp import matrix_exp
from train.layers.plane_stack import Layer, PlaneStack, check_ring
from train.model import Target
from train.settings import check_range

TINY = 1e-30  # so a B of zeros drives nothing, instead of dividing by 0
MAX_SIZE = 16_384
MAX_LAYERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RotRnnConfig:
    """Sizes and initial ranges of a RotRNN."""

    input_size: int
    output_size: int
    layers: int = field(default=3, metadata={"help": "blocks"})
    width: int = field(default=112, metadata={"help": "numbers that go from block to block"})
    n: int = field(
        default=0, metadata={"help": "state of a block, a multiple of 2 heads; 0: about width / 2"}
    )
    heads: int = field(default=8, metadata={"help": "parts of the state with a decay each"})
    gamma_min: float = field(default=0.1, metadata={"help": "smallest initial decay"})
    gamma_max: float = field(default=0.99, metadata={"help": "largest initial decay"})
    max_phase: float = field(default=math.pi, metadata={"help": "largest initial angle, radians"})

    def __post_init__(self) -> None:
        check_range("layers", self.layers, 1, MAX_LAYERS)
        check_range("width", self.width, 1, MAX_SIZE)
        check_range("n", self.n, 0, MAX_SIZE)
        check_range("heads", self.heads, 1, MAX_SIZE // 2)
        if self.n % (2 * self.heads):
            raise ValueError(f"n: found {self.n}, expected a multiple of {2 * self.heads}")
        check_ring("gamma", self.gamma_min, self.gamma_max, self.max_phase)

    @property
    def head_size(self) -> int:
        """N: n / heads, or what brings n next to half the width."""
        half = 2 * max(1, (self.width + 2 * self.heads) // (4 * self.heads))
        return self.n // self.heads or half


class RotRnn(PlaneStack):
    """The stack of `train.layers.plane_stack` with heads that rotate.

    | parameter   | shape        | paper                                                     |
    |-------------|--------------|-----------------------------------------------------------|
    | `theta`     | (L, H, N/2)  | θ, one a plane: `angle`                                   |
    | `gamma_log` | (L, H)       | γ = exp(-exp(gamma_log)): `decay`                         |
    | `M`         | (L, H, N, N) | P = exp(M - Mᵀ)                                           |
    | `B`         | (L, H, N, D) | Pᵀ ξ B: `input`; its scale changes nothing                |
    | `C`         | (L, D, n)    | C P: `output`                                             |
    """

    family = "rotrnn"
    Config = RotRnnConfig
    learning_rate = 0.02
    learning_rates = {"theta": 0.1, "gamma_log": 0.1, "M": 0.1}
    weight_decays = PlaneStack.weight_decays | {"theta": 0.0, "gamma_log": 0.0}

    def __init__(self, config: RotRnnConfig, generator: torch.Generator | None = None) -> None:
        L, H, N, D = config.layers, config.heads, config.head_size, config.width
        super().__init__(L, D, config.input_size, config.output_size, generator)
        self.config = config

        def normal(std: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * std)

        def between(start: float, end: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(start + (end - start) * torch.rand(*shape, generator=generator))

        self.theta = between(0.0, config.max_phase, L, H, N // 2)
        least, most = (math.log(-math.log(g)) for g in (config.gamma_max, config.gamma_min))
        self.gamma_log = between(least, most, L, H)
        self.M = normal(N**-0.5, L, H, N, N)
        self.B = normal(D**-0.5, L, H, N, D)
        self.C = normal(H**-0.5, L, D, H * N)

    def plane_sizes(self) -> tuple[int, int]:
        """H and N / 2."""
        return self.config.heads, self.config.head_size // 2

    def recurrences(self) -> Layer:
        """γ, θ, Pᵀ ξ B and C P."""
        L, H, N, D = self.B.shape
        gamma, P = torch.exp(-torch.exp(self.gamma_log)), self.rotations()
        xi = torch.sqrt(
            (1.0 - gamma.square()) / self.B.square().sum((-2, -1)).clamp(min=TINY)
        )  # (L, H)
        read = self.C.view(L, D, H, N).transpose(1, 2) @ P  # (L, H, D, N)
        return {
            "decay": gamma,
            "angle": self.theta,
            "input": (P.mT @ (xi[..., None, None] * self.B)).flatten(1, 2),
            "output": read.transpose(1, 2).flatten(2),
        }

    def rotations(self) -> Tensor:
        """P of all layers and heads: (L, H, N, N)."""
        return matrix_exp(self.M - self.M.mT)

    def targets(self) -> list[Target]:
        """Those of the stack, and each head."""
        layers, heads = range(self.config.layers), range(self.config.heads)
        return super().targets() + [t for i in layers for j in heads for t in self._head(i, j)]

    def _head(self, layer: int, head: int) -> list[Target]:
        N, at = self.config.head_size, (head, head + 1)
        rows = ((head * N, (head + 1) * N), (0, self.config.width))
        name, meaning = f"layers.{layer}.heads.{head}", "what drives this head; 0 keeps it at rest"
        angles, decay = "angles of this head; at 0 it doesn't turn", "decay of this head; 0 forgets"
        whole = (at, (0, N // 2))
        return [
            Target(name, f"layers.{layer}.input", ("zero",), meaning, rows),
            Target(f"{name}.angle", f"layers.{layer}.angle", ("freeze", "zero"), angles, whole),
            Target(f"{name}.decay", f"layers.{layer}.decay", ("zero",), decay, (at,)),
        ]
