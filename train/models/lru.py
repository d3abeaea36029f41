"""LRU: linear recurrences with a diagonal of complex numbers.

Orvieto, Smith, Gu, Fernando, Gulcehre, Pascanu and De, "Resurrecting Recurrent Neural Networks for
Long Sequences", arXiv 2303.06349. h' = λ ∘ h + exp(gamma_log) ∘ B u,  y = Re[C h'] + D ∘ u, with
λ = exp(-exp(nu_log) + i exp(theta_log)). Each complex number is a plane of the stack.

Letters: D width, L layers, n complex numbers a layer.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import nn

from train.layers.plane_stack import Layer, PlaneStack, check_ring
from train.settings import check_range

MAX_SIZE = 16_384
MAX_LAYERS = 64
SMALLEST = 1e-6  # of random numbers whose logarithm is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class LruConfig:
    """Sizes and initial ranges of an LRU."""

    input_size: int
    output_size: int
    layers: int = field(default=3, metadata={"help": "blocks"})
    width: int = field(default=116, metadata={"help": "numbers that go from block to block"})
    n: int = field(default=0, metadata={"help": "complex numbers of a block's state; 0: width / 4"})
    r_min: float = field(default=0.1, metadata={"help": "smallest initial modulus of λ"})
    r_max: float = field(default=0.99, metadata={"help": "largest initial modulus of λ"})
    max_phase: float = field(default=math.pi, metadata={"help": "largest initial angle, radians"})

    def __post_init__(self) -> None:
        check_range("layers", self.layers, 1, MAX_LAYERS)
        check_range("width", self.width, 1, MAX_SIZE)
        check_range("n", self.n, 0, MAX_SIZE)
        check_ring("r", self.r_min, self.r_max, self.max_phase)

    @property
    def num_numbers(self) -> int:
        """n, or a quarter of the width."""
        return self.n or max(1, self.width // 4)


class Lru(PlaneStack):
    """The stack of `train.layers.plane_stack` with heads of one plane.

    | parameter   | shape        | paper                                                     |
    |-------------|--------------|-----------------------------------------------------------|
    | `nu_log`    | (L, n)       | abs λ = exp(-exp(nu_log)): `decay`                        |
    | `theta_log` | (L, n)       | arg λ = exp(theta_log): `angle`                           |
    | `gamma_log` | (L, n)       | normaliser, starts at √(1 - abs λ²): part of `input`      |
    | `B`         | (L, n, 2, D) | Re B, Im B                                                |
    | `C`         | (L, D, n, 2) | Re C, Im C; `output` has Re C, -Im C                      |
    """

    family = "lru"
    Config = LruConfig
    learning_rate = 0.01
    learning_rates = {"nu_log": 0.1, "theta_log": 0.1, "gamma_log": 0.1}
    weight_decays = PlaneStack.weight_decays | dict.fromkeys(learning_rates, 0.0)

    def __init__(self, config: LruConfig, generator: torch.Generator | None = None) -> None:
        L, D, n = config.layers, config.width, config.num_numbers
        super().__init__(L, D, config.input_size, config.output_size, generator)
        self.config = config

        def normal(std: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * std)

        ring, turn = torch.rand(2, L, n, generator=generator).clamp_min(SMALLEST)
        square = ring * (config.r_max**2 - config.r_min**2) + config.r_min**2  # abs λ²
        self.nu_log = nn.Parameter(torch.log(-0.5 * torch.log(square)))
        self.theta_log = nn.Parameter(torch.log(config.max_phase * turn))
        self.gamma_log = nn.Parameter(0.5 * torch.log1p(-square))
        self.B = normal((2 * D) ** -0.5, L, n, 2, D)
        self.C = normal(n**-0.5, L, D, n, 2)

    def plane_sizes(self) -> tuple[int, int]:
        """n and 1."""
        return len(self.nu_log[0]), 1

    def recurrences(self) -> Layer:
        """λ as modulus and angle, normalised B, and C with its imaginary part's sign turned."""
        scale = self.gamma_log.exp()[..., None, None]
        return {
            "decay": torch.exp(-torch.exp(self.nu_log)),
            "angle": self.theta_log.exp().unsqueeze(-1),
            "input": (scale * self.B).flatten(1, 2),
            "output": (self.C * torch.tensor([1.0, -1.0]).to(self.C)).flatten(2),
        }
