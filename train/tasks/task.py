"""A task: what a model is trained to do, and how well it does it.

Every task is one file in `train/tasks/`; this page finds it by its name. Its options are the fields
of its `Config`. A generator of trials is a function of its options and of a seeded generator, so
held-out trials can be made again anywhere.

Letters: B batch (trials side by side), T time, V input size, Y output size.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from train import tasks
from train.model import Model
from train.settings import Settings

Part = Literal["valid", "test"]
Scores = dict[str, float]


class Trials(NamedTuple):
    """Sequences side by side; the second axis of every tensor is the trial's.

    | tensor    | of steps                        | pooled: one target a trial |
    |-----------|---------------------------------|----------------------------|
    | `inputs`  | (T, B) characters, or (T, B, V) | the same                   |
    | `targets` | (T, B) classes, or (T, B, Y)    | (1, B), or (1, B, Y)       |
    | `mask`    | (T, B): 1 where a step counts   | 1 where outputs are pooled |
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor

    def part(self, index: int, count: int) -> "Trials":
        """Every `count`-th trial, from `index` on."""
        return Trials(*(tensor[:, index::count] for tensor in self))

    def to(self, device: torch.device | str) -> "Trials":
        """The same trials there."""
        return Trials(*(tensor.to(device) for tensor in self))


class Source(NamedTuple):
    """What a task's trials are made of; goes into the checkpoint's config."""

    name: str
    sha256: str
    size: int  # characters, images, recordings; 0 for what is generated


class Task(ABC):
    """Everything that training needs to know of a task."""

    name: ClassVar[str]
    Config: ClassVar[Any]  # frozen dataclass; its fields are command-line options
    takes: ClassVar[Literal["characters", "vectors"]] = "vectors"
    long: ClassVar[bool] = False  # hundreds of steps a trial: gradients explode at smaller rates
    headline: ClassVar[str]  # the score that a table shows
    better: ClassVar[Literal["lower", "higher"]] = "lower"

    config: Any
    input_size: int
    output_size: int
    source: Source
    vocabulary: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was found in the data, in plain words

    @abstractmethod
    def sample(self, num_trials: int, generator: torch.Generator) -> Trials:
        """Trials to train on."""

    @abstractmethod
    def loss(self, model: Model, trials: Trials) -> Tensor:
        """What training makes small, a scalar."""

    @abstractmethod
    def evaluate(self, model: Model, part: Part) -> Scores:
        """How well a model does on what it never trained on."""

    @abstractmethod
    def probe(self, num_trials: int, num_steps: int) -> Tensor:
        """The first inputs of a few trials that validate, always the same: (T, B) or (T, B, V)."""

    def write(self, model: Model, seed: int) -> str | None:
        """A text that the model writes, of tasks where it can."""
        del model, seed
        return None


def task_names() -> list[str]:
    """The tasks there are, by the files of train/tasks/."""
    files = {module.name for module in pkgutil.iter_modules(tasks.__path__)}
    return sorted(name.replace("_", "-") for name in files - {"task", "trial_task"})


def task_kind(name: str) -> type[Task]:
    """The class of a task; `ValueError` for a name that isn't one."""
    if name not in task_names():
        raise ValueError(f"task: found {name!r}, expected one of {', '.join(task_names())}")
    module = importlib.import_module(f"train.tasks.{name.replace('-', '_')}")
    members = (value for value in vars(module).values() if isinstance(value, type))
    return next(c for c in members if issubclass(c, Task) and c.__module__ == module.__name__)


def make_task(settings: Settings, options: dict[str, Any]) -> Task:
    """The task of a run, with options that aren't its defaults; `ValueError` for bad ones."""
    kind: Any = task_kind(settings.task)
    task: Task = kind(kind.Config(**options), settings)
    return task
