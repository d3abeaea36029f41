"""A small decoder, a baseline: causal attention over a sliding window of characters.

Vaswani et al. 2017 as it is built today: normalised before each part (root mean square), rotary
positions, a gated MLP, no biases, an untied readout. Its state is bounded: the keys and values of
the last `context` positions, not rotated, since only the lag between two positions counts.

Letters: B batch, T time, V input size, Y output size, d width, H heads, f MLP width, S positions
that may be looked at, W context.

Its symmetries:

| symmetry                   | moves                                                             |
|----------------------------|-------------------------------------------------------------------|
| `layers.0.attention.value` | V, O -> P V, O P^-1 in every head                                 |
| `layers.0.attention.query` | Q, K -> R Q, R K, R turning the planes that positions turn        |
| `layers.0.attention.heads` | heads in another order                                            |
| `layers.0.mlp.units`       | units of the MLP in another order                                 |
| `stream`                   | the numbers of x in another order: norms see any other basis      |
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from train.layers.rotary import Turn, angles_at, rotate, turned, turns
from train.layers.sliding_window import BLOCK, SEEN, Block, Update, Windowed, mean, scores
from train.model import State, Symmetry, Target, Weights, drive, on_axis
from train.settings import check_range

EPSILON = 1e-6
PIECE = 32  # positions that a scan takes at once
DOES = {
    "query": "what a position asks for",
    "key": "what it is found by",
    "value": "what it gives",
}
MAX_D = 4096
MAX_LAYERS = 64
MAX_CONTEXT = 4096
MAX_FEED_FORWARD = 64

Attend = Callable[[str, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """Sizes of a Transformer."""

    input_size: int
    output_size: int
    d: int = field(default=56, metadata={"help": "width; a multiple of twice the heads"})
    layers: int = field(default=3, metadata={"help": "attention and MLP, one after the other"})
    heads: int = field(default=4, metadata={"help": "attention heads of a layer"})
    feed_forward: float = field(default=1.875, metadata={"help": "MLP width, as multiple of d"})
    context: int = field(default=32, metadata={"help": "positions that a position looks at"})

    def __post_init__(self) -> None:
        check_range("d", self.d, 2, MAX_D)
        check_range("layers", self.layers, 1, MAX_LAYERS)
        check_range("heads", self.heads, 1, self.d // 2)
        check_range("context", self.context, 1, MAX_CONTEXT)
        if self.d % (2 * self.heads):  # rotary positions turn planes
            expected = f"a multiple of {2 * self.heads}, twice the heads"
            raise ValueError(f"d: found {self.d}, expected {expected}")
        if not 1 / self.d <= self.feed_forward <= MAX_FEED_FORWARD:
            expected = f"1/d to {MAX_FEED_FORWARD}"
            raise ValueError(f"feed_forward: found {self.feed_forward}, expected {expected}")

    @property
    def f(self) -> int:
        """Width of the MLP."""
        return int(self.feed_forward * self.d)


class Transformer(Windowed):
    """x ← x + O attend(Q x̂, K x̂, V x̂),  x ← x + D (silu(G x̂) · U x̂) a layer;  y = P x̂ + p.

    x̂ is x / rms(x), times a weight. A position looks at itself and the W - 1 before it.

    | weight                      | shape  | above |                       |
    |-----------------------------|--------|-------|-----------------------|
    | `input`                     | (V, d) | x     | one row a character   |
    | `layers.k.attention.norm`   | (d)    |       | of the first x̂       |
    | `layers.k.attention.query`  | (d, d) | Q     | rows: head by head    |
    | `layers.k.attention.key`    | (d, d) | K     | the same              |
    | `layers.k.attention.value`  | (d, d) | V     | the same              |
    | `layers.k.attention.output` | (d, d) | O     | columns: head by head |
    | `layers.k.mlp.norm`         | (d)    |       | of the second x̂      |
    | `layers.k.mlp.gate`         | (f, d) | G     |                       |
    | `layers.k.mlp.up`           | (f, d) | U     |                       |
    | `layers.k.mlp.down`         | (d, f) | D     |                       |
    | `norm`                      | (d)    |       | of the last x̂        |
    | `readout`                   | (Y, d) | P     |                       |
    | `readout.bias`              | (Y)    | p     |                       |

    The state: `layers.k.keys` and `.values` (B, W, d), the newest last; `seen` (B, W), 1 where
    there was a position; `output` (B, d), the last x̂, at first 0.
    """

    family = "transformer"
    Config = TransformerConfig
    learning_rate = 0.01
    grows = "d"

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        V, Y, d = config.input_size, config.output_size, config.d
        self.input = nn.Parameter(torch.randn(V, d, generator=generator))
        self.layers = nn.ModuleList(_layer(config, generator) for _ in self._ks())
        self.norm = nn.Parameter(torch.ones(d))
        self.readout_weight = nn.Parameter(torch.randn(Y, d, generator=generator) / d)
        self.readout_bias = nn.Parameter(torch.zeros(Y))

    def weights(self) -> Weights:
        """The parameters as they are."""
        layers: Weights = dict(self.layers.named_parameters("layers"))
        readout = {"readout": self.readout_weight, "readout.bias": self.readout_bias}
        return {"input": self.input} | layers | {"norm": self.norm} | readout

    def init_state(self, batch: int) -> State:
        """Nothing was read: zeros, of which none was seen."""
        W, d = self.config.context, self.config.d
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(self._memories(), (batch, W, d))
        shapes |= {SEEN: (batch, W), "output": (batch, d)}
        return {name: torch.zeros(shape).to(self.input) for name, shape in shapes.items()}

    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        """The oldest position makes room for the new one."""
        return self._read(weights, state, drive(weights["input"], x).unsqueeze(1))[0]

    def readout(self, weights: Weights, state: State) -> Tensor:
        """y = P x̂ + p: (..., Y)."""
        return state["output"] @ weights["readout"].mT + weights["readout.bias"]

    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        """Many positions at once, each with its band of the keys."""
        outputs = []
        for piece in torch.split(drive(weights["input"], xs).transpose(0, 1), PIECE, 1):
            state, read = self._read(weights, state, piece)
            outputs.append(read)
        output = torch.cat(outputs, 1).transpose(0, 1)  # (T, B, d)
        return state, self.readout(weights, {"output": output})

    def windows(self) -> tuple[str, ...]:
        """Keys and values of all layers."""
        return (*self._memories(), SEEN)

    def placed(self, weights: Weights, entries: State, places: Tensor) -> State:
        """Keys turned by their places, values as they are."""
        del weights
        turn = self._turn(places)
        return {
            name: turned(entry, turn) if name.endswith("keys") else entry
            for name, entry in entries.items()
        }

    def update_in_block(self, weights: Weights, state: State, block: Block, x: Tensor) -> Update:
        """One position; each head is a row (d) that is 0 outside of the head."""
        del state
        own, entries, turn = State(), State(), self._turn(block.places())
        size = self.config.d // self.config.heads
        heads = torch.eye(self.config.heads).repeat_interleave(size, 1).to(self.input)  # (H, d)

        def attend(layer: str, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            names = (f"{layer}.keys", f"{layer}.values")
            entries.update(zip(names, (keys, values), strict=True))
            own[names[0]] = block.enter(names[0], turned(keys, turn))
            own[names[1]] = block.enter(names[1], values)
            rows = turned(queries, turn).unsqueeze(1) * (heads / math.sqrt(size))  # (B, H, d)
            past_keys, past_values = (block.past[name] for name in names)
            shares = (scores(rows, past_keys, own[names[0]]) + block.hidden).softmax(-1)
            return (mean(shares, past_values, own[names[1]]) * heads).sum(1)

        output = self._through(weights, drive(weights["input"], x), attend)
        return Update({"output": output}, own, entries)

    def targets(self) -> list[Target]:
        """Per layer the attention, each of its heads, and the MLP; input and readout."""
        d, heads, found = self.config.d, self.config.heads, list[Target]()
        size = d // heads
        for k in self._ks():
            name = f"layers.{k}.attention"
            for kind, does in DOES.items():
                meaning = f"{kind} matrix of layer {k}: {does}"
                ops = ("schur", "zero", "identity")
                found.append(Target(f"{name}.{kind}", f"{name}.{kind}", ops, meaning))
            meaning = f"output matrix of the attention of layer {k}: without it the layer has none"
            found.append(Target(name, f"{name}.output", ("zero",), meaning))
            for head in range(heads):
                columns = (head * size, (head + 1) * size)
                meaning = f"what head {head} of layer {k} adds"
                slices = ((0, d), columns)
                found.append(
                    Target(f"{name}.head.{head}", f"{name}.output", ("zero",), meaning, slices)
                )
            meaning = f"output matrix of the MLP of layer {k}: without it the layer has none"
            found.append(Target(f"layers.{k}.mlp", f"layers.{k}.mlp.down", ("zero",), meaning))
        return found + [
            Target("input", "input", ("zero",), "table of what stands for each input"),
            Target("readout", "readout", ("zero",), "readout matrix: last layer to outputs"),
        ]

    def symmetries(self) -> list[Symmetry]:
        """Bases of values, queries and keys; orders of heads, of units, and of the numbers of x."""
        c = self.config
        return symmetries_of(layers=c.layers, heads=c.heads, d=c.d, f=c.f)

    def _turn(self, places: Tensor) -> Turn:
        num = self.config.context + BLOCK
        return turns(self.config.heads, self.config.d, num, places, self.input)

    def _ks(self) -> range:
        return range(self.config.layers)

    def _memories(self) -> list[str]:
        return [f"layers.{k}.{name}" for k in self._ks() for name in ("keys", "values")]

    def _read(self, weights: Weights, state: State, x: Tensor) -> tuple[State, Tensor]:
        """The state after x (B, T, d), and the outputs of all its positions (B, T, d)."""
        T, heads = x.shape[1], self.config.heads
        seen = torch.cat([state[SEEN], torch.ones_like(x[..., 0])], 1)  # (B, W + T)
        mask, new = _mask(seen[:, 1:], T), {SEEN: seen[:, T:]}

        def attend(layer: str, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            keys = torch.cat([state[f"{layer}.keys"], keys], 1)  # (B, W + T, d)
            values = torch.cat([state[f"{layer}.values"], values], 1)
            new.update({f"{layer}.keys": keys[:, T:], f"{layer}.values": values[:, T:]})
            return _attend(queries, keys[:, 1:], values[:, 1:], mask, heads)

        output = self._through(weights, x, attend)
        return new | {"output": output[:, -1]}, output

    def _through(self, weights: Weights, x: Tensor, attend: Attend) -> Tensor:
        """All layers (..., d); `attend` is called with a layer, its queries, keys and values."""
        for k in self._ks():
            name = f"layers.{k}.attention"
            normed = _normalise(x, weights[f"{name}.norm"])
            queries, keys, values = (
                normed @ weights[f"{name}.{kind}"].mT for kind in ("query", "key", "value")
            )
            attended = attend(f"layers.{k}", queries, keys, values)
            x = x + attended @ weights[f"{name}.output"].mT
            x = x + _mlp(weights, f"layers.{k}.mlp", x)
        return _normalise(x, weights["norm"])


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Queries (B, T, d) at the last T of the positions of keys and values (B, S, d)."""
    T, S, size = queries.shape[1], keys.shape[1], keys.shape[2] // heads
    q, k, v = (value.view(*value.shape[:2], heads, size) for value in (queries, keys, values))
    angles = (
        angles_at(S, size).unsqueeze(1).expand(-1, heads, -1)
    )  # (S, H, d/2H): fast in the graph
    cos, sin = angles.cos().to(q), angles.sin().to(q)
    q = rotate(q, cos[S - T :], sin[S - T :]).transpose(1, 2) / math.sqrt(size)  # (B, H, T, d/H)
    scores = q @ rotate(k, cos, sin).permute(0, 2, 3, 1)  # (B, H, T, S)
    shares = scores.masked_fill(~mask, -math.inf).softmax(-1)
    return (shares @ v.transpose(1, 2)).transpose(1, 2).flatten(-2)


