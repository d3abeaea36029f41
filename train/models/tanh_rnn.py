"""The vanilla recurrent network with tanh units and a text readout.

The model of Draeger, "Task-Restricted Symmetries in Recurrent Weight Space", arXiv 2606.18457,
section 1, whose recurrent matrix W_hh the Schur ablations take apart.

Letters: B batch, T time, V vocabulary, n state width.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from train.model import Model, State, Target, Weights
from train.settings import check_range

INPUT_STD = 0.3
MAX_N = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class TanhRnnConfig:
    """Sizes of a tanh RNN."""

    vocabulary_size: int
    n: int = field(default=256, metadata={"help": "state width"})
    bias: str = field(
        default="learned",
        metadata={"help": "bias of the units and the readout", "choices": ("learned", "none")},
    )

    def __post_init__(self) -> None:
        check_range("n", self.n, 1, MAX_N)
        if self.bias not in ("learned", "none"):
            raise ValueError(f"bias: found {self.bias!r}, expected 'learned' or 'none'")


class TanhRnn(Model):
    """h' = tanh(W_xh[x] + W_hh h + b_h),  logits = W_hy h' + b_y,  h_0 = 0.

    | weight           | shape  | paper |                                |
    |------------------|--------|-------|--------------------------------|
    | `input`          | (V, n) | W_xh  | one row a character            |
    | `recurrent`      | (n, n) | W_hh  | starts as an orthogonal matrix |
    | `recurrent.bias` | (n)    | b_h   | absent if none                 |
    | `readout`        | (V, n) | W_hy  |                                |
    | `readout.bias`   | (V)    | b_y   | absent if none                 |
    """

    family = "tanh-rnn"
    Config = TanhRnnConfig
    learning_rate = 0.02
    learning_rates = {"recurrent": 0.5}

    def __init__(self, config: TanhRnnConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        V, n = config.vocabulary_size, config.n
        self.input = nn.Parameter(torch.randn(V, n, generator=generator) * INPUT_STD)
        orthogonal, _ = torch.linalg.qr(torch.randn(n, n, generator=generator))
        self.recurrent = nn.Parameter(orthogonal.contiguous())
        self.readout_weight = nn.Parameter(torch.randn(V, n, generator=generator) * n**-0.5)
        if config.bias == "learned":
            self.hidden_bias = nn.Parameter(torch.zeros(n))
            self.readout_bias = nn.Parameter(torch.zeros(V))

    def weights(self) -> Weights:
        """The parameters as they are."""
        weights: Weights = {
            "input": self.input,
            "recurrent": self.recurrent,
            "readout": self.readout_weight,
        }
        if self.config.bias == "learned":
            weights |= {"recurrent.bias": self.hidden_bias, "readout.bias": self.readout_bias}
        return weights

    def init_state(self, batch: int) -> State:
        """h = 0: (B, n)."""
        return {"h": torch.zeros(batch, self.config.n).to(self.input)}

    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        """h' = tanh(W_xh[x] + W_hh h + b_h)."""
        drive = self._biased(weights, weights["input"].index_select(0, x))
        return {"h": self._move(weights, state["h"], drive)}

    def readout(self, weights: Weights, state: State) -> Tensor:
        """logits = W_hy h + b_y: (..., V)."""
        logits = state["h"] @ weights["readout"].mT
        return logits + weights["readout.bias"] if "readout.bias" in weights else logits

    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        """The loop of updates; inputs are gathered and states read out for all times at once."""
        h, hs = state["h"], []
        for drive in self._biased(weights, weights["input"][xs]):  # (T, B, n)
            h = self._move(weights, h, drive)
            hs.append(h)
        return {"h": h}, self.readout(weights, {"h": torch.stack(hs)})

    def targets(self) -> list[Target]:
        """W_hh, W_xh and W_hy."""
        recurrent = "recurrent matrix W_hh: how the state drives the next state"
        return [
            Target("recurrent", "recurrent", ("schur", "zero", "identity"), recurrent),
            Target("input", "input", ("zero",), "input matrix W_xh: what each character adds"),
            Target("readout", "readout", ("zero",), "readout matrix W_hy: from state to logits"),
        ]

    def _biased(self, weights: Weights, drive: Tensor) -> Tensor:
        return drive + weights["recurrent.bias"] if "recurrent.bias" in weights else drive

    def _move(self, weights: Weights, h: Tensor, drive: Tensor) -> Tensor:
        return torch.tanh(drive + h @ weights["recurrent"].mT)
