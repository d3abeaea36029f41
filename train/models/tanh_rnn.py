"""The vanilla recurrent network with tanh units and a text readout.

The model of Draeger, "Task-Restricted Symmetries in Recurrent Weight Space", arXiv 2606.18457,
section 1, whose recurrent matrix W_hh the Schur ablations take apart. Section 3 of the paper builds
W_hh in four ways; m = n^-1/2, Q is a random orthogonal matrix:

| construction | W_hh                                                                          |
|--------------|-------------------------------------------------------------------------------|
| `orthogonal` | starts as Q                                                                   |
| `dense`      | starts with entries ~ U[-m, m]                                                |
| `normal`     | starts as Q D Qᵀ; D of n/2 blocks [[a, -b], [b, a]] with a, b of variance 1/6 |
| `cayley`     | always O D Oᵀ, O = (I - A)(I + A)^-1, A = (U - Uᵀ)/2; U is learned, at first  |
|              | ~ U[-m, m]; D too, at first the eigenvalues of a matrix ~ U[-m, m], as blocks |

Whether D is learned the paper doesn't say. Those eigenvalues have moduli up to 0.58, spread evenly
over a disc; the solved network of its Table 1 has 68 of 72 within 5 % of the largest.

Letters: B batch, T time, V input size, Y output size, n state width.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from train.model import Model, State, Symmetry, Target, Weights, drive, on_axis
from train.settings import check_choices, check_range

CONSTRUCTIONS = ("orthogonal", "dense", "normal", "cayley")
INPUT_STD = 0.3
NORMAL_STD = (1 / 6) ** 0.5
MAX_N = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class TanhRnnConfig:
    """Sizes of a tanh RNN."""

    input_size: int
    output_size: int
    n: int = field(default=256, metadata={"help": "state width"})
    bias: str = field(
        default="learned",
        metadata={"help": "bias of the units and the readout", "choices": ("learned", "none")},
    )
    construction: str = field(
        default="orthogonal",
        metadata={"help": "how W_hh is built", "choices": CONSTRUCTIONS},
    )

    def __post_init__(self) -> None:
        check_range("n", self.n, 1, MAX_N)
        check_choices(self)
        if self.construction == "normal" and self.n % 2:
            raise ValueError(f"n: found {self.n}, expected an even number: blocks are 2 by 2")


class TanhRnn(Model):
    """h' = tanh(W_xh x + W_hh h + b_h),  y = W_hy h' + b_y,  h_0 = 0.

    | weight           | shape  | paper |                                |
    |------------------|--------|-------|--------------------------------|
    | `input`          | (V, n) | W_xh  | one row a character            |
    | `recurrent`      | (n, n) | W_hh  | built as `construction` says   |
    | `recurrent.bias` | (n)    | b_h   | absent if none                 |
    | `readout`        | (Y, n) | W_hy  |                                |
    | `readout.bias`   | (Y)    | b_y   | absent if none                 |
    """

    family = "tanh-rnn"
    Config = TanhRnnConfig
    learning_rate = 0.02
    learning_rates = {"recurrent": 0.5}
    grows = "n"

    def __init__(self, config: TanhRnnConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        V, Y, n = config.input_size, config.output_size, config.n
        self.input = nn.Parameter(torch.randn(V, n, generator=generator) * INPUT_STD)
        if config.construction == "cayley":
            self.skew = nn.Parameter(uniform_matrix(n, generator))
            spectrum = eigenvalue_blocks(uniform_matrix(n, generator))
            self.spectrum = nn.Parameter(spectrum)
        else:
            start = {"dense": uniform_matrix, "normal": normal_matrix, "orthogonal": orthogonal}
            self.recurrent = nn.Parameter(start[config.construction](n, generator))
        self.readout_weight = nn.Parameter(torch.randn(Y, n, generator=generator) * n**-0.5)
        if config.bias == "learned":
            self.hidden_bias = nn.Parameter(torch.zeros(n))
            self.readout_bias = nn.Parameter(torch.zeros(Y))

    def weights(self) -> Weights:
        """The parameters as they are, but for W_hh of `cayley`."""
        cayley = self.config.construction == "cayley"
        weights: Weights = {
            "input": self.input,
            "recurrent": cayley_matrix(self.skew, self.spectrum) if cayley else self.recurrent,
            "readout": self.readout_weight,
        }
        if self.config.bias == "learned":
            weights |= {"recurrent.bias": self.hidden_bias, "readout.bias": self.readout_bias}
        return weights

    def init_state(self, batch: int) -> State:
        """h = 0: (B, n)."""
        return {"h": torch.zeros(batch, self.config.n).to(self.input)}

    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        """h' = tanh(W_xh x + W_hh h + b_h)."""
        return {"h": self._move(weights, state["h"], self._driven(weights, x))}

    def readout(self, weights: Weights, state: State) -> Tensor:
        """y = W_hy h + b_y: (..., Y)."""
        logits = state["h"] @ weights["readout"].mT
        return logits + weights["readout.bias"] if "readout.bias" in weights else logits

    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        """The loop of updates; inputs are gathered and states read out for all times at once."""
        h, hs = state["h"], []
        for driven in self._driven(weights, xs):  # (T, B, n)
            h = self._move(weights, h, driven)
            hs.append(h)
        return {"h": h}, self.readout(weights, {"h": torch.stack(hs)})

    def targets(self) -> list[Target]:
        """W_hh, W_xh and W_hy."""
        recurrent = "recurrent matrix W_hh: how the state drives the next state"
        return [
            Target("recurrent", "recurrent", ("schur", "zero", "identity"), recurrent),
            Target("input", "input", ("zero",), "input matrix W_xh: what each input adds"),
            Target("readout", "readout", ("zero",), "readout matrix W_hy: from state to outputs"),
        ]

    def symmetries(self) -> list[Symmetry]:
        """Units in another order and with other signs: tanh is odd."""
        actions = on_axis(1, "input", "recurrent", "readout") + on_axis(0, "recurrent")
        actions += on_axis(0, "recurrent.bias") if self.config.bias == "learned" else ()
        told = "units in another order, some with the other sign"
        return [Symmetry("units", "signed-permutation", self.config.n, told, actions)]

    def _driven(self, weights: Weights, x: Tensor) -> Tensor:
        driven = drive(weights["input"], x)
        return driven + weights["recurrent.bias"] if "recurrent.bias" in weights else driven

    def _move(self, weights: Weights, h: Tensor, driven: Tensor) -> Tensor:
        return torch.tanh(driven + h @ weights["recurrent"].mT)


