"""OSM-RNN: a recurrent model whose hidden state is an element of a matrix group.

"Subgroups of U(d) Induce Natural RNN and Transformer Architectures", arXiv 2602.18417, section 3.
Where the paper leaves a choice open: tokens are ambient matrices, mixing is a full D×D map that
starts near the identity, H_0 = I.

Letters: B batch, T time, V vocabulary, d matrix size, D = dim g.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from train.groups import SO
from train.model import Model, State, Target, Weights
from train.settings import check_range

# A step turns planes by about √(2d)·std radians; two radians at the start never learn.
TOKEN_STD = 0.05
PROTOTYPE_STD = 0.4
MIXING_STD = 0.02
MAX_D = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class OsmRnnConfig:
    """Sizes of an OSM-RNN over SO(d)."""

    vocabulary_size: int
    d: int = field(default=22, metadata={"help": "matrix size; the state is in SO(d)"})
    mixing: str = field(
        default="linear",
        metadata={"help": "map of the tangent before exp", "choices": ("linear", "none")},
    )

    def __post_init__(self) -> None:
        check_range("d", self.d, 2, MAX_D)
        if self.mixing not in ("linear", "none"):
            raise ValueError(f"mixing: found {self.mixing!r}, expected 'linear' or 'none'")


class OsmRnn(Model):
    """H' = H exp(Γ proj(Hᵀ M_x)),  logits_v = τ tr(H'ᵀ P_v) + b_v.

    | weight                | shape     | paper |                                         |
    |-----------------------|-----------|-------|-----------------------------------------|
    | `input`               | (V, d, d) | M     | any matrices                            |
    | `mixing`              | (D, D)    | Γ     | on coordinates of so(d); absent if none |
    | `readout.prototypes`  | (V, d, d) | P     | in SO(d)                                |
    | `readout.temperature` | ()        | τ     | positive                                |
    | `readout.bias`        | (V)       | b     |                                         |
    """

    family = "osm-rnn"
    Config = OsmRnnConfig
    learning_rate = 0.015
    learning_rates = {"tokens": 0.5, "mixing": 0.25}
    correct_every = 16

    def __init__(self, config: OsmRnnConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config, self.group = config, SO(config.d)
        V, d, D = config.vocabulary_size, config.d, self.group.dim

        def normal(std: float, *shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator) * std

        self.tokens = nn.Parameter(normal(TOKEN_STD, V, d, d))
        self.prototype_coordinates = nn.Parameter(normal(PROTOTYPE_STD, V, D))
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.zeros(V))
        if config.mixing == "linear":
            self.mixing = nn.Parameter(torch.eye(D) + normal(MIXING_STD, D, D))

    def weights(self) -> Weights:
        """Prototypes exp(·) in the group, temperature exp(·)."""
        weights = {
            "input": self.tokens,
            "readout.prototypes": self.group.exp(self.group.tangent(self.prototype_coordinates)),
            "readout.temperature": self.log_temperature.exp(),
            "readout.bias": self.bias,
        }
        return weights | ({"mixing": self.mixing} if self.config.mixing == "linear" else {})

    def init_state(self, batch: int) -> State:
        """H = I: (B, d, d)."""
        identity = self.group.identity().to(self.bias)
        return {"H": identity.expand(batch, -1, -1).contiguous()}

    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        """H' = H exp(Γ proj(Hᵀ M_x))."""
        return {"H": self._move(weights, state["H"], weights["input"].index_select(0, x))}

    def readout(self, weights: Weights, state: State) -> Tensor:
        """logits_v = τ tr(Hᵀ P_v) + b_v: (..., V)."""
        H, P = state["H"].flatten(-2), weights["readout.prototypes"].flatten(-2)
        return weights["readout.temperature"] * (H @ P.mT) + weights["readout.bias"]

    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        """The loop of updates; tokens are gathered and states read out for all times at once."""
        H, Hs = state["H"], []
        for M in weights["input"][xs]:  # (T, B, d, d)
            H = self._move(weights, H, M)
            Hs.append(H)
        return {"H": H}, self.readout(weights, {"H": torch.stack(Hs)})

    def correct(self, state: State) -> State:
        """One Newton-Schulz step towards SO(d)."""
        return {"H": self.group.correct(state["H"])}

    def targets(self) -> list[Target]:
        """Γ and the prototypes."""
        mixing = Target(
            "mixing",
            "mixing",
            ("schur", "zero", "identity"),
            "linear map Γ from the tangent that the token asks for to the tangent that is taken",
        )
        prototypes = Target(
            "prototypes",
            "readout.prototypes",
            ("zero",),
            "group elements that the logits compare the state with",
        )
        return [mixing, prototypes] if self.config.mixing == "linear" else [prototypes]

    def _move(self, weights: Weights, H: Tensor, M: Tensor) -> Tensor:
        u = self.group.coordinates(H.mT @ M)  # (B, D)
        if "mixing" in weights:
            u = u @ weights["mixing"].mT
        return H @ self.group.exp(self.group.tangent(u))
