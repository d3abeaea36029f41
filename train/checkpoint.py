"""The checkpoint: what `train` writes, one folder, whole or not at all.

    RUN/checkpoint-000500/
      config.json             family, sizes, vocabulary, data, training settings; plain types
      parameters.safetensors  the model's parameters
      trainer.safetensors     optimiser moments and random-number states
      metrics.jsonl           everything measured so far, a line an event
      trainer.json            iteration, and size and SHA-256 of the other files; written last

The folder is filled under another name and renamed, so a run that is killed at any moment resumes
from the newest whole checkpoint. Nothing is ever pickled.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

FORMAT = 1
PREFIX = "checkpoint-"
KEEP = 2  # newest checkpoints that stay on disk
FILES = ("config.json", "parameters.safetensors", "trainer.safetensors", "metrics.jsonl")

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
    part = run / f".{folder.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    contents = (
        json.dumps(config, ensure_ascii=False, indent=1).encode(),
        save(parameters),
        save(trainer),
        (run / "metrics.jsonl").read_bytes(),
    )
    for name, content in zip(FILES, contents, strict=True):
        _write(part / name, content)
    _write(part / "trainer.json", _seal(iteration, dict(zip(FILES, contents, strict=True))))
    _remove(folder)
    os.rename(part, folder)
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
    seal = _read_json(folder / "trainer.json", ("format", "iteration", "files"))
    if not isinstance(seal["files"], dict) or not isinstance(seal["iteration"], int):
        raise CheckpointError(folder / "trainer.json", "iteration or files are not what they were")
    for name in FILES:
        _check(folder / name, seal["files"].get(name))
    config = _read_json(folder / "config.json", None)
    parameters = _read_tensors(folder / "parameters.safetensors")
    return seal["iteration"], config, parameters, _read_tensors(folder / "trainer.safetensors")


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


def _read_json(path: Path, keys: tuple[str, ...] | None) -> dict[str, Any]:
    try:
        page = json.loads(path.read_bytes())
    except ValueError as error:
        raise CheckpointError(path, f"not JSON ({error})") from None
    if not isinstance(page, dict) or page.get("format") != FORMAT:
        found = page.get("format") if isinstance(page, dict) else None
        raise CheckpointError(path, f"format: found {found!r}, expected {FORMAT}; newer torsor?")
    if keys is not None and set(page) != set(keys):
        raise CheckpointError(path, f"keys: found {sorted(page)}, expected {sorted(keys)}")
    return page


def _read_tensors(path: Path) -> Tensors:
    try:
        return load(path.read_bytes())
    except SafetensorError as error:
        raise CheckpointError(path, f"not a safetensors file ({error})") from None
