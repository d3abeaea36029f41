"""A task for its bundle: the held-out trials that travel, what is said of them, what they reach.

Trials are those of the task's test part, whole where they fit into `MAX_BYTES` and nobody asks for
fewer, else so many as fit or are asked for, drawn without replacement from the part's own seed.

Letters: T time, N trials, X input size, Y output size.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from export.graph.advance import MAX_STEPS
from export.parity.task import random_inputs
from serve.manifest.page import TaskSpec, TrialsSpec
from train.checkpoint import CheckpointError
from train.groups.matrix_exp import observed_angles
from train.model import Model, Weights
from train.settings import Settings
from train.tasks.task import Trials, make_task
from train.tasks.trial_task import HELD_OUT_SEED, TrialTask

MAX_BYTES = 10_000_000  # of trials; copy as it is by default has 9.5 million
PROBE_STREAMS, PROBE_STEPS = 32, 1024
SCORES = {
    "classes": "loss is the mean cross-entropy (nats); accuracy the share of answers whose largest "
    "output is the target's",
    "vectors": "loss is the mean squared error; fvu is Σ|y - target|² / Σ|target - mean target|²",
}


class TaskTrials(NamedTuple):
    """The trials that travel, and what the manifest says of their task."""

    trials: Trials
    spec: TaskSpec
    meaning: str  # of the score that a table shows


def open_task(folder: Path, config: dict[str, Any], most: int | None = None) -> TaskTrials:
    """The task of a checkpoint's config, made again; at most so many trials travel.

    Raises `CheckpointError` where its data or sizes aren't those of the run, `ValueError` where the
    data can't be had.
    """
    task = make_task(Settings(**config["training"]), config["task"])
    assert isinstance(task, TrialTask)
    _compare(folder, "data sha256", config["data"]["sha256"], task.source.sha256)
    for key in ("input_size", "output_size"):
        _compare(folder, f"config {key}", config["config"][key], getattr(task, key))
    part = task.held_out("test")
    trials = choose_trials(part, most)
    spec = TaskSpec(
        name=task.name,
        options=config["task"],
        input_size=task.input_size,
        output_size=task.output_size,
        inputs=task.takes,
        targets=task.targets,
        pooled=task.pooled,
        headline=task.headline,
        better=task.better,
        trials=TrialsSpec(
            count=trials.inputs.shape[1], of=part.inputs.shape[1], seed=HELD_OUT_SEED["test"]
        ),
    )
    return TaskTrials(trials, spec, type(task).__doc__ or task.headline)


def choose_trials(part: Trials, most: int | None = None) -> Trials:
    """All trials of a part, or so many of them as fit into `MAX_BYTES` and are wanted at `most`."""
    num_trials = part.inputs.shape[1]
    bytes_each = sum(tensor[:, 0].numel() * tensor.element_size() for tensor in part)
    count = min(max(1, MAX_BYTES // bytes_each), most or num_trials)
    if count >= num_trials:
        return part
    generator = torch.Generator().manual_seed(HELD_OUT_SEED["test"])
    chosen = torch.randperm(num_trials, generator=generator)[:count].sort().values
    return Trials(*(tensor[:, chosen] for tensor in part))


def write_trials(path: Path, trials: Trials) -> None:
    """Write `inputs`, `targets` and `mask`; the same trials give the same bytes."""
    arrays = {name: value.contiguous().numpy() for name, value in trials._asdict().items()}
    save_file(arrays, path)


def probe_task_angle(model: Model, weights: Weights, inputs: Tensor) -> float:
    """Largest angle bound that `MatrixExp` met on trials' inputs and on random ones; 0 if none.

    `inputs` are (T, N) characters or (T, N, X) vectors. `ValueError` where outputs aren't finite.
    """
    taken = random_inputs(model, inputs, PROBE_STREAMS, MAX_STEPS, np.random.default_rng(0))
    with observed_angles() as angles, torch.no_grad():
        for xs in (inputs[:PROBE_STEPS, probed_trials(inputs)], taken):
            state = model.init_state(xs.shape[1])
            for position, x in enumerate(xs):
                if model.correct_every and position % model.correct_every == 0:
                    state = model.correct(state)
                state, y = model.step(weights, state, x)
                if not y.isfinite().all():
                    raise ValueError(
                        f"the model's outputs are not finite after {position + 1} steps; train it "
                        "with a smaller learning rate"
                    )
    return max(angles, default=0.0)


def probed_trials(inputs: Tensor) -> Tensor:
    """Numbers of trials from all over, and of vectors those with the largest ones too."""
    N = inputs.shape[1]
    spread = torch.linspace(0, N - 1, min(N, PROBE_STREAMS)).long()
    if not inputs.is_floating_point():
        return spread
    largest = inputs[:PROBE_STEPS].norm(dim=-1).amax(0).topk(len(spread)).indices
    return torch.tensor(sorted({*spread.tolist(), *largest.tolist()}))


def task_protocol(task: TaskTrials) -> dict[str, str]:
    """How the scores of a training record came about, in words."""
    pooled = "the mean of a trial's outputs where its mask is 1"
    answers = pooled if task.spec.pooled else "the outputs where the mask is 1"
    return {
        "split": "the task's own validation and test part; no run trains on either",
        "protocol": "all trials of the part, each from the initial state and not corrected on the "
        f"way; scored are {answers}; {SCORES[task.spec.targets]}",
        "score": task.meaning,
    }


def _compare(folder: Path, key: str, found: object, expected: object) -> None:
    if found != expected:
        raise CheckpointError(
            folder / "config.json",
            f"{key}: found {found!r}, expected {expected!r} as the task is here; export where the "
            "data is that the run was trained on",
        )
