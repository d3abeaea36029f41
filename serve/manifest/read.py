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

import dataclasses
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from serve.manifest.page import Action as Action
from serve.manifest.page import FileSpec as FileSpec
from serve.manifest.page import GraphSpec as GraphSpec
from serve.manifest.page import Parity as Parity
from serve.manifest.page import ParityCase as ParityCase
from serve.manifest.page import StateSpec as StateSpec
from serve.manifest.page import Symmetry as Symmetry
from serve.manifest.page import Target as Target
from serve.manifest.page import TaskSpec as TaskSpec
from serve.manifest.page import TensorSpec as TensorSpec
from serve.manifest.page import TrialsSpec as TrialsSpec
from serve.manifest.page import UnrolledCase as UnrolledCase
from serve.manifest.page import task_problems
from serve.manifest.values import BundleError as BundleError
from serve.manifest.values import Json as Json
from serve.manifest.values import parse_value

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


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json whole (temporary name, then rename)."""
    temporary = folder / (MANIFEST_FILE + ".part")
    temporary.write_bytes(manifest_bytes(manifest))
    os.replace(temporary, folder / MANIFEST_FILE)


def manifest_bytes(manifest: Manifest) -> bytes:
    """The file's exact bytes: UTF-8 JSON, keys in field order, one space of indent."""
    text = json.dumps(dataclasses.asdict(manifest), ensure_ascii=False, indent=1, allow_nan=False)
    return (text + "\n").encode()


def describe_file(path: Path) -> FileSpec:
    """Size and SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return FileSpec(sha256=digest.hexdigest(), size=path.stat().st_size)


def read_manifest(folder: Path) -> Manifest:
    """Read and check manifest.json, and that every file it names is there and unchanged.

    Raises `BundleError` with file and key for anything that is not as this page says.
    """
    manifest = _read_page(folder)
    for name, expected in manifest.files.items():
        _check_file(folder / name, expected)
    return manifest


def _read_page(folder: Path) -> Manifest:
    path = folder / MANIFEST_FILE
    if not folder.is_dir():
        raise BundleError(folder, "", "no such folder; make one with: torsor export RUN --out DIR")
    if not path.is_file():
        raise BundleError(path, "", "missing; the folder is not a whole bundle, export it again")
    try:
        page = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BundleError(path, "", f"not JSON ({error}); export the bundle again") from None
    manifest = parse_manifest(page, path)
    _check_sense(manifest, path)
    return manifest


def parse_manifest(page: Json, path: Path | str = MANIFEST_FILE) -> Manifest:
    """The checked value of a parsed JSON page."""
    found = page.get("format") if isinstance(page, dict) else None
    if found != FORMAT:
        remedy = f"{NEWER}, or export the bundle again"
        raise BundleError(path, "format", f"found {found!r}, expected {FORMAT}; {remedy}")
    manifest: Manifest = parse_value(Manifest, page, path, "")
    return manifest


def is_model_name(name: str) -> bool:
    """Whether a model may be called so: it stands in URLs and file names."""
    return re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name) is not None


def _check_sense(manifest: Manifest, path: Path) -> None:
    checks = _page_problems, _file_problems, _graph_problems, _kind_problems
    for problems in (*checks, _state_and_target_problems):
        for key, problem in problems(manifest):
            raise BundleError(path, key, problem)


def _page_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    if not is_model_name(manifest.name):
        yield "name", f"found {manifest.name!r:.120}, expected {NAME_RULE}"
    if manifest.num_parameters < 0:
        yield "num_parameters", f"found {manifest.num_parameters}, expected at least 0"
    if manifest.symbols not in SYMBOLS:
        yield "symbols", f"found {manifest.symbols!r:.80}, expected characters or bytes"
    if manifest.symbols == "bytes" and any(
        ord(text[:1] or "\0") > 255 for text in manifest.vocabulary
    ):
        yield "vocabulary", "found a symbol above U+00FF, expected bytes"
    if manifest.task is None and not manifest.vocabulary:
        yield "vocabulary", "found no characters, expected at least one"
    for text in manifest.vocabulary:
        if len(text) != 1 or "\ud800" <= text <= "\udfff":  # a lone surrogate is no UTF-8
            yield "vocabulary", f"found {text!r}, expected single characters"
    if len(set(manifest.vocabulary)) != len(manifest.vocabulary):
        yield "vocabulary", "a character stands in it twice"
    error, tolerance = manifest.parity.max_error, manifest.parity.tolerance
    if not 0 <= error <= tolerance:
        yield "parity.max_error", f"found {error}, expected 0 to the tolerance {tolerance}"


def _file_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for name in manifest.files:
        if "/" in name or "\\" in name or name in ("", ".", ".."):
            yield "files", f"found {name!r}, expected plain file names"
    expected = (GRAPH_FILE, WEIGHTS_FILE, *((TRIALS_FILE,) if manifest.task else ()))
    for name in expected:
        if name not in manifest.files:
            yield "files", f"{name} is not listed"


def _graph_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    graph = manifest.graph
    for key, found, newest in (
        ("opset", graph.opset, OPSET),
        ("ir_version", graph.ir_version, IR_VERSION),
    ):
        if not 1 <= found <= newest:
            yield f"graph.{key}", f"found {found}, expected 1 to {newest}; {NEWER}"
    for domain, version in graph.operators.items():
        if (domain, version) != (DOMAIN, VERSION):
            problem = f"found version {version}, expected {VERSION} of {DOMAIN!r} only; {NEWER}"
            yield f"graph.operators.{domain}", problem
    if graph.max_steps < 1:
        yield "graph.max_steps", f"found {graph.max_steps}, expected at least 1"
    if graph.correct_every < 0:
        yield "graph.correct_every", f"found {graph.correct_every}, expected at least 0"
    for tensor in (*graph.inputs, *graph.outputs):
        if tensor.dtype not in DTYPES:
            yield f"graph.{tensor.name}.dtype", f"found {tensor.dtype!r}, expected one of {DTYPES}"


def _kind_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    characters = len(manifest.vocabulary)
    if manifest.task is not None:
        if characters:
            yield "vocabulary", f"found {characters} characters, expected none beside a task"
        yield from task_problems(manifest.task, manifest.graph)
        return
    inputs = manifest.graph.inputs
    width = next((tensor.shape[-1:] for tensor in inputs if tensor.name == "bias"), ())
    if width != (characters,):
        problem = f"found {characters} characters, expected {list(width)}, the last axis of"
        yield "vocabulary", f"{problem} graph input bias"
    if not manifest.states:
        yield "states", "found none, expected at least one"


def _state_and_target_problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for i, state in enumerate(manifest.states):
        if state.dtype != "float32":
            yield f"states[{i}].dtype", f"found {state.dtype!r}, expected 'float32'"
    for key, named in (("targets", manifest.targets), ("symmetries", manifest.symmetries)):
        count = Counter(one.name for one in named)
        if twice := [name for name in count if count[name] > 1]:
            yield key, f"found {twice[0]!r} twice, expected every name once"


def _check_file(path: Path, expected: FileSpec) -> None:
    if not path.is_file():
        raise BundleError(path, "", "missing; export the bundle again")
    if (size := path.stat().st_size) != expected.size:
        raise BundleError(path, "size", f"found {size} bytes, expected {expected.size}; truncated?")
    if (found := describe_file(path).sha256) != expected.sha256:
        raise BundleError(path, "sha256", f"found {found}, expected {expected.sha256}; changed?")
