"""Lightning attention: attention without softmax, so its past is a sum of constant size.

The attention is that of Henry, Marchetti, Kohn, "Geometry of Lightning Self-Attention", arXiv
2408.17221, with a causal mask; `train.experiments.lightning_geometry` has the paper's map and
symmetries. With `--block plain --decay none --heads 1` the layers are the paper's and nothing else.
Ours are the decay, which leaves the symmetries as they are, several heads, and all of the residual
block: the shift (keys, queries and values see the character before), norms, skips and the MLP. The
paper's layers alone are for their geometry: without norm or decay they grow with the text that was
read.

Letters: B batch, T time, V input size, Y output size, d width, h heads, n = d / h values of a head,
a attention dimension of a head, f MLP width, γ decay.

Its symmetries are those of the paper that a stack really has:

| symmetry             | moves                                                   | exact          |
|----------------------|---------------------------------------------------------|----------------|
| `layers.0.attention` | Q, K -> C Q, C^-T K in every head                       | always         |
| `layers.0.scale`     | Q, V -> λ Q, V / λ: the paper's scaling of A and V      | always         |
| `layers.0.basis`     | V -> P V in every head, what reads it -> · P^-1         | plain blocks   |
| `input`              | what stands for characters in another basis             | plain blocks   |
| `layers.0.heads`     | heads of one layer in another order                     | plain blocks   |
| `layers.0.units`     | units of the MLP in another order                       | residual       |
| `stream`             | the numbers of x in another order, the same in all heads | residual      |
| `heads`              | heads in another order, the same in all layers          | residual       |

Norms, skips and μ of a residual block see the basis of x: of its changes they leave the orders.
The paper's scaling of layers is `basis` with P a number.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from train.model import Action, Model, State, Symmetry, Target, Weights, drive, on_axis
from train.settings import check_choices, check_range

CHUNK = 64  # positions that see each other through a mask; what is older is in the sum

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


def attend_one(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None
) -> tuple[Tensor, Tensor]:
    """S' = γ S + v kᵀ and S' q: (B, h, n, a), (B, h, a), (B, h, a), (B, h, n), (h)."""
    kept = S if decay is None else decay.view(-1, 1, 1) * S
    S = kept + v.unsqueeze(-1) * k.unsqueeze(-2)
    return S, (S @ q.unsqueeze(-1)).squeeze(-1)


def attend_all(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`attend_one` folded over the first axis of q, k and v (T, B, h, ...)."""
    decay = (q.new_ones(q.shape[-2]) if decay is None else decay).view(-1, 1, 1)
    ys = []
    for chunk in zip(*(torch.split(z, CHUNK) for z in (q, k, v)), strict=True):
        q, k, v = (z.permute(1, 2, 0, 3) for z in chunk)  # (B, h, T, ...)
        S, y = _attend_chunk(S, q, k, v, decay)
        ys.append(y.permute(2, 0, 1, 3))
    return S, torch.cat(ys)