def uniform_matrix(n: int, generator: torch.Generator | None = None) -> Tensor:
    """Entries ~ U[-m, m], m = n^-1/2."""
    return (2.0 * torch.rand(n, n, generator=generator) - 1.0) / math.sqrt(n)


def orthogonal(n: int, generator: torch.Generator | None = None) -> Tensor:
    """The Q of a random matrix."""
    Q: Tensor = torch.linalg.qr(torch.randn(n, n, generator=generator))[0]
    return Q.contiguous()


def normal_matrix(n: int, generator: torch.Generator | None = None) -> Tensor:
    """Q D Qᵀ, n even: WᵀW = WWᵀ."""
    Q = orthogonal(n, generator)
    a, b = torch.randn(2, n // 2, generator=generator) * NORMAL_STD
    blocks = torch.stack([torch.stack([a, a], 1), torch.stack([b, torch.zeros_like(b)], 1)])
    return Q @ block_diagonal(blocks.flatten(1)) @ Q.mT


def eigenvalue_blocks(W: Tensor) -> Tensor:
    """The eigenvalues of W (n, n) as `block_diagonal` takes them: (2, n)."""
    values = torch.linalg.eigvals(W)  # of a pair a ± ib the one with +b comes first
    return torch.stack([values.real, values.imag.clamp(min=0.0)])


def block_diagonal(blocks: Tensor) -> Tensor:
    """D (n, n) of (2, n): its diagonal, and the b of each [[a, -b], [b, a]] where that begins.

    A pair stays a pair and a real eigenvalue real, whatever the values: b is 0 where none begins,
    and the second a of a pair is the first.
    """
    begins = blocks[1, :-1] != 0
    a = torch.cat([blocks[0, :1], torch.where(begins, blocks[0, :-1], blocks[0, 1:])])
    b = torch.where(begins, blocks[1, :-1], torch.zeros_like(blocks[1, :-1]))
    return a.diag() + b.diag(-1) - b.diag(1)


def cayley_matrix(U: Tensor, blocks: Tensor) -> Tensor:
    """O D Oᵀ with the Cayley transform O of the skew part of U."""
    A, identity = (U - U.mT) / 2.0, torch.eye(len(U)).to(U)
    turned: Tensor = torch.linalg.solve(identity + A, identity - A)  # O: the factors commute
    return turned @ block_diagonal(blocks) @ turned.mT
