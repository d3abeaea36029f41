"""The bundle: what `export` writes and `serve` reads, one folder.

    NAME/
      model.onnx            graphs only; weights are external data
      weights.safetensors   effective weights and initial states; model.onnx points into this file
      trials.safetensors    of task models only: trials of the task's test part
      unrolled.onnx         where it was asked for: the same graph, K = max_steps, without a loop
      manifest.json         this page; written last and atomically, so its presence means "whole"

A bundle MUST hold every file that `files` names, with that size and SHA-256. A reader MUST refuse
a format number it does not know, a key it does not know, and a file that differs. Not checked here:
that the graph computes what its weights say; the parity report states how that was measured.

A bundle is of text or of a task. **Of text**: `vocabulary` names the characters and `task` is null.
Where `symbols` is "bytes", a text is its UTF-8 bytes, and what is said of characters holds of them.
**Of a task**: `vocabulary` is empty, and `task` says what goes in and what is owed.

**The graph `advance` of text** takes B streams through K steps. B and K are free. Inputs:

| name          | shape    | dtype   | meaning                                                     |
|---------------|----------|---------|-------------------------------------------------------------|
| state tensors | (B, ...) | float32 | as `states` lists them                                      |
| `position`    | (B)      | int64   | characters the stream has taken since its initial state     |
| `forced`      | (K, B)   | int64   | the character taken at step k, or -1: sample it             |
| `num_steps`   | (B)      | int64   | steps this row takes; after them it keeps its state         |
| `uniform`     | (K, B)   | float32 | in [0, 1), a multiple of 2^-23: the random number of step k |
| `temperature` | (B)      | float32 | 0 takes the most probable character, lowest index on ties   |
| `top_k`       | (B)      | int64   | keep the k most probable characters; 0 keeps all            |
| `top_p`       | (B)      | float32 | keep the smallest set of that probability; 1 keeps all      |
| `bias`        | (B, V)   | float32 | added to the logits before sampling; -inf forbids           |

Outputs: the state tensors under `next.NAME`, `tokens` (K, B) int64 (-1 where a row rests),
`logprob` (K, B) float32 of the character taken, under the raw distribution (no temperature, no
bias), and `logits` (K, B, V) before the character of step k.

**The first character is predicted from the initial state.** At step k the state predicts, a
character is forced or sampled, and then the state takes it in.

**Correction.** At positions that are multiples of `correct_every` the state is first put back on
its group, or the windows that attention looks at are moved on (0: never). Only the first step of a
run can do that, so a run MUST NOT carry a row across such a position:
`num_steps <= correct_every - position % correct_every`. Then the bits of a stream depend on its
characters alone, not on how runs were cut.

**The graph `advance` of a task** has the inputs state tensors, `position` and `num_steps` as above,
and `inputs`, what each stream takes at step k: (K, B) int64 where `task.inputs` is "characters",
(K, B, X) float32 where it is "vectors". Outputs: the state tensors under `next.NAME`, and `outputs`
(K, B, Y) float32, read out after the state has taken step k's input; 0 where a row rests.

**A whole-input graph** is that of a task model whose outputs depend on no input but their own
step's: `states` is empty and there is no loop, all inputs are taken at once. It is called like any
other.

**Trials** (N of T steps) are `inputs` (T, N) int64 or (T, N, X) float32; `mask` (T, N) float32, 1
where a step counts; `targets` (T, N) int64 where `task.targets` is "classes", (T, N, Y) float32
where it is "vectors". If `task.pooled`, a trial owes one answer, the mean of its outputs where the
mask is 1, and `targets` has T = 1. Every trial starts from the initial state.

**Targets** are what ablations may edit: a weight of weights.safetensors, or a slice of it. A
`subspace` is a tensor there that no graph takes: an orthonormal basis, which "project" keeps.
**Symmetries** are edits that outputs don't see: `Action` says how an element g of a group moves
weights and initial states. A reader MUST check that weights, axes and sizes fit.
Standard library only: every room may read this contract.
"""

from dataclasses import dataclass, field

from serve.manifest.values import Json

FORMAT = 2
OPSET, IR_VERSION = 20, 10  # of ONNX: what is written, and the newest that is read
DOMAIN, VERSION = "torsor", 1  # of our operators
DTYPES = ("float32", "int64")
SYMBOLS = ("characters", "bytes")
NEWER = "use the torsor that wrote it"
NAME_RULE = "1 to 100 of the characters A-Z a-z 0-9 . _ -"
MANIFEST_FILE = "manifest.json"
GRAPH_FILE = "model.onnx"
UNROLLED_FILE = "unrolled.onnx"
WEIGHTS_FILE = "weights.safetensors"
TRIALS_FILE = "trials.safetensors"


# Fields with a default came later than the format: pages without them are read.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The page as a value. Field order is file order."""

    format: int = FORMAT
    name: str
    family: str
    config: dict[str, Json]
    num_parameters: int
    symbols: str  # what the vocabulary has: "characters", or "bytes", byte n as code point n
    vocabulary: tuple[str, ...]  # one character a symbol, in index order; of a task empty
    task: TaskSpec | None  # None: text
    states: tuple[StateSpec, ...]
    graph: GraphSpec
    targets: tuple[Target, ...]
    symmetries: tuple[Symmetry, ...] = ()
    training: dict[str, Json] = field(default_factory=dict)
    parity: Parity
    files: dict[str, FileSpec]

    def target(self, name: str) -> Target | None:
        """The target called `name`, if there is one."""
        return next((target for target in self.targets if target.name == name), None)
