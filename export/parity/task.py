"""Parity of task models: the same inputs through torch, the reference evaluator and ONNX Runtime.

Every case takes K inputs of B streams in a run of `advance`, rows of different lengths; fresh ones
or such as are under way. The inputs come from held-out trials where these are that long, else they
are random. Compared are outputs and final states, as in `export.parity.text`.

Nothing bounds the inputs of tasks, so some models turn small differences into large ones: planes
that turn far, norms of near silence, chaos. Two float32 programs can then agree no better than each
agrees with float64. Where the usual tolerance is passed, torch's own distance to float64 is
measured, and decides.

Letters: B batch, K steps, T time, N trials, X input size.
"""

import copy

import numpy as np
import torch
from torch import Tensor

from export.parity.text import (
    TOLERANCE,
    Arrays,
    Evaluate,
    Measured,
    Shape,
    Subject,
    choose,
    follow,
    largest_of,
    run_lengths,
    start_positions,
    start_state,
    wander,
)
from serve.manifest.page import ParityCase
from train.model import Model, Weights

ROUNDINGS = 4.0  # float32's error that two programs may differ by: each has one, never the same
MAX_TOLERANCE = 1e-3  # above it float32 says nothing about a model


def measure_task_case(
    inputs: Tensor,
    names: frozenset[str],
    subject: Subject,
    evaluate_reference: Evaluate,
    evaluate_runtime: Evaluate,
    shape: Shape,
) -> Measured:
    """One comparison on trials' `inputs`, (T, N) or (T, N, X); a function of the shape.

    `names` are the graph's inputs: a whole-input graph takes and returns no state.
    """
    state, runs = make_task_runs(subject, inputs, shape)
    expected = follow(
        lambda feeds: advance_task_reference(subject.model, subject.weights, feeds), state, runs
    )
    taken = {name: value for name, value in state.items() if name in names}
    found = follow(evaluate_runtime, taken, runs)
    kept = [{n: run[n] for n in outputs} for run, outputs in zip(expected, found, strict=True)]
    case = ParityCase(
        weights=subject.name,
        batch=shape.batch,
        num_steps=shape.num_steps,
        start=int(runs[0]["position"].max()),
        reference_error=largest_of(follow(evaluate_reference, taken, runs), kept),
        runtime_error=largest_of(found, kept),
    )
    if max(case.reference_error, case.runtime_error) <= TOLERANCE:
        return case, TOLERANCE
    return case, rounding_tolerance(subject, state, runs, kept)


def rounding_tolerance(
    subject: Subject, state: Arrays, runs: list[Arrays], expected: list[Arrays]
) -> float:
    """What two float32 programs may differ by, from how far torch's `expected` is from float64."""
    model = copy.deepcopy(subject.model).double()
    weights = {name: value.double() for name, value in subject.weights.items()}
    precise_state, *precise = (
        {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in arrays.items()}
        for arrays in (state, *runs)
    )
    exact = follow(
        lambda feeds: advance_task_reference(model, weights, feeds), precise_state, precise
    )
    kept = [{n: run[n] for n in outputs} for run, outputs in zip(exact, expected, strict=True)]
    return min(max(TOLERANCE, ROUNDINGS * largest_of(expected, kept)), MAX_TOLERANCE)


def make_task_runs(subject: Subject, inputs: Tensor, shape: Shape) -> tuple[Arrays, list[Arrays]]:
    """First states of a task's `advance`, and the other inputs of each run."""
    model, B, K = subject.model, shape.batch, shape.num_steps
    rng, position = np.random.default_rng([B, K]), start_positions(subject.model, shape)
    xs = random_inputs(model, inputs, B, int(position.max()), rng)
    runs = [
        {
            "position": at,
            "inputs": draw_inputs(model, inputs, B, K, rng).numpy(),
            "num_steps": steps,
        }
        for at, steps in run_lengths(position, shape, model.correct_every)
    ]
    return wander(model, subject.weights, position, xs), runs


def draw_inputs(model: Model, inputs: Tensor, B: int, K: int, rng: np.random.Generator) -> Tensor:
    """K steps of B of the trials, about half of them their first; every fourth row is random.

    All rows are where trials are shorter. Some tasks show nothing but zeros for a while, which
    would compare little.
    """
    drawn, (T, N) = random_inputs(model, inputs, B, K, rng), inputs.shape[:2]
    if T < K:
        return drawn
    starts = np.where(rng.random(B) < 0.5, 0, rng.integers(0, T - K + 1, B))
    steps, trials = starts + np.arange(K)[:, None], rng.integers(0, N, B)  # (K, B), (B)
    taken = inputs[torch.from_numpy(steps), torch.from_numpy(trials)]
    is_random = torch.arange(B) % 4 == 3
    return torch.where(is_random.view(1, B, *[1] * (inputs.ndim - 2)), drawn, taken)


def random_inputs(model: Model, inputs: Tensor, B: int, K: int, rng: np.random.Generator) -> Tensor:
    """Normals, or uniform characters, of the kind of `inputs`: (K, B, X) or (K, B)."""
    X = model.config.input_size
    if not inputs.is_floating_point():
        return torch.from_numpy(rng.integers(0, X, (K, B)))
    return torch.from_numpy(rng.standard_normal((K, B, X), np.float32))


@torch.no_grad()
def advance_task_reference(model: Model, weights: Weights, feeds: Arrays) -> Arrays:
    """`advance` of a task as a loop of torch steps: the graph's meaning."""
    state, num_steps = start_state(model, feeds), torch.from_numpy(feeds["num_steps"])
    outputs = []
    for k, x in enumerate(torch.from_numpy(feeds["inputs"])):
        active = num_steps > k
        moved, y = model.step(weights, state, x)
        outputs.append(torch.where(active.unsqueeze(-1), y, 0.0))
        state = choose(active, moved, state)
    found = {"outputs": torch.stack(outputs)}
    found |= {f"next.{name}": value for name, value in state.items()}
    return {name: value.numpy() for name, value in found.items()}
