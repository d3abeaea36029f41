"""Trials of a task: taken through a session in process, and scored.

`serve.manifest.page` defines them.

    classes: loss = mean cross-entropy (nats);  accuracy = share of answers that are largest where
             the target is
    vectors: loss = mean squared error;  fvu = Σ‖y - target‖² / Σ‖target - mean target‖²

over the steps whose mask is 1, or, pooled, over one answer a trial: the mean of its outputs where
its mask is 1.

Letters: T time, N trials, B batch, K steps, X input size, Y output size.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serve.manifest.page import Manifest, TaskSpec

Array = NDArray[Any]
Arrays = Mapping[str, Array]
BATCH = 128


class Trials(NamedTuple):
    """Trials side by side, as trials.safetensors has them."""

    inputs: Array  # (T, N) characters, or (T, N, X)
    targets: Array  # (T, N) classes, or (T, N, Y); pooled: T is 1
    mask: Array  # (T, N): 1 where a step counts


def run_trials(
    run: Callable[[dict[str, Array]], Arrays],
    manifest: Manifest,
    initial: Arrays,
    inputs: Array,
    batch: int = BATCH,
) -> Array:
    """The outputs (T, N, Y) of trials that all start from the `initial` state of one stream.

    `run` is that of a session; no run has more trials than `batch` or steps than the manifest says.
    """
    starts = range(0, inputs.shape[1], batch)
    pieces = [_run_batch(run, manifest, initial, inputs[:, i : i + batch]) for i in starts]
    return np.concatenate(pieces, axis=1)


def score_trials(task: TaskSpec, outputs: Array, trials: Trials) -> dict[str, float]:
    """`loss`, and `accuracy` or `fvu`, of outputs (T, N, Y)."""
    outputs, weight = outputs.astype(np.float64), trials.mask.astype(np.float64)
    if task.pooled:
        outputs = (outputs * weight[..., None]).sum(0, keepdims=True) / weight.sum(0)[:, None]
        weight = np.ones(outputs.shape[:2])
    score = score_classes if task.targets == "classes" else score_vectors
    return score(outputs, trials.targets, weight)


def score_classes(outputs: Array, targets: Array, weight: Array) -> dict[str, float]:
    """`loss` and `accuracy`: (T, N, Y), (T, N), (T, N)."""
    shifted = outputs - outputs.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    taken = np.take_along_axis(logs, targets[..., None], axis=-1)[..., 0]
    hits = outputs.argmax(axis=-1) == targets
    total = weight.sum()
    return {
        "loss": float(-(taken * weight).sum() / total),
        "accuracy": float((hits * weight).sum() / total),
    }


def score_vectors(outputs: Array, targets: Array, weight: Array) -> dict[str, float]:
    """`loss`, and `fvu`, not finite where all targets are one: (T, N, Y), (T, N, Y), (T, N)."""
    kept, total = weight[..., None], weight.sum()
    targets = targets.astype(np.float64)
    missed = ((outputs - targets) ** 2 * kept).sum()
    mean = (targets * kept).sum(axis=(0, 1)) / total  # (Y)
    variation = ((targets - mean) ** 2 * kept).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        fvu = missed / variation
    return {"loss": float(missed / total / targets.shape[-1]), "fvu": float(fvu)}


def run_pieces(
    run: Callable[[dict[str, Array]], Arrays], manifest: Manifest, initial: Arrays, inputs: Array
) -> Iterator[tuple[int, Array]]:
    """The outputs (K, B, Y) of all runs of some trials, and the step that each begins at."""
    T, B = inputs.shape[:2]
    every, most = manifest.graph.correct_every, manifest.graph.max_steps
    state = {f"state.{name}": np.stack([value] * B) for name, value in initial.items()}
    position = 0
    while position < T:
        # A state is corrected where a run begins, so no run goes past such a position.
        steps = min(most, T - position, every - position % every if every else most)
        numbers = {"position": np.full(B, position), "num_steps": np.full(B, steps)}
        found = run({**state, **numbers, "inputs": inputs[position : position + steps]})
        state = {f"state.{name}": found[f"next.{name}"] for name in initial}
        yield position, found["outputs"]
        position += steps


def _run_batch(
    run: Callable[[dict[str, Array]], Arrays], manifest: Manifest, initial: Arrays, inputs: Array
) -> Array:
    return np.concatenate([outputs for _, outputs in run_pieces(run, manifest, initial, inputs)])