def _attend_chunk(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    # y_i = Σ_{j <= i} γ^(i - j) (k_j · q_i) v_j + γ^(i + 1) S q_i;
    times = torch.arange(q.shape[-2], device=q.device)
    ages = times.unsqueeze(-1) - times  # (T, T): of j at i
    mask = torch.where(ages >= 0, decay ** ages.clamp(min=0), 0.0)  # (h, T, T)
    y = (q @ k.mT * mask) @ v + decay ** (times + 1).unsqueeze(-1) * (q @ S.mT)
    return decay ** len(times) * S + (v * mask[:, -1].unsqueeze(-1)).mT @ k, y


EPSILON = 1e-5  # of the norms
LONGEST = 6.0  # the last head starts with the memory of 2^LONGEST positions, the first with 2
MAX = {"d": 4096, "heads": 256, "a": 4096, "layers": 64}
MAX_FEED_FORWARD = 64
PLAIN_GAIN = 0.2  # of V at the start, where no norm bounds the sums
BLOCKS, DECAYS = ("residual", "plain"), ("learned", "none")
SQUARE = ("schur", "zero", "identity")


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningConfig:
    """Sizes of a stack of lightning attention."""

    input_size: int
    output_size: int
    d: int = field(default=64, metadata={"help": "width; a multiple of the heads"})
    layers: int = field(default=2, metadata={"help": "attention, and MLP if residual"})
    heads: int = field(default=4, metadata={"help": "attention heads of a layer"})
    a: int = field(default=16, metadata={"help": "attention dimension of a head"})
    block: str = field(
        default="residual", metadata={"help": "what is around the attention", "choices": BLOCKS}
    )
    decay: str = field(
        default="learned", metadata={"help": "forgetting, a number a head", "choices": DECAYS}
    )
    feed_forward: float = field(
        default=4.0,
        metadata={
            "help": "MLP width of a residual block, as multiple of d",
            "only": ("block", "residual"),
        },
    )

    def __post_init__(self) -> None:
        for name, most in MAX.items():
            check_range(name, getattr(self, name), 1, most)
        if self.d % self.heads:
            expected = f"a multiple of {self.heads}, the heads"
            raise ValueError(f"d: found {self.d}, expected {expected}")
        check_choices(self)
        if not 1 / self.d <= self.feed_forward <= MAX_FEED_FORWARD:
            expected = f"1/d to {MAX_FEED_FORWARD}"
            raise ValueError(f"feed_forward: found {self.feed_forward}, expected {expected}")

    @property
    def f(self) -> int:
        """Width of the MLP."""
        return int(self.feed_forward * self.d)


class Lightning(Model):
    """S' = γ S + V x (K x)ᵀ,  y = S' Q x  in every head; the y of all heads are the next layer's x.

    | weight                                 | shape    | paper |                             |
    |----------------------------------------|----------|-------|-----------------------------|
    | `input`                                | (V, d)   |       | one row a character         |
    | `layers.0.query`, `layers.0.key`       | (h a, d) | Q, K  | rows: head by head          |
    | `layers.0.value`                       | (d, d)   | V     | the same                    |
    | `layers.0.decay`                       | (h)      |       | γ in (0, 1); if none, γ = 1 |
    | `layers.0.shift`                       | (3, d)   |       | μ for Q, K and V            |
    | `layers.0.mlp.up`, `layers.0.mlp.down` |          |       | U (f, d) and D (d, f)       |
    | `readout`, `readout.bias`              |          |       | (Y, d) and (Y)              |

    Only a residual block has μ and an MLP. With |·| the root mean square, x̂ = x / |x| and x̂₋₁ that
    of the character before, Q reads x̂ + μ (x̂₋₁ - x̂) instead of x, K and V alike, and
    z = x + y,  x' = z + D relu(U z / |z|)²;  the readout reads x̂.

    The state: `layers.0.sum` (B, h, n, a) S, `layers.0.before` (B, d) x̂₋₁, `output` (B, d).
    """

    family = "lightning"
    Config = LightningConfig
    learning_rate = 0.02
    grows = "d"

    def __init__(self, config: LightningConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        V, Y, d = config.input_size, config.output_size, config.d
        self.input = nn.Parameter(torch.randn(V, d, generator=generator))
        self.layers = nn.ModuleList(_layer(config, generator) for _ in range(config.layers))
        self.readout_weight = nn.Parameter(torch.randn(Y, d, generator=generator) * d**-0.5)
        self.readout_bias = nn.Parameter(torch.zeros(Y))

    def weights(self) -> Weights:
        """The parameters as they are, decays in (0, 1)."""
        layers = {
            name: value.sigmoid() if name.endswith(".decay") else value
            for name, value in self.layers.named_parameters("layers")
        }
        readout = {"readout": self.readout_weight, "readout.bias": self.readout_bias}
        return {"input": self.input} | layers | readout

    def init_state(self, batch: int) -> State:
        """Empty sums; zeros for the character before, and to read out."""
        c, state = self.config, State()
        for index in range(c.layers):
            state[f"layers.{index}.sum"] = torch.zeros(batch, c.heads, c.d // c.heads, c.a)
            if c.block == "residual":
                state[f"layers.{index}.before"] = torch.zeros(batch, c.d)
        state["output"] = torch.zeros(batch, c.d)
        return {name: value.to(self.input) for name, value in state.items()}

    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        """One x through all layers."""
        return self._read(weights, state, drive(weights["input"], x), attend_one)[0]

    def readout(self, weights: Weights, state: State) -> Tensor:
        """Of what the last layer gave: (..., Y)."""
        return state["output"] @ weights["readout"].mT + weights["readout.bias"]

    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        """All times at once, layer after layer."""
        driven = drive(weights["input"], xs)  # (T, B, d)
        state, outputs = self._read(weights, state, driven, attend_all)
        return state, self.readout(weights, {"output": outputs})

    def targets(self) -> list[Target]:
        """Q, K, V, γ, μ and the MLP of every layer, and the rows of Q, K and V of every head."""
        whole = [target for i in range(self.config.layers) for target in self._layer_targets(i)]
        heads = [target for i in range(self.config.layers) for target in self._head_targets(i)]
        meaning = "readout matrix: from the last layer to outputs"
        tokens = Target("input", "input", ("zero",), "table of what stands for each input")
        return [*whole, *heads, Target("readout", "readout", ("zero",), meaning), tokens]

    def symmetries(self) -> list[Symmetry]:
        """Those of the paper that the configuration has, and orders of heads, units and numbers."""
        c = self.config
        return symmetries_of(
            layers=c.layers,
            heads=c.heads,
            a=c.a,
            d=c.d,
            f=c.f if c.block == "residual" else 0,
            decays=c.decay == "learned",
        )

    def _layer_targets(self, index: int) -> list[Target]:
        c, layer = self.config, f"layer {index}"
        scores = SQUARE if c.heads * c.a == c.d else ("zero",)
        found = [
            ("query", "query", scores, f"Q of {layer}: what a position asks for"),
            ("key", "key", scores, f"K of {layer}: what a position is found by"),
            ("value", "value", SQUARE, f"V of {layer}: what a position gives"),
        ]
        if c.decay == "learned":
            found += [("decay", "decay", ("zero",), f"γ of {layer}: 0 forgets all but the present")]
        if c.block == "residual":
            shift = f"μ of {layer}: how much Q, K and V see of the input before"
            found += [("shift", "shift", ("zero",), shift)]
            found += [("mlp", "mlp.down", ("zero",), f"what the MLP of {layer} adds")]
        name = f"layers.{index}."
        return [Target(name + key, name + weight, ops, told) for key, weight, ops, told in found]

    def _head_targets(self, index: int) -> list[Target]:
        c, name = self.config, f"layers.{index}"
        told = {"value": "gives", "query": "asks for", "key": "is found by"}
        sizes = {"value": c.d // c.heads, "query": c.a, "key": c.a}
        return [
            Target(
                f"{name}.heads.{head}" + ("" if weight == "value" else f".{weight}"),
                f"{name}.{weight}",
                ("zero",),
                f"what head {head} of layer {index} {does}",
                ((head * sizes[weight], (head + 1) * sizes[weight]), (0, c.d)),
            )
            for head in range(c.heads if c.heads > 1 else 0)
            for weight, does in told.items()
        ]

    def _read(
        self, weights: Weights, state: State, x: Tensor, attend: Attend
    ) -> tuple[State, Tensor]:
        # The state after x, (B, d) or (T, B, d), and what is read out at each.
        state, residual = dict(state), self.config.block == "residual"
        for index in range(self.config.layers):
            name = f"layers.{index}"
            if not residual:
                x = self._attention(weights, state, name, [x, x, x], attend)
                continue
            seen = self._shifted(weights, state, name, _unit(x))
            x = x + self._attention(weights, state, name, seen, attend)
            inner = torch.relu(_unit(x) @ weights[f"{name}.mlp.up"].mT).square()
            x = x + inner @ weights[f"{name}.mlp.down"].mT
        x = _unit(x) if residual else x
        state["output"] = x if x.ndim == 2 else x[-1]
        return state, x

    def _attention(
        self, weights: Weights, state: State, name: str, seen: list[Tensor], attend: Attend
    ) -> Tensor:
        q, k, v = (
            torch.unflatten(x @ weights[f"{name}.{part}"].mT, -1, (self.config.heads, -1))
            for x, part in zip(seen, ("query", "key", "value"), strict=True)
        )
        decay = weights[f"{name}.decay"] if self.config.decay == "learned" else None
        state[f"{name}.sum"], y = attend(state[f"{name}.sum"], q, k, v, decay)
        return y.flatten(-2)

    def _shifted(self, weights: Weights, state: State, name: str, x: Tensor) -> list[Tensor]:
        # What Q, K and V see: x mixed with the x before.
        before, alone = state[f"{name}.before"], x.ndim == 2
        state[f"{name}.before"] = x if alone else x[-1]
        step = (before if alone else torch.cat([before.unsqueeze(0), x[:-1]])) - x
        return [x + mu * step for mu in weights[f"{name}.shift"]]


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


def _layer(config: LightningConfig, generator: torch.Generator | None) -> nn.Module:
    h, a, d, f = config.heads, config.a, config.d, config.f

    def normal(std: float, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(*shape, generator=generator) * std)

    layer = nn.Module()
    layer.query = normal(d**-0.5 * a**-0.25, h * a, d)
    layer.key = normal(d**-0.5 * a**-0.25, h * a, d)
    layer.value = normal((1.0 if config.block == "residual" else PLAIN_GAIN) * d**-0.5, d, d)
    if config.decay == "learned":  # the logits of γ
        layer.decay = nn.Parameter(torch.logit(1.0 - 2.0 ** -torch.linspace(1.0, LONGEST, h)))
    if config.block == "residual":
        layer.shift = nn.Parameter(torch.full((3, d), 0.5))
        layer.mlp = nn.ParameterDict()
        layer.mlp["up"] = normal(d**-0.5, f, d)
        layer.mlp["down"] = normal(0.5 * f**-0.5, d, f)
    return layer


def symmetries_of(
    *, layers: int, heads: int, a: int, d: int, f: int, decays: bool
) -> list[Symmetry]:
    """All of a stack; f is the width of the MLPs of residual blocks, 0 of plain ones."""
    found = list[Symmetry]()
    for i in range(layers):
        name = f"layers.{i}"
        told = f"queries and keys of every head of layer {i} in another basis"
        actions = on_axis(0, f"{name}.query") + on_axis(0, f"{name}.key", dual=True)
        found.append(Symmetry(f"{name}.attention", "invertible", a, told, actions))
        told = f"scores of layer {i} times a number, values over it"
        actions = on_axis(0, f"{name}.query") + on_axis(0, f"{name}.value", dual=True)
        found.append(Symmetry(f"{name}.scale", "scale", 1, told, actions))
    more = _residual(layers, heads, a, d, f, decays) if f else _plain(layers, heads, a, d, decays)
    return found + [symmetry for symmetry in more if symmetry.size > 1 or symmetry.group[0] == "i"]


def _plain(layers: int, heads: int, a: int, d: int, decays: bool) -> list[Symmetry]:
    told = "the numbers that stand for inputs in another basis"
    actions = on_axis(1, "input") + on_axis(1, *_readers(0, layers), dual=True)
    found, n = [Symmetry("input", "invertible", d, told, actions)], d // heads
    for i in range(layers):
        name, above = f"layers.{i}", _readers(i + 1, layers)
        told = f"what every head of layer {i} gives in another basis"
        actions = on_axis(0, f"{name}.value") + on_axis(1, *above, dual=True)
        found.append(Symmetry(f"{name}.basis", "invertible", n, told, actions))
        told = f"heads of layer {i} in another order"
        actions = _heads(name, n, a, decays) + on_axis(1, *above, inner=n)
        found.append(Symmetry(f"{name}.heads", "permutation", heads, told, actions))
    return found


def _residual(layers: int, heads: int, a: int, d: int, f: int, decays: bool) -> list[Symmetry]:
    found, n, names = list[Symmetry](), d // heads, [f"layers.{i}" for i in range(layers)]
    for i, name in enumerate(names):
        told = f"units of the MLP of layer {i} in another order"
        actions = on_axis(0, f"{name}.mlp.up") + on_axis(1, f"{name}.mlp.down")
        found.append(Symmetry(f"{name}.units", "permutation", f, told, actions))
    ends = ("query", "key", "value", "shift", "mlp.up")
    read = [f"{name}.{end}" for name in names for end in ends]
    down = [f"{name}.mlp.down" for name in names]

    def stream(inner: int) -> tuple[Action, ...]:
        return on_axis(1, "input", *read, "readout", inner=inner) + on_axis(0, *down, inner=inner)

    told = "the numbers of every head in another order, the same in all heads and layers"
    actions = stream(1) + on_axis(0, *(f"{name}.value" for name in names))
    found.append(Symmetry("stream", "permutation", n, told, actions))
    told = "heads in another order, the same in all layers"
    actions = tuple(action for name in names for action in _heads(name, n, a, decays))
    found.append(Symmetry("heads", "permutation", heads, told, stream(n) + actions))
    return found


def _heads(name: str, n: int, a: int, decays: bool) -> tuple[Action, ...]:
    """The heads of a layer: rows of Q, K and V, and γ."""
    scores = on_axis(0, f"{name}.query", f"{name}.key", inner=a)
    values = on_axis(0, f"{name}.value", inner=n)
    return scores + values + (on_axis(0, f"{name}.decay") if decays else ())


def _readers(i: int, layers: int) -> list[str]:
    """What reads the input of layer i: its matrices, or the readout."""
    names = [f"layers.{i}.{end}" for end in ("query", "key", "value")]
    return names if i < layers else ["readout"]
