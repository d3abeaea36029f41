"""OSM-RNN: a recurrent model whose hidden state is an element of a matrix group.

"Subgroups of U(d) Induce Natural RNN and Transformer Architectures", arXiv 2602.18417, section 3.
Where the paper leaves a choice open: tokens are ambient matrices, mixing is a full D×D map that
starts near the identity, H_0 = I.

Letters: B batch, T time, V input size, Y output size, d size of the group, n of its real matrices,
A numbers of an ambient matrix, D = dim g.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from train.groups.by_name import group_names, make_group
from train.groups.native import osm_scan
from train.layers.group_readout import PROTOTYPES, Prototypes, read
from train.layers.mixing import MIXINGS, Mixing, is_native, mixing_subspaces, mixing_targets, step
from train.model import Model, State, Symmetry, Target, Weights, drive, on_axis
from train.settings import check_choices, check_range

# A step turns planes by about √(2d)·std radians; two radians at the start never learn.
TOKEN_STD = 0.05
PROTOTYPE_STD = 0.4
MAX_D = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class OsmRnnConfig:
    """Sizes of an OSM-RNN over a group."""

    input_size: int
    output_size: int
    group: str = field(
        default="so", metadata={"help": "group that the state is in", "choices": group_names()}
    )
    d: int = field(default=22, metadata={"help": "size of the group, as in SO(d)"})
    mixing: str = field(
        default="linear", metadata={"help": "map of the tangent before exp", "choices": MIXINGS}
    )
    rank: int = field(
        default=32, metadata={"help": "of the low-rank mixing", "only": ("mixing", "low-rank")}
    )

    def __post_init__(self) -> None:
        check_range("d", self.d, 1, MAX_D)
        check_choices(self)
        make_group(self.group, self.d)
        check_range("rank", self.rank, 1, MAX_D**2)


class OsmRnn(Model):
    """H' = H exp(Γ proj(H* M_x)),  y_v = τ Re tr(H'* P_v) + b_v.

    | weight       | shape     | paper |                                            |
    |--------------|-----------|-------|--------------------------------------------|
    | `input`      | (V, n, n) | M     | free matrices                              |
    | `mixing`     | (D, D)    | Γ     | on coordinates of g; `train.layers.mixing` |
    | `readout...` |           |       | P, τ and b: `train.layers.group_readout`   |
    """

    family = "osm-rnn"
    Config = OsmRnnConfig
    learning_rate = 0.015
    long_learning_rate = 0.003
    learning_rates = {"tokens": 0.5, "mixing.matrix": 0.25}
    dropped = ("mixing", "input")
    correct_every = 16
    grows = "d"

    def __init__(self, config: OsmRnnConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config, self.group = config, make_group(config.group, config.d)
        V, Y = config.input_size, config.output_size

        def normal(std: float, *shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator) * std

        self.tokens = nn.Parameter(normal(TOKEN_STD, V, self.group.ambient_dim))
        self.prototypes = Prototypes(self.group, Y, PROTOTYPE_STD, generator)
        self.mixing = Mixing(config.mixing, self.group, config.rank, generator)

    def weights(self) -> Weights:
        """Free matrices for tokens, prototypes in the group, Γ as its parametrisation has it."""
        return {
            "input": self.group.ambient(self.tokens),
            **self.prototypes.weights(),
            **self.mixing.weights("mixing"),
        }

    def init_state(self, batch: int) -> State:
        """H = I: (B, n, n)."""
        identity = self.group.identity().to(self.tokens)
        return {"H": identity.expand(batch, -1, -1).contiguous()}

    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        """H' = H exp(Γ proj(H* M_x))."""
        M = drive(weights["input"], x)
        return {"H": step(self.group, weights, "mixing", state["H"], M)}

    def readout(self, weights: Weights, state: State) -> Tensor:
        """y_v = τ Re tr(H* P_v) + b_v: (..., Y)."""
        return read(self.group, weights, state["H"])

    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        """The loop of updates, in C where it can be; states are read out for all times at once."""
        table, mixing = weights["input"], weights.get("mixing")
        if is_native(self.group, weights, "mixing", table):
            rows = xs if not xs.is_floating_point() else _indices(xs)
            # autocast makes coarse products; a state and what moves it are of one kind
            table = table if rows is xs else drive(table, xs).flatten(0, 1).to(table)
            Hs = osm_scan(table, rows, state["H"], mixing)  # (T, B, n, n)
        else:
            Hs = self._loop(weights, state["H"], drive(table, xs))
        return {"H": Hs[-1]}, self.readout(weights, {"H": Hs})

    def correct(self, state: State) -> State:
        """One Newton-Schulz step towards G."""
        return {"H": self.group.correct(state["H"])}

    def elements(self, state: State) -> Tensor:
        """H itself."""
        return state["H"]

    def targets(self) -> list[Target]:
        """Γ or C, the prototypes and the tokens."""
        told = "the tangent that is taken from the one that the token asks for"
        tokens = Target("input", "input", ("zero",), "matrices of the tokens: 0 moves nothing")
        mixing = mixing_targets(self.config.mixing, self.group, "mixing", told)
        return [*mixing, PROTOTYPES, tokens]

    def symmetries(self) -> list[Symmetry]:
        """H, M, P -> R H, R M, R P for R in G."""
        actions = on_axis(1, "input", "readout.prototypes") + on_axis(0, "initial.H")
        told = "everything multiplied from the left by an element of the group"
        name, group = "left-multiplication", self.group
        return [Symmetry(name, group.matrices, group.size, told, actions)]

    def subspaces(self, weights: Weights, logits: bool) -> Weights:
        """What the readout sees at I."""
        return mixing_subspaces(self.config.mixing, self.group, weights, logits)

    def _loop(self, weights: Weights, H: Tensor, Ms: Tensor) -> Tensor:
        Hs = []
        for M in Ms:  # (T, B, n, n)
            H = step(self.group, weights, "mixing", H, M)
            Hs.append(H)
        return torch.stack(Hs)


def _indices(xs: Tensor) -> Tensor:
    """Row t·B + b for time t and stream b: (T, B)."""
    return torch.arange(xs.shape[0] * xs.shape[1], device=xs.device).view(xs.shape[:2])
