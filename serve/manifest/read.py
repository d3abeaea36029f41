"""Reading, writing and checking manifest.json; `serve.manifest.page` is what it must hold.

Standard library only.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from serve.manifest.files import require_same
from serve.manifest.page import (
    BETTER,
    DOMAIN,
    DTYPES,
    FORMAT,
    GRAPH_FILE,
    INPUTS,
    IR_VERSION,
    MANIFEST_FILE,
    NAME_RULE,
    NEWER,
    OPSET,
    SYMBOLS,
    TARGETS,
    TRIALS_FILE,
    VERSION,
    WEIGHTS_FILE,
    FileSpec,
    GraphSpec,
    Manifest,
    TaskSpec,
    TensorSpec,
)
from serve.manifest.values import BundleError, Json, parse_value

MOST_STEPS = 1 << 16  # characters of one run; what a run takes of memory grows with them


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
    if not 1 <= graph.max_steps <= MOST_STEPS:
        yield "graph.max_steps", f"found {graph.max_steps}, expected 1 to {MOST_STEPS}"
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
    require_same(path, describe_file(path), expected)


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
