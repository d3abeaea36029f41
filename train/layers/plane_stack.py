"""A stack of blocks around recurrences that turn planes: what RotRNN and LRU have in common.

    h_0 = encoder x,  h_{l+1} = h_l + glu(gelu(layer_l(norm(h_l)))),  y = readout norm(h_L)
    layer:  z' = γ R(θ) z + input u,  y = output z' + skip ∘ u
    glu(g) = g ∘ σ(gate g)

The skeleton of S5, prenorm, with one change: a layer norm where it has a batch norm, which looks
at other streams and at the future.

| weight              | shape    |                                                       |
|---------------------|----------|-------------------------------------------------------|
| `encoder`           | (V, D)   | one row a character; `encoder.bias` (D)               |
| `layers.l.norm`     | (D)      | scale of the layer norm before the recurrence         |
| `layers.l.decay`    | (H)      | γ, one a head                                         |
| `layers.l.angle`    | (H, p/H) | θ, one a plane                                        |
| `layers.l.input`    | (2p, D)  | two rows a plane, heads one after the other           |
| `layers.l.output`   | (D, 2p)  | two columns a plane                                   |
| `layers.l.skip`     | (D)      |                                                       |
| `layers.l.gate`     | (D, D)   | `layers.l.gate.bias` (D)                              |
| `readout`           | (Y, D)   | `readout.norm` (D), `readout.bias` (Y)                |

Letters: B batch, T time, V input size, Y output size, D width, L layers, H heads, p planes a layer.
"""

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from train.layers.linear_scan import linear_scan, rotate
from train.model import Action, Model, State, Symmetry, Target, Weights, drive, on_axis

Layer = dict[str, Tensor]  # the weights of one, by the ends of their names
LAYER = ("norm", "angle", "decay", "input", "output", "skip", "gate", "gate.bias")