def _mask(seen: Tensor, T: int) -> Tensor:
    """Which of the positions (B, S) each of the last T looks at: (B, 1, T, S)."""
    S = seen.shape[1]
    W = S - T + 1
    at = torch.arange(S, device=seen.device)
    lags = at[S - T :].unsqueeze(-1) - at  # (T, S)
    return ((lags >= 0) & (lags < W)) & (seen > 0.5)[:, None, None, :]


def _mlp(weights: Weights, name: str, x: Tensor) -> Tensor:
    normed = _normalise(x, weights[f"{name}.norm"])
    gate, up = (normed @ weights[f"{name}.{kind}"].mT for kind in ("gate", "up"))
    return (silu(gate) * up) @ weights[f"{name}.down"].mT


def _normalise(x: Tensor, scale: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * scale  # one node when served


def _layer(config: TransformerConfig, generator: torch.Generator | None) -> nn.ModuleDict:
    d, f = config.d, config.f

    def normal(rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * (gain / math.sqrt(columns))

    last = 1.0 / math.sqrt(2.0 * config.layers)  # of what is added to x
    attention = {name: normal(d, d) for name in ("query", "key", "value")}
    attention |= {"output": normal(d, d, last), "norm": torch.ones(d)}
    mlp = {"gate": normal(f, d), "up": normal(f, d), "down": normal(d, f, last)}
    mlp["norm"] = torch.ones(d)
    return nn.ModuleDict({"attention": _parameters(attention), "mlp": _parameters(mlp)})


def _parameters(tensors: dict[str, Tensor]) -> nn.ParameterDict:
    return nn.ParameterDict({name: nn.Parameter(value) for name, value in tensors.items()})


def symmetries_of(*, layers: int, heads: int, d: int, f: int) -> list[Symmetry]:
    """All of a stack; f is the width of the MLP."""
    names = [f"layers.{k}" for k in range(layers)]
    found = [s for name in names for s in _layer_symmetries(name, heads, d // heads, f)]
    return [symmetry for symmetry in [*found, _stream(names, d)] if symmetry.size > 1]


def _layer_symmetries(name: str, heads: int, size: int, f: int) -> list[Symmetry]:
    attention, mlp = f"{name}.attention", f"{name}.mlp"
    Q, K, V, out = (f"{attention}.{end}" for end in ("query", "key", "value", "output"))
    moves = {
        f"{attention}.value": (
            "invertible",
            size,
            "values of every head in another basis",
            on_axis(0, V) + on_axis(1, out, dual=True),
        ),
        f"{attention}.query": (
            "halves",
            size,
            "queries and keys of every head turned alike",
            on_axis(0, Q, K),
        ),
        f"{attention}.heads": (
            "permutation",
            heads,
            "heads in another order",
            on_axis(0, Q, K, V, inner=size) + on_axis(1, out, inner=size),
        ),
        f"{mlp}.units": (
            "permutation",
            f,
            "units of the MLP in another order",
            on_axis(0, f"{mlp}.gate", f"{mlp}.up") + on_axis(1, f"{mlp}.down"),
        ),
    }
    return [Symmetry(key, *rest) for key, rest in moves.items()]


def _stream(names: list[str], d: int) -> Symmetry:
    rows = [f"{name}.{end}" for name in names for end in ("attention.output", "mlp.down")]
    norms = [f"{name}.{part}.norm" for name in names for part in ("attention", "mlp")]
    ends = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
    columns = [f"{name}.{end}" for name in names for end in ends]
    actions = on_axis(0, *norms, *rows, "norm") + on_axis(1, "input", *columns, "readout")
    return Symmetry("stream", "permutation", d, "the numbers of x in another order", actions)
