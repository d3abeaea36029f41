"""Reference of scores of trials: all outputs at once, and the definitions as they are written.

    classes: loss = mean cross-entropy (nats);  accuracy = share of answers that are largest where
             the target is
    vectors: loss = mean squared error;  fvu = Σ‖y - target‖² / Σ‖target - mean target‖²

over the steps whose mask is 1, or, pooled, over one answer a trial: the mean of its outputs where
its mask is 1. `serve.queries.intervals` gives the same from sums a trial.

Letters: T time, N trials, B batch, Y output size.
"""

from collections.abc import Callable

import numpy as np

from serve.manifest.page import Manifest, TaskSpec
from serve.runtime.trials import BATCH, Array, Arrays, Trials, run_pieces


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


def _run_batch(
    run: Callable[[dict[str, Array]], Arrays], manifest: Manifest, initial: Arrays, inputs: Array
) -> Array:
    return np.concatenate([outputs for _, outputs in run_pieces(run, manifest, initial, inputs)])
