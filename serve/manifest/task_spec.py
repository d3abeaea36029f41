"""What a task bundle says of its task; `serve.manifest.page` is the page that explains it."""

from collections.abc import Iterator
from dataclasses import dataclass

from serve.manifest.page import GraphSpec, TensorSpec
from serve.manifest.values import Json

INPUTS = {"characters": "int64", "vectors": "float32"}  # what they are: dtype
TARGETS = {"classes": "int64", "vectors": "float32"}
BETTER = ("lower", "higher")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsSpec:
    """Which trials of the task's test part travel in trials.safetensors."""

    count: int
    of: int  # trials of the whole part
    seed: int  # of the generator that drew the part; where `count` is less, of the choice too


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A task: what goes in, what is owed, and how it is scored."""

    name: str
    options: dict[str, Json]
    input_size: int  # X; of characters, how many there are
    output_size: int  # Y; of classes, how many there are
    inputs: str  # "characters" or "vectors"
    targets: str  # "classes" or "vectors"
    pooled: bool  # whether a trial owes one answer, the mean of its outputs where the mask is 1
    headline: str  # the score that a table shows: `training` has test_HEADLINE
    better: str  # "lower" or "higher": where that score wants to be
    trials: TrialsSpec


def task_problems(task: TaskSpec, graph: GraphSpec) -> Iterator[tuple[str, str]]:
    """Key and sentence of what makes no sense in a task, or doesn't fit the graph."""
    for key, found, known in (
        ("inputs", task.inputs, tuple(INPUTS)),
        ("targets", task.targets, tuple(TARGETS)),
        ("better", task.better, BETTER),
    ):
        if found not in known:
            yield f"task.{key}", f"found {found!r}, expected {known[0]!r} or {known[1]!r}"
    for key, size in (("input_size", task.input_size), ("output_size", task.output_size)):
        if size < 1:
            yield f"task.{key}", f"found {size}, expected at least 1"
    if not 1 <= task.trials.count <= task.trials.of:
        expected = f"1 to {task.trials.of}, all that the part has"
        yield "task.trials.count", f"found {task.trials.count}, expected {expected}"
    if task.inputs not in INPUTS:
        return
    width = (task.input_size,) if task.inputs == "vectors" else ()
    yield from _tensor_problems("inputs", graph.inputs, INPUTS[task.inputs], width)
    yield from _tensor_problems("outputs", graph.outputs, "float32", (task.output_size,))


def _tensor_problems(
    name: str, tensors: tuple[TensorSpec, ...], dtype: str, width: tuple[int, ...]
) -> Iterator[tuple[str, str]]:
    expected = f"{dtype} (K, B{''.join(f', {size}' for size in width)}) as task says"
    tensor = next((tensor for tensor in tensors if tensor.name == name), None)
    if tensor is None:
        yield f"graph.{name}", f"found no tensor of that name, expected {expected}"
    elif (tensor.dtype, len(tensor.shape), tensor.shape[2:]) != (dtype, 2 + len(width), width):
        found = f"{tensor.dtype} {list(tensor.shape)}"
        yield f"graph.{name}", f"found {found}, expected {expected}"
