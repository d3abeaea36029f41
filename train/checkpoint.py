"""The checkpoint: what `train` writes, one folder, whole or not at all.

    RUN/checkpoint-000500/
      config.json             family, sizes, task, vocabulary, data, training settings; plain types
      parameters.safetensors  the model's parameters
      trainer.safetensors     optimiser moments and random-number states
      metrics.jsonl           everything measured so far, a line an event
      trainer.json            iteration, and size and SHA-256 of the other files; written last

The folder is filled under another name and renamed, so a run that is killed at any moment resumes
from the newest whole checkpoint. Nothing is ever pickled.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from train.model import family
from train.settings import Settings
from train.tasks.task import task_kind

FORMAT = 2
PREFIX = "checkpoint-"
KEEP = 2  # newest checkpoints that stay on disk
FILES = ("config.json", "parameters.safetensors", "trainer.safetensors", "metrics.jsonl")

SEAL = {"format": int, "iteration": int, "files": dict}
DATA = {"name": str, "sha256": str, "size": int}
CONFIG = {
    "format": int,
    "family": str,
    "config": dict,
    "task": dict,
    "vocabulary": list,
    "data": dict,
    "training": dict,
}
MAX_STEP = 2**24  # where float32, in which AdamW counts, stays
MOMENTS = ("exp_avg", "exp_avg_sq")

Tensors = dict[str, Tensor]


class CheckpointError(ValueError):
    """A checkpoint that can't be used: which file, what was found and expected."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


def write_checkpoint(
    run: Path, iteration: int, config: dict[str, Any], parameters: Tensors, trainer: Tensors
) -> Path:
    """Write RUN/checkpoint-ITERATION with the run's metrics.jsonl, and drop the oldest ones."""
    folder = run / f"{PREFIX}{iteration:06d}"
    contents = {
        "config.json": json.dumps(config, ensure_ascii=False, indent=1).encode(),
        "parameters.safetensors": save(parameters),
        "trainer.safetensors": save(trainer),
        "metrics.jsonl": (run / "metrics.jsonl").read_bytes(),
    }
    contents["trainer.json"] = _seal(iteration, contents)
    if not _holds(folder, contents):
        _replace(folder, contents)
    for old in checkpoints(run)[:-KEEP]:
        _remove(old)
    return folder


