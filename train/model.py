"""The family contract: parameters → weights → step.

    parameters --weights()--> effective weights {name: tensor}
    step(weights, state, x) -> (state, y):  state' = update(weights, state, x);  y = readout(state')

`y` are the logits of the character after x, so `readout(initial state)` predicts the first one. An
object holds parameters only: state goes in and comes out. Every family is one file in
`train/models/`; this page finds it by its name.

Letters: B batch, T time, V vocabulary.
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


class Model(nn.Module, ABC):
    """A family of text models: everything that training, export and ablation need to know."""

    family: ClassVar[str]
    Config: ClassVar[Any]  # frozen dataclass; its fields are command-line options
    learning_rate: ClassVar[float] = 0.01  # peak that suits the family at 100K parameters
    learning_rates: ClassVar[dict[str, float]] = {}  # parameter: multiple of the run's rate
    correct_every: ClassVar[int] = 0  # positions between calls of `correct`; 0: never

    config: Any

    @abstractmethod
    def weights(self) -> Weights:
        """Effective weights under stable dotted names; the parametrisations are applied here."""

    @abstractmethod
    def init_state(self, batch: int) -> State:
        """The state of `batch` fresh streams."""

    @abstractmethod
    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        """The state after taking characters x (B)."""

    @abstractmethod
    def readout(self, weights: Weights, state: State) -> Tensor:
        """Logits (B, V) of the next character."""

    @abstractmethod
    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        """`step` folded over xs (T, B), in its fast form: final state and logits (T, B, V)."""

    @abstractmethod
    def targets(self) -> list[Target]:
        """What ablations may edit."""

    def step(self, weights: Weights, state: State, x: Tensor) -> tuple[State, Tensor]:
        """One character in, the logits (B, V) of the next one out."""
        state = self.update(weights, state, x)
        return state, self.readout(weights, state)

    def correct(self, state: State) -> State:
        """The state put back where rounding has moved it from; by default there is no such place.

        Applied to streams at positions that are multiples of `correct_every`.
        """
        return state

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
    return state, torch.stack(ys)  # (T, B, V)


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