class PlaneStack(Model):
    """The stack as a model; a family says what a layer's planes are.

    State of a stream: `z` (L, p, 2), the planes of all layers; `h` (D), what the last block put
    out and the readout reads. Both start at 0.
    """

    weight_decays = dict.fromkeys(("norm", "skip", "gate_bias"), 0.0)
    grows = "width"

    def __init__(self, L: int, D: int, V: int, Y: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.num_layers, self.width = L, D

        def normal(std: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * std)

        self.encoder = normal(1.0, V, D)
        self.encoder_bias = nn.Parameter(torch.zeros(D))
        self.norm = nn.Parameter(torch.ones(L, D))
        self.skip = normal(1.0, L, D)
        self.gate = normal(D**-0.5, L, D, D)
        self.gate_bias = nn.Parameter(torch.zeros(L, D))
        self.readout_norm = nn.Parameter(torch.ones(D))
        self.readout_weight = normal(D**-0.5, Y, D)
        self.readout_bias = nn.Parameter(torch.zeros(Y))

    @abstractmethod
    def recurrences(self) -> Layer:
        """`angle`, `decay`, `input` and `output` of all layers: (L, ...) each."""

    @abstractmethod
    def plane_sizes(self) -> tuple[int, int]:
        """Heads of a layer, and planes of a head."""

    def num_planes(self) -> int:
        """Planes of a layer."""
        return math.prod(self.plane_sizes())

    def weights(self) -> Weights:
        """What is learned, and the recurrences as the family parametrises them."""
        layers = self.recurrences() | {
            "norm": self.norm,
            "skip": self.skip,
            "gate": self.gate,
            "gate.bias": self.gate_bias,
        }
        return {
            "encoder": self.encoder,
            "encoder.bias": self.encoder_bias,
            **{
                f"layers.{i}.{name}": whole[i]
                for i in range(self.num_layers)
                for name, whole in layers.items()
            },
            "readout.norm": self.readout_norm,
            "readout": self.readout_weight,
            "readout.bias": self.readout_bias,
        }

    def init_state(self, batch: int) -> State:
        """0: (B, L, p, 2) and (B, D)."""
        z = torch.zeros(batch, self.num_layers, self.num_planes(), 2)
        return {"z": z.to(self.encoder), "h": torch.zeros(batch, self.width).to(self.encoder)}

    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        """z' = γ R(θ) z + input u, block after block."""
        zs, moved = state["z"].unbind(1), list[Tensor]()

        def move(index: int, layer: Layer, driven: Tensor) -> Tensor:
            moved.append(_turn(layer, zs[index]) + driven)
            return moved[-1]

        h = self._through(weights, x, move)
        return {"z": torch.stack(moved, 1), "h": h}

    def readout(self, weights: Weights, state: State) -> Tensor:
        """y = readout norm(h): (..., Y)."""
        h = _normalised(state["h"], weights["readout.norm"])
        return h @ weights["readout"].mT + weights["readout.bias"]

    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        """Block after block, each for all times at once; its planes are complex numbers here."""
        zs, last = torch.view_as_complex(state["z"].contiguous()), list[Tensor]()

        def move(index: int, layer: Layer, driven: Tensor) -> Tensor:
            factor = torch.polar(_per_plane(layer), layer["angle"].flatten())
            driven = torch.view_as_complex(driven.to(state["z"].dtype))
            scanned = linear_scan(factor, driven, zs[:, index])  # (T, B, p)
            last.append(torch.view_as_real(scanned[-1]))
            return torch.view_as_real(scanned)

        h = self._through(weights, xs, move)
        return {"z": torch.stack(last, 1), "h": h[-1]}, self.readout(weights, {"h": h})

    def targets(self) -> list[Target]:
        """What turns, dampens, drives and reads the planes of each layer, its gate, each plane."""
        layers = range(self.num_layers)
        return [
            Target("encoder", "encoder", ("zero",), "table of what stands for each input"),
            *(target for index in layers for target in self._layer_targets(index)),
            *(target for index in layers for target in self._plane_targets(index)),
            Target("readout", "readout", ("zero",), "readout matrix: last layer to outputs"),
        ]

    def symmetries(self) -> list[Symmetry]:
        """The planes of each layer turned, and in another order; the numbers between blocks too."""
        found = [s for i in range(self.num_layers) for s in self._plane_symmetries(f"layers.{i}")]
        ends = ("norm", "skip", "gate", "gate.bias", "output")
        each = [f"layers.{i}." for i in range(self.num_layers)]
        actions = on_axis(0, "encoder.bias", "readout.norm")
        actions += on_axis(0, *(i + end for i in each for end in ends))
        actions += on_axis(1, "encoder", *(i + end for i in each for end in ("input", "gate")))
        actions += on_axis(1, "readout")
        told = "the numbers that go from block to block in another order"
        stream = Symmetry("stream", "permutation", self.width, told, actions)
        return [*found, stream] if self.width > 1 else found

    def _plane_symmetries(self, name: str) -> list[Symmetry]:
        H, size = self.plane_sizes()
        both = f"{name}.input", f"{name}.output"

        def on(inner: int, *own: Action) -> tuple[Action, ...]:
            return (*on_axis(0, both[0], inner=inner), *on_axis(1, both[1], inner=inner), *own)

        found = [Symmetry(f"{name}.turns", "pairs", 2 * H * size, "each plane turned", on(1))]
        if size > 1:
            told, own = "the planes of every head in another order", on_axis(1, f"{name}.angle")
            found.append(Symmetry(f"{name}.planes", "permutation", size, told, on(2, *own)))
        if H > 1:
            told, own = "the heads in another order", on_axis(0, f"{name}.angle", f"{name}.decay")
            found.append(Symmetry(f"{name}.heads", "permutation", H, told, on(2 * size, *own)))
        return found

    def _plane_targets(self, index: int) -> list[Target]:
        found, size = list[Target](), self.plane_sizes()[1]
        for p in range(self.num_planes()):
            name, told = f"layers.{index}.planes.{p}", f"plane {p} of layer {index}"
            head, place = divmod(p, size)
            at, rows = ((head, head + 1), (place, place + 1)), ((2 * p, 2 * p + 2), (0, self.width))
            angle, drives = f"angle of {told}; at 0 it doesn't turn", f"what drives {told}"
            found += [
                Target(name, f"layers.{index}.angle", ("freeze", "zero"), angle, at),
                Target(f"{name}.input", f"layers.{index}.input", ("zero",), drives, rows),
            ]
        return found

    def _layer_targets(self, index: int) -> list[Target]:
        meanings = {
            "angle": "angles by which planes turn at each step; 0 freezes them",
            "decay": "factors by which heads shrink at each step; 0 leaves no memory",
            "input": "input matrix: how the block drives its planes",
            "output": "output matrix: what the block reads off its planes",
            "gate": "gate of the block; 0 lets half of everything through",
        }
        names = [(f"layers.{index}.{name}", meaning) for name, meaning in meanings.items()]
        ops = {"angle": ("freeze", "zero")}
        return [Target(n, n, ops.get(n.rpartition(".")[2], ("zero",)), told) for n, told in names]

    def _through(
        self, weights: Weights, x: Tensor, move: Callable[[int, Layer, Tensor], Tensor]
    ) -> Tensor:
        h = drive(weights["encoder"], x) + weights["encoder.bias"]
        for index in range(self.num_layers):
            layer = _layer(weights, index)
            u = _normalised(h, layer["norm"])
            driven = (u @ layer["input"].mT).reshape(*u.shape[:-1], -1, 2)  # (..., p, 2)
            z = move(index, layer, driven)
            g = gelu(z.flatten(-2) @ layer["output"].mT + layer["skip"] * u)
            h = h + g * torch.sigmoid(g @ layer["gate"].mT + layer["gate.bias"])
        return h


def check_ring(name: str, least: float, most: float, max_phase: float) -> None:
    """Raise `ValueError` unless 0 < least <= most < 1 and 0 < max_phase <= 2π."""
    if not 0.0 < least <= most < 1.0:
        expected = f"0 < {name}_min <= {name}_max < 1"
        raise ValueError(f"{name}_min, {name}_max: found {least} and {most}, expected {expected}")
    if not 0.0 < max_phase <= math.tau:
        raise ValueError(f"max_phase: found {max_phase}, expected more than 0 and at most 2π")


def _layer(weights: Weights, index: int) -> Layer:
    return {name: weights[f"layers.{index}.{name}"] for name in LAYER}


def _normalised(h: Tensor, scale: Tensor) -> Tensor:
    return layer_norm(h, h.shape[-1:], scale)


def _per_plane(layer: Layer) -> Tensor:
    return layer["decay"].unsqueeze(-1).expand_as(layer["angle"]).flatten()


def _turn(layer: Layer, z: Tensor) -> Tensor:  # (B, p, 2)
    return rotate(_per_plane(layer), layer["angle"].flatten(), z)
