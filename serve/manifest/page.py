"""What a manifest is made of, as values; `serve.manifest.page` is the page that explains them.

Fields with a default came later than the format: pages without them are read.

What a task bundle says of its task; `serve.manifest.page` is the page that explains it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from serve.manifest.values import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A graph input or output; a dimension is a number or a free letter."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """One state tensor of one stream."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    initial: str  # the tensor of weights.safetensors that a fresh stream starts from
    orthogonal: bool = False  # whether it stays an orthogonal matrix: off it, it is no state


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSpec:
    """How model.onnx is called, and what it was written in."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    correct_every: int  # positions between corrections of the state; 0: never
    max_steps: int  # K that runs are cut into
    opset: int
    ir_version: int
    operators: dict[str, int]  # operator domains of ours and their version
    ranges: dict[str, float]  # operator: largest ‖S‖_F / √2 that its body is right for


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A weight, or a slice of it, that edits may name."""

    name: str
    weight: str
    slice: tuple[tuple[int, int], ...] | None  # (start, stop) per axis; None: the whole weight
    shape: tuple[int, ...]
    ops: tuple[str, ...]
    meaning: str  # in plain words
    subspace: str | None = None  # tensor of weights.safetensors: orthonormal rows (r, shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """How an element g of a symmetry moves one axis of a weight, or of a slice of it.

    The axis is seen as (outer, size, inner); every vector v along `size` becomes g v. Where there
    is an `algebra`, `size` is its dimension and v its coordinates: X becomes g X g^-1.
    """

    weight: str  # a tensor of weights.safetensors; an initial state or a subspace too
    axis: int
    slice: tuple[tuple[int, int], ...] | None = None  # as a target's
    inner: int = 1
    dual: bool = False  # g^-T v instead
    algebra: str | None = None  # a name of `serve.ablation.algebra`


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetry:
    """A change of the weights that no output sees, for every g of a group."""

    name: str
    group: str  # a name of `serve.ablation.symmetry`
    size: int  # of the matrices g
    meaning: str  # in plain words
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityCase:
    """One comparison: the same inputs through torch, the reference evaluator and the runtime."""

    weights: str  # "trained" or "random"
    batch: int
    num_steps: int  # of a run
    start: int = 0  # largest position that a row starts from; if above 0, a second run goes on
    reference_error: float  # largest |difference| to torch, relative to 1 + |value|
    runtime_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrolledCase:
    """One comparison of the unrolled form, run by the runtime on the CPU."""

    weights: str
    batch: int
    start: int
    torch_error: float  # largest |difference| to torch, relative to 1 + |value|
    loop_error: float  # the same to the form with a loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """The report of the export; `max_error` is at most `tolerance`, or there would be no bundle."""

    tolerance: float
    max_error: float
    cases: tuple[ParityCase, ...]
    unrolled: tuple[UnrolledCase, ...] = ()  # where the bundle has that form


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSpec:
    """A file of the bundle."""

    sha256: str
    size: int


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
