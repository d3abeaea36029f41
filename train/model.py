"""The family contract: parameters → weights → step.

    parameters --weights()--> effective weights {name: tensor}
    step(weights, state, x) -> (state, y):  state' = update(weights, state, x);  y = readout(state')

For text, x is a character and `y` are the logits of the next one, so `readout(initial state)`
predicts the first. For other tasks x may be a vector; `drive` makes the two one: a character is a
one-hot vector. An object holds parameters only: state goes in and comes out. Every family is one
file in `train/models/`; this page finds it by its name.

Letters: B batch, T time, V input size (text: the vocabulary's), Y output size (text: V too).
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from train import models

State = dict[str, Tensor]  # each (B, ...), float32
Weights = dict[str, Tensor]


class Target(NamedTuple):
    """A weight, or a slice of it ((start, stop) per axis), that ablations may edit."""

    name: str
    weight: str
    ops: tuple[str, ...]
    meaning: str
    slice: tuple[tuple[int, int], ...] | None = None
    subspace: str | None = None  # one of `Model.subspaces`, which the op "project" keeps


class Action(NamedTuple):
    """How an element of a symmetry moves an axis of a weight, as `serve.manifest.page` says."""

    weight: str
    axis: int
    inner: int = 1
    dual: bool = False
    algebra: str | None = None
    slice: tuple[tuple[int, int], ...] | None = None


class Symmetry(NamedTuple):
    """A change of the weights, by any element of a group of size×size matrices, that changes no y.

    Initial states are weights called `initial.NAME`. Those of zeros stay so, and aren't named.
    """

    name: str
    group: str
    size: int
    meaning: str
    actions: tuple[Action, ...]


class Model(nn.Module, ABC):
    """A family of sequence models: everything that training, export and ablation need to know.

    `Config` is a frozen dataclass with `input_size` and `output_size`; its other fields are
    command-line options. `grows` names the one that a parameter budget decides.
    """

    family: ClassVar[str]
    Config: ClassVar[Any]
    takes: ClassVar[tuple[str, ...]] = ("characters", "vectors")
    learning_rate: ClassVar[float] = 0.01  # peak that suits the family at 100K parameters
    long_learning_rate: ClassVar[float | None] = None  # of tasks of long trials; None: the same
    learning_rates: ClassVar[dict[str, float]] = {}  # parameter: multiple of the run's rate
    weight_decays: ClassVar[dict[str, float]] = {}  # the same for its decay
    dropped: ClassVar[tuple[str, ...]] = ()  # weights whose entries weight dropout leaves out
    correct_every: ClassVar[int] = 0  # positions between calls of `correct`; 0: never
    grows: ClassVar[str]

    config: Any

    @abstractmethod
    def weights(self) -> Weights:
        """Effective weights under stable dotted names; the parametrisations are applied here."""

    @abstractmethod
    def init_state(self, batch: int) -> State:
        """The state of `batch` fresh streams."""

    @abstractmethod
    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        """The state after taking characters x (B), or vectors x (B, V)."""

    @abstractmethod
    def readout(self, weights: Weights, state: State) -> Tensor:
        """Outputs (B, Y): of text models the logits of the next character."""

    @abstractmethod
    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        """`step` folded over xs (T, B) or (T, B, V), in its fast form: state and ys (T, B, Y)."""

    @abstractmethod
    def targets(self) -> list[Target]:
        """What ablations may edit."""

    def symmetries(self) -> list[Symmetry]:
        """Exact symmetries of the weights: edits that must change nothing."""
        return []

    def subspaces(self, weights: Weights, logits: bool) -> Weights:
        """Orthonormal bases (r, D) that targets name; with `logits`, y counts up to a shift."""
        del weights, logits
        return {}

    def step(self, weights: Weights, state: State, x: Tensor) -> tuple[State, Tensor]:
        """One x in, its y (B, Y) out."""
        state = self.update(weights, state, x)
        return state, self.readout(weights, state)

    def correct(self, state: State) -> State:
        """The state put back where rounding has moved it from; by default there is no such place.

        Applied to streams at positions that are multiples of `correct_every`.
        """
        return state

    def elements(self, state: State) -> Tensor | None:
        """The group elements (B, n, n) that a state is, of families whose states live on one."""
        del state
        return None

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def num_parameters(self) -> int:
        """All of them, embeddings and biases too."""
        return sum(parameter.numel() for parameter in self.parameters())


def scan_reference(
    model: Model, weights: Weights, state: State, xs: Tensor
) -> tuple[State, Tensor]:
    """`scan` as what it means: the loop of steps."""
    ys = []
    for x in xs:
        state, y = model.step(weights, state, x)
        ys.append(y)
    return state, torch.stack(ys)  # (T, B, Y)


def on_axis(
    axis: int, *weights: str, inner: int = 1, dual: bool = False, algebra: str | None = None
) -> tuple[Action, ...]:
    """The same action on several weights."""
    return tuple(Action(weight, axis, inner, dual, algebra) for weight in weights)


def drive(table: Tensor, x: Tensor) -> Tensor:  # (V, ...), (B) or (B, V) -> (B, ...)
    """Row x of a table for characters, Σ_i x_i · row i for vectors; x may have more first axes."""
    if not x.is_floating_point():
        rows = table.index_select(0, x.flatten())
        return torch.unflatten(rows, 0, x.shape) if x.ndim != 1 else rows
    driven: Tensor = torch.tensordot(x, table, dims=1)
    return driven


def predict(model: Model, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
    """The state after xs (T, B), and the logits (T + 1, B, V) before each of them and after all."""
    first = model.readout(weights, state)
    state, ys = model.scan(weights, state, xs)
    return state, torch.cat([first.unsqueeze(0), ys])


def family_names() -> list[str]:
    """The families there are, by the files of train/models/."""
    return sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(models.__path__))


def family(name: str) -> type[Model]:
    """The model class of a family; `ValueError` for a name that isn't one."""
    if name not in family_names():
        raise ValueError(f"family: found {name!r}, expected one of {', '.join(family_names())}")
    module = importlib.import_module(f"train.models.{name.replace('-', '_')}")
    members = (value for value in vars(module).values() if isinstance(value, type))
    return next(c for c in members if issubclass(c, Model) and c.__module__ == module.__name__)
