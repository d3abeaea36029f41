"""Parity of task models: the same inputs through torch, the reference evaluator and ONNX Runtime.

Every case starts B streams and takes K inputs in one run of `advance`, rows of different lengths.
The inputs come from held-out trials where these are that long, else they are random. Compared are
outputs and final states, as in `export.parity`.

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

from export.parity import (
    TOLERANCE,
    Arrays,
    Evaluate,
    Measured,
    Subject,
    choose,
    largest_error,
    start_state,
)
from serve.manifest import ParityCase
from train.model import Model, Weights

ROUNDINGS = 4.0  # float32's error that two programs may differ by: each has one, never the same
MAX_TOLERANCE = 1e-3  # above it float32 says nothing about a model


def measure_task_case(
    inputs: Tensor,
    names: frozenset[str],
    subject: Subject,
    evaluate_reference: Evaluate,
    evaluate_runtime: Evaluate,
    B: int,
    K: int,
) -> Measured:
    """One comparison on trials' `inputs`, (T, N) or (T, N, X); a function of B and K.

    `names` are the graph's inputs: a whole-input graph takes and returns no state.
    """
    feeds = make_task_feeds(subject.model, inputs, B, K, np.random.default_rng([B, K]))
    expected = advance_task_reference(subject.model, subject.weights, feeds)
    feeds = {name: value for name, value in feeds.items() if name in names}
    found = evaluate_runtime(feeds)
    expected = {name: expected[name] for name in found}
    case = ParityCase(
        weights=subject.name,
        batch=B,
        num_steps=K,
        reference_error=largest_error(evaluate_reference(feeds), expected),
        runtime_error=largest_error(found, expected),
    )
    if max(case.reference_error, case.runtime_error) <= TOLERANCE:
        return case, TOLERANCE
    return case, rounding_tolerance(subject, feeds, expected)


def rounding_tolerance(subject: Subject, feeds: Arrays, expected: Arrays) -> float:
    """What two float32 programs may differ by, from how far torch's `expected` is from float64."""
    model = copy.deepcopy(subject.model).double()
    weights = {name: value.double() for name, value in subject.weights.items()}
    precise = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in feeds.items()}
    exact = advance_task_reference(model, weights, precise)
    rounding = largest_error(expected, {name: exact[name] for name in expected})
    return min(max(TOLERANCE, ROUNDINGS * rounding), MAX_TOLERANCE)


def make_task_feeds(
    model: Model, inputs: Tensor, B: int, K: int, rng: np.random.Generator
) -> Arrays:
    """Inputs of a task's `advance`: fresh states, rows of different lengths."""
    state = model.init_state(B)
    return {
        **{f"state.{name}": value.numpy() for name, value in state.items()},
        "position": np.zeros(B, np.int64),
        "inputs": draw_inputs(model, inputs, B, K, rng).numpy(),
        "num_steps": np.where(np.arange(B) % 3 == 2, K // 2, K).astype(np.int64),
    }


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
