"""The long short-term memory, a baseline: gates decide what a cell keeps, takes and shows.

Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000, in torch's form.

Letters: B batch, T time, V input size, Y output size, e embedding, n width, L layers.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from train.model import Model, State, Symmetry, Target, Weights, drive, on_axis
from train.settings import check_range

GATES = ("input", "forget", "cell", "output")  # the order in which they are stacked
MAX_N = 16_384
MAX_LAYERS = 16
MAX_BIAS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LstmConfig:
    """Sizes of an LSTM."""

    input_size: int
    output_size: int
    n: int = field(default=128, metadata={"help": "width of the cells"})
    embedding: int = field(default=44, metadata={"help": "numbers that stand for an input"})
    layers: int = field(default=1, metadata={"help": "cells on top of each other"})
    forget_bias: float = field(
        default=0.0,
        metadata={"help": "of the forget gate, at first; 1 for tasks that ask for long memory"},
    )

    def __post_init__(self) -> None:
        check_range("n", self.n, 1, MAX_N)
        check_range("embedding", self.embedding, 1, MAX_N)
        check_range("layers", self.layers, 1, MAX_LAYERS)
        if not abs(self.forget_bias) <= MAX_BIAS:
            expected = f"-{MAX_BIAS} to {MAX_BIAS}"
            raise ValueError(f"forget_bias: found {self.forget_bias}, expected {expected}")


class Lstm(Model):
    """c' = f c + i g,  h' = o tanh(c'),  y = P h' + p;  (i, f, g, o) of W x + R h + b: σ, g tanh.

    | weight               | shape           | above |                                        |
    |----------------------|-----------------|-------|----------------------------------------|
    | `input`              | (V, e)          | x     | one row a character                    |
    | `layers.k.input`     | (4n, e or n)    | W     | from the layer below; gates as `GATES` |
    | `layers.k.recurrent` | (4n, n)         | R     | from h                                 |
    | `layers.k.bias`      | (4n)            | b     |                                        |
    | `readout`            | (Y, n)          | P     | from the last layer                    |
    | `readout.bias`       | (Y)             | p     |                                        |
    """

    family = "lstm"
    Config = LstmConfig
    learning_rate = 0.03
    long_learning_rate = 0.005
    dropped = tuple(f"layers.{k}.recurrent" for k in range(MAX_LAYERS))
    grows = "n"

    def __init__(self, config: LstmConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        V, Y, n, e = config.input_size, config.output_size, config.n, config.embedding
        self.input = nn.Parameter(torch.randn(V, e, generator=generator))
        widths = [e] + [n] * (config.layers - 1)
        self.layers = nn.ModuleList(_layer(config, width, generator) for width in widths)
        self.readout_weight = nn.Parameter(_uniform(Y, n, n, generator))
        self.readout_bias = nn.Parameter(torch.zeros(Y))

    def weights(self) -> Weights:
        """The parameters as they are."""
        layers: Weights = dict(self.layers.named_parameters("layers"))
        readout = {"readout": self.readout_weight, "readout.bias": self.readout_bias}
        return {"input": self.input} | layers | readout

    def init_state(self, batch: int) -> State:
        """h = c = 0: (B, n) each, a pair a layer."""
        zeros = torch.zeros(batch, self.config.n).to(self.input)
        return {f"layers.{k}.{name}": zeros.clone() for k in self._ks() for name in ("h", "c")}

    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        """Every layer takes the new h of the layer below."""
        below, new = drive(weights["input"], x), State()
        for k in self._ks():
            h, c = state[f"layers.{k}.h"], state[f"layers.{k}.c"]
            driven = below @ weights[f"layers.{k}.input"].mT + weights[f"layers.{k}.bias"]
            i, f, g, o = (driven + h @ weights[f"layers.{k}.recurrent"].mT).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            below = o.sigmoid() * c.tanh()
            new |= {f"layers.{k}.h": below, f"layers.{k}.c": c}
        return new

    def readout(self, weights: Weights, state: State) -> Tensor:
        """y = P h + p: (..., Y)."""
        h = state[f"layers.{self.config.layers - 1}.h"]
        return h @ weights["readout"].mT + weights["readout.bias"]

    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        """torch's own LSTM over all times, with these weights."""
        last, flat = self.config.layers - 1, list[Tensor]()
        for k in self._ks():
            bias = weights[f"layers.{k}.bias"]
            matrices = (weights[f"layers.{k}.input"], weights[f"layers.{k}.recurrent"])
            flat += [*matrices, bias, torch.zeros_like(bias)]  # torch has two biases
        begin = tuple(torch.stack([state[f"layers.{k}.{s}"] for k in self._ks()]) for s in "hc")
        train, driven = torch.is_grad_enabled(), drive(weights["input"], xs).to(begin[0].dtype)
        with torch.autocast(driven.device.type, enabled=False):  # many CPUs have no coarser one
            hs, h, c = torch.lstm(driven, begin, flat, True, last + 1, 0.0, train, False, False)
        pairs = [{f"layers.{k}.h": h[k], f"layers.{k}.c": c[k]} for k in self._ks()]
        new = {name: value for pair in pairs for name, value in pair.items()}
        return new, self.readout(weights, {f"layers.{last}.h": hs})

    def targets(self) -> list[Target]:
        """Per layer the recurrent and input matrix of each gate and of all; input and readout."""
        n, found = self.config.n, list[Target]()
        for k in self._ks():
            width = n if k else self.config.embedding
            for place, gate in enumerate(GATES):
                name, rows = f"layers.{k}.input", (place * n, (place + 1) * n)
                meaning = f"input matrix of the {gate} gate, layer {k}"
                whole = (rows, (0, width))
                found.append(Target(f"{name}.{gate}", name, ("zero",), meaning, whole))
                name = f"layers.{k}.recurrent"
                meaning = f"recurrent matrix of the {gate} gate, layer {k}: how h drives it"
                ops = ("schur", "zero", "identity")
                found.append(Target(f"{name}.{gate}", name, ops, meaning, (rows, (0, n))))
            name, meaning = f"layers.{k}.input", f"input matrix of all gates, layer {k}"
            found.append(Target(name, name, ("zero",), meaning))
        return found + [
            Target("input", "input", ("zero",), "table of what stands for each input"),
            Target("readout", "readout", ("zero",), "readout matrix: from h to outputs"),
        ]

    def symmetries(self) -> list[Symmetry]:
        """The units of each layer in another order; the embedding in another basis."""
        found, last = list[Symmetry](), self.config.layers - 1
        for k in self._ks() if self.config.n > 1 else ():
            name = f"layers.{k}"
            above = f"layers.{k + 1}.input" if k < last else "readout"
            actions = on_axis(0, f"{name}.input", f"{name}.recurrent", f"{name}.bias")
            actions += on_axis(1, f"{name}.recurrent", above)
            told = f"units of layer {k} in another order"
            found.append(Symmetry(f"{name}.units", "permutation", self.config.n, told, actions))
        actions = on_axis(1, "input") + on_axis(1, "layers.0.input", dual=True)
        told = "the numbers that stand for inputs in another basis"
        return [*found, Symmetry("input", "invertible", self.config.embedding, told, actions)]

    def _ks(self) -> range:
        return range(self.config.layers)


def _layer(config: LstmConfig, width: int, generator: torch.Generator | None) -> nn.ParameterDict:
    n = config.n
    bias = torch.zeros(len(GATES), n)
    bias[GATES.index("forget")] = config.forget_bias
    return nn.ParameterDict(
        {
            "input": nn.Parameter(_uniform(4 * n, width, n, generator)),
            "recurrent": nn.Parameter(_uniform(4 * n, n, n, generator)),
            "bias": nn.Parameter(bias.flatten()),
        }
    )


def _uniform(rows: int, columns: int, n: int, generator: torch.Generator | None) -> Tensor:
    return (2.0 * torch.rand(rows, columns, generator=generator) - 1.0) / math.sqrt(n)