def checkpoints(run: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    whole = [path for path in run.glob(PREFIX + "*") if (path / "trainer.json").is_file()]
    return sorted(whole, key=lambda path: (len(path.name), path.name))


def find_checkpoint(place: Path) -> Path:
    """`place` itself if it is a checkpoint, else the newest one of the run that it is."""
    if (place / "trainer.json").is_file():
        return place
    if not place.is_dir():
        raise CheckpointError(place, "no such folder; train first: torsor train FAMILY --out DIR")
    if not (found := checkpoints(place)):
        raise CheckpointError(place, "holds no whole checkpoint; train first")
    return found[-1]


def read_checkpoint(folder: Path) -> tuple[int, dict[str, Any], Tensors, Tensors]:
    """Iteration, config, parameters and trainer state of a checkpoint, checked."""
    seal = _read_json(folder / "trainer.json", SEAL)
    for name in FILES:
        _check(folder / name, seal["files"].get(name))
    iteration, config = seal["iteration"], _read_json(folder / "config.json", CONFIG)
    model, settings = _check_config(folder / "config.json", config)
    if not 0 <= iteration <= settings.iterations:
        expected = f"0 to {settings.iterations}"
        raise CheckpointError(
            folder / "trainer.json", f"iteration: found {iteration}, expected {expected}"
        )
    if not is_metrics(folder / "metrics.jsonl"):
        raise CheckpointError(
            folder / "metrics.jsonl", "expected a JSON object with iteration a line"
        )
    parameters = _read_tensors(folder / "parameters.safetensors")
    _compare(folder / "parameters.safetensors", _looks(parameters), _looks(model))
    trainer = _read_tensors(folder / "trainer.safetensors")
    _check_trainer(folder / "trainer.safetensors", trainer, model, iteration)
    return iteration, config, parameters, trainer


def is_metrics(path: Path) -> bool:
    """Whether every line of a file is one of a run's measurements."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except (ValueError, RecursionError):
        return False
    return all(isinstance(line, dict) and _is_measurement(line) for line in lines)


def _is_measurement(line: dict[str, Any]) -> bool:
    scores = (value for key, value in line.items() if key.startswith(("valid_", "test_")))
    return type(line.get("iteration")) is int and all(type(score) is float for score in scores)


def _holds(folder: Path, contents: dict[str, bytes]) -> bool:
    """Whether exactly this checkpoint is there: one that is stopped may be asked for twice."""
    paths = {name: folder / name for name in contents}
    return all(path.is_file() and path.read_bytes() == contents[n] for n, path in paths.items())


def _replace(folder: Path, contents: dict[str, bytes]) -> None:
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, content in contents.items():
        _write(part / name, content)
    _remove(folder)  # another one: damaged, or of what was trained on from before it
    os.rename(part, folder)


def _remove(folder: Path) -> None:
    (folder / "trainer.json").unlink(missing_ok=True)  # first: what is half gone isn't whole
    shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _seal(iteration: int, contents: dict[str, bytes]) -> bytes:
    files = {name: _describe(content) for name, content in contents.items()}
    return json.dumps({"format": FORMAT, "iteration": iteration, "files": files}, indent=1).encode()


def _describe(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def _check(path: Path, expected: Any) -> None:
    if not path.is_file():
        raise CheckpointError(path, "missing; resume from an older checkpoint")
    if (found := _describe(path.read_bytes())) != expected:
        raise CheckpointError(
            path, f"found {found}, expected {expected}; truncated or changed since it was written"
        )


def _read_json(path: Path, types: dict[str, type]) -> dict[str, Any]:
    try:
        page: dict[str, Any] = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, f"not JSON ({error})") from None
    found = page.get("format") if isinstance(page, dict) else None
    if found != FORMAT:
        raise CheckpointError(path, f"format: found {found!r}, expected {FORMAT}; newer torsor?")
    _check_types(path, "", page, types)
    return page


def _check_types(path: Path, place: str, page: dict[str, Any], types: dict[str, type]) -> None:
    if set(page) != set(types):
        raise CheckpointError(path, f"{place}keys: found {sorted(page)}, expected {sorted(types)}")
    for key, kind in types.items():
        if not _is_a(page[key], kind):
            raise CheckpointError(
                path, f"{place}{key}: found {page[key]!r:.60}, expected {kind.__name__}"
            )


def _is_a(value: object, kind: type) -> bool:
    whole_float = kind is float and type(value) is int and abs(value) <= MAX_STEP
    return type(value) is kind or whole_float  # True is no int here


def _check_config(path: Path, config: dict[str, Any]) -> tuple[Tensors, Settings]:
    """The parameters of the model that a config describes, without memory, and its settings."""
    _check_types(path, "data ", config["data"], DATA)
    settings = _build(path, "training", Settings, config)
    try:
        kind = family(config["family"])
    except ValueError as error:
        raise CheckpointError(path, str(error)) from None
    sizes = _build(path, "config", kind.Config, config)
    try:
        _build(path, "task", task_kind(settings.task).Config, config)
    except ValueError as error:
        raise CheckpointError(path, str(error)) from None
    if settings.task == "text":
        _check_vocabulary(path, config["vocabulary"], sizes)
    with torch.device("meta"):
        return dict(kind(sizes).named_parameters()), settings


def _build(path: Path, key: str, kind: Any, config: dict[str, Any]) -> Any:
    types: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(kind)}
    _check_types(path, f"{key} ", config[key], types)
    try:
        return kind(**config[key])
    except ValueError as error:
        raise CheckpointError(path, f"{key} {error}") from None


def _check_vocabulary(path: Path, vocabulary: list[Any], sizes: Any) -> None:
    characters = {
        c for c in vocabulary if isinstance(c, str) and len(c) == 1 and not _is_surrogate(c)
    }
    if not vocabulary or len(characters) != len(vocabulary):
        raise CheckpointError(path, "vocabulary: expected characters, each once")
    for key in ("input_size", "output_size"):
        if (found := getattr(sizes, key)) != len(vocabulary):
            raise CheckpointError(path, f"config {key}: found {found}, expected {len(vocabulary)}")


def _is_surrogate(character: str) -> bool:
    return 0xD800 <= ord(character) < 0xE000


def _check_trainer(path: Path, trainer: Tensors, model: Tensors, iteration: int) -> None:
    states = {"generator": torch.get_rng_state(), "torch": torch.get_rng_state()}
    trained = {name: p for name, p in model.items() if p.requires_grad}
    moments = {f"{key}.{name}": p for key in MOMENTS for name, p in trained.items()}
    steps = {f"step.{name}": torch.tensor(0.0) for name in trained}
    _compare(path, _looks(trainer), _looks(states | (moments | steps if iteration else {})))
    for name in steps.keys() & trainer.keys():
        if (found := float(trainer[name])) != min(iteration, MAX_STEP):
            raise CheckpointError(
                path, f"{name}: found {found}, expected trainer.json's iteration {iteration}"
            )
    for name in states:
        try:
            torch.Generator().set_state(trainer[name])
        except RuntimeError:
            raise CheckpointError(path, f"{name}: not the state of a random generator") from None


def _looks(tensors: Tensors) -> dict[str, str]:
    return {name: f"{value.dtype} {tuple(value.shape)}" for name, value in tensors.items()}


def _compare(path: Path, found: dict[str, str], expected: dict[str, str]) -> None:
    for name in sorted(found.keys() | expected.keys()):
        one, other = found.get(name, "none"), expected.get(name, "none")
        if one != other:
            raise CheckpointError(path, f"{name!r}: found {one}, expected {other}")


def _read_tensors(path: Path) -> Tensors:
    try:
        return load(path.read_bytes())
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(path, f"not a safetensors file ({error})") from None
