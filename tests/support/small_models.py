"""Small models of every family, trained a little and exported: made once, for all workers."""

import dataclasses
import fcntl
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SMALL_SIZES: dict[str, dict[str, Any]] = {  # of families, for models of tasks
    "lightning": {"d": 8, "layers": 1, "heads": 2, "a": 3},
    "lru": {"layers": 1, "width": 6},
    "lstm": {"n": 5, "embedding": 4},
    "osm-former": {"d": 3, "layers": 1, "context": 5},
    "osm-rnn": {"d": 4},
    "rotrnn": {"layers": 1, "width": 6, "n": 8, "heads": 2},
    "sparse-xor": {"m": 6},
    "tanh-rnn": {"n": 6},
    "transformer": {"d": 8, "layers": 1, "heads": 2, "context": 5},
}
SMALL_OPTIONS: dict[str, dict[str, Any]] = {  # of tasks
    "adding": {"length": 21},
    "copy": {"symbols": 3, "bits": 2, "train_lags": 6, "lags": 20},
    "flip-flop": {"length": 20},
    "integration": {},
    "list-ops": {"num_train": 50, "max_length": 40},
    "mnist": {"step": "row", "num_valid": 20, "num_test": 30},
    "sine": {"length": 20},
    "sparse-xor": {"d": 8},
    "spoken-digits": {"frame": 100, "max_samples": 2000},
}
TEXT_PARAMETERS = 5_000  # about, of models of text


def made_once(temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` has filled, by whichever worker came first; the others wait for it."""
    base = temporary.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # all workers' is above
    folder, whole = root / "made" / name, root / "made" / f"{name}.whole"
    folder.parent.mkdir(exist_ok=True)
    with (root / "made" / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder


def export_text(folder: Path, family_name: str) -> None:
    """A `run` of a family on a small text, and its `bundle`."""
    from export.__main__ import main
    from train.loop import train
    from train.run import start_run
    from train.settings import Settings

    (folder / "text.txt").write_text("the cat sat on the mat, and so did I" * 60)
    settings = Settings(
        data=str(folder / "text.txt"), iterations=12, window=12, batch=4, learning_rate=0.1
    )
    sizes = _text_sizes(family_name)
    train(start_run(folder / "run", family_name, sizes, settings), quiet=True)
    out = ("--out", str(folder / "bundle"), "--name", f"small-{family_name}")
    assert main([str(folder / "run"), *out, "--quiet"]) == 0


def export_task(folder: Path, family_name: str, task: str) -> None:
    """A `run` of a family on a task, and its `bundle`."""
    from export.bundle import export_bundle
    from train.loop import train
    from train.run import start_run
    from train.settings import Settings

    sizes, options = SMALL_SIZES[family_name], SMALL_OPTIONS[task]
    settings = Settings(task=task, iterations=6, batch=8)
    train(start_run(folder / "run", family_name, sizes, settings, options), quiet=True)
    export_bundle(folder / "run", folder / "bundle", f"small-{task}", quiet=True)


def _text_sizes(name: str) -> dict[str, int]:
    from train.model import family

    if known := {"osm-rnn": {"d": 5}, "tanh-rnn": {"n": 12}}.get(name):
        return known
    fields = {field.name for field in dataclasses.fields(family(name).Config)}
    layers = 1 if name == "osm-former" else 2  # torch takes seconds to export each of its layers
    chosen = {"input_size": 14, "output_size": 14, "layers": layers, "context": 6}
    found = fitted(name, {k: v for k, v in chosen.items() if k in fields}, TEXT_PARAMETERS)
    return {key: size for key, size in found.items() if not key.endswith("put_size")}


def fitted(name: str, sizes: dict[str, Any], budget: int) -> dict[str, Any]:
    """`fit_sizes`, which makes a dozen models for an answer, asked once for all who ask alike."""
    return {**_fitted(name, tuple(sizes.items()), budget)}


@functools.cache
def _fitted(name: str, sizes: tuple[tuple[str, Any], ...], budget: int) -> dict[str, Any]:
    from train.presets import fit_sizes

    return fit_sizes(name, dict(sizes), budget)
