"""Parity: the same characters through torch, the reference evaluator and ONNX Runtime.

Every case takes K characters of B streams in a run of `advance` (some forced, some sampled by the
graph, rows of different lengths), and lets torch take the same characters. Compared are
log-probabilities, logits and final states: |a - b| / (1 + |b|), largest over all.

A case starts fresh streams, or streams that are under way: their rows stand at different positions,
some at and right before corrections, some around the end of a window that attention looks at, in
the states that torch has reached there. Such a case takes two runs, and every form goes on from its
own states.

Letters: B batch, K steps, V vocabulary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from tqdm import tqdm

from export.graph.advance import MAX_STEPS, runs_end_every
from export.graph.windows import has_windows
from serve.manifest.page import Parity, ParityCase
from serve.native.library import Library
from serve.native.onnx_runtime import onnxruntime
from train.model import Model, State, Weights

TOLERANCE = 5e-5
UNIFORM_STEPS = 1 << 23  # uniforms are multiples of 2^-23

Array = NDArray[Any]
Arrays = dict[str, np.ndarray]
Evaluate = Callable[[Arrays], Arrays]


class ParityError(ValueError):
    """The exported graph doesn't compute what torch does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One set of weights in its three forms."""

    name: str  # "trained" or "random"
    model: Model
    weights: Weights
    graph: Path  # a model.onnx whose weights file holds these weights


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a case: K of each run; streams `under_way` take two runs, fresh ones take one."""

    batch: int
    num_steps: int
    under_way: bool = False


SHAPES = (
    *(Shape(1, 1), Shape(1, MAX_STEPS), Shape(2, 5), Shape(7, 1), Shape(32, 5)),
    Shape(7, 4, under_way=True),
)
Measured = tuple[ParityCase, float]  # a case, and what it may differ by
Measure = Callable[[Subject, Evaluate, Evaluate, Shape], Measured]


def measure_parity(
    subjects: list[Subject],
    quiet: bool = False,
    measure: Measure | None = None,
    library: Library | None = None,
) -> Parity:
    """The report over all weights and shapes; `ParityError` above the tolerance.

    `measure` makes one case; left out: `measure_case`, that of text. The runtime is the stock one,
    or has the kernels of `library`; then there is no reference, and both errors are its own.
    """
    todo = [(subject, shape) for subject in subjects for shape in SHAPES]
    evaluators = {s.name: _evaluators(s.graph, library) for s in subjects}
    cases, tolerances = [], []
    for subject, shape in tqdm(todo, desc="parity", unit="case", disable=quiet):
        case, tolerance = (measure or measure_case)(subject, *evaluators[subject.name], shape)
        refuse(case, tolerance)
        cases.append(case)
        tolerances.append(tolerance)
    worst = max(max(case.reference_error, case.runtime_error) for case in cases)
    return Parity(tolerance=max(tolerances), max_error=worst, cases=tuple(cases))


def measure_case(
    subject: Subject, evaluate_reference: Evaluate, evaluate_runtime: Evaluate, shape: Shape
) -> Measured:
    """One comparison; the random numbers are a function of the shape."""
    model, weights = subject.model, subject.weights
    rng = np.random.default_rng([shape.batch, shape.num_steps])
    position = start_positions(model, shape)
    V = model.config.input_size
    xs = torch.from_numpy(rng.integers(0, V, (int(position.max()), shape.batch)))
    state, runs = wander(model, weights, position, xs), list[Arrays]()
    for at, steps in run_lengths(position, shape, runs_end_every(model)):
        runs.append(make_feeds(model, weights, at, steps, shape.num_steps, rng))
    found = follow(evaluate_runtime, state, runs)
    replay = [  # rested rows read nothing
        run | {"forced": np.maximum(outputs["tokens"], 0)}
        for run, outputs in zip(runs, found, strict=True)
    ]
    expected = follow(lambda feeds: advance_reference(model, weights, feeds), state, replay)
    case = ParityCase(
        weights=subject.name,
        batch=shape.batch,
        num_steps=shape.num_steps,
        start=int(position.max()),
        reference_error=largest_of(follow(evaluate_reference, state, replay), expected),
        runtime_error=largest_of(found, expected),
    )
    return case, TOLERANCE


def start_positions(model: Model, shape: Shape) -> Array:
    """Where the rows of a case stand: (B)."""
    if not shape.under_way:
        return np.zeros(shape.batch, np.int64)
    # A window is full after `window` characters, and the next one drops its oldest.
    window = model.config.context if has_windows(model) else MAX_STEPS
    kinds = (max(window - 2, 0), 13, 15, MAX_STEPS, window + 1, 2 * window + 15, 1)
    return np.resize(np.array(kinds), shape.batch)


def run_lengths(position: Array, shape: Shape, every: int) -> Iterator[tuple[Array, Array]]:
    """(B) positions and (B) steps of each run, which ends where `every` says."""
    for _ in range(1 + shape.under_way):
        K = shape.num_steps
        steps = np.where(np.arange(shape.batch) % 3 == 2, K // 2, K).astype(np.int64)
        if every:
            steps = np.minimum(steps, every - position % every)
        yield position, steps
        position = position + steps


def follow(evaluate: Evaluate, state: Arrays, runs: list[Arrays]) -> list[Arrays]:
    """The outputs of runs, each of which goes on from the states of the one before."""
    outputs = []
    for run in runs:
        found = evaluate(state | run)
        state = {name: found[f"next.{name[6:]}"] for name in state}
        outputs.append(found)
    return outputs


@torch.no_grad()
def wander(model: Model, weights: Weights, position: Array, xs: torch.Tensor) -> Arrays:
    """The state inputs of streams that have taken so many of xs (T, B, ...) each: (B, ...)."""
    state = model.init_state(len(position))
    for p, x in enumerate(xs):
        walks = torch.from_numpy(position > p)
        if model.correct_every and p % model.correct_every == 0:
            state = choose(walks, model.correct(state), state)
        state = choose(walks, model.update(weights, state, x), state)
    return {f"state.{name}": value.numpy() for name, value in state.items()}


def make_feeds(
    model: Model,
    weights: Weights,
    position: Array,
    num_steps: Array,
    K: int,
    rng: np.random.Generator,
) -> Arrays:
    """Inputs of a run of `advance` but for the states: half the characters are forced."""
    B = len(position)
    V = int(model.readout(weights, model.init_state(1)).shape[-1])
    forced = rng.integers(0, V, (K, B))
    uniform = rng.integers(0, UNIFORM_STEPS, (K, B)) / UNIFORM_STEPS
    return {
        "position": position,
        "forced": np.where(rng.random((K, B)) < 0.5, forced, -1),
        "num_steps": num_steps,
        "uniform": uniform.astype(np.float32),
        "temperature": np.ones(B, np.float32),
        "top_k": np.where(np.arange(B) % 2, V // 2, 0).astype(np.int64),
        "top_p": np.ones(B, np.float32),
        "bias": np.zeros((B, V), np.float32),
    }


@torch.no_grad()
def advance_reference(model: Model, weights: Weights, feeds: Arrays) -> Arrays:
    """`advance` as a loop of torch steps over forced characters: the graph's meaning."""
    state = start_state(model, feeds)
    logprobs, all_logits, num_steps = [], [], torch.from_numpy(feeds["num_steps"])
    for k, x in enumerate(torch.from_numpy(feeds["forced"])):
        active, logits = num_steps > k, model.readout(weights, state)
        taken = logits.log_softmax(-1).gather(-1, x.unsqueeze(-1)).squeeze(-1)  # (B)
        logprobs.append(torch.where(active, taken, 0.0))
        all_logits.append(logits)
        state = choose(active, model.update(weights, state, x), state)
    outputs = {"logprob": torch.stack(logprobs), "logits": torch.stack(all_logits)}
    outputs |= {f"next.{name}": value for name, value in state.items()}
    return {name: value.numpy() for name, value in outputs.items()}


def start_state(model: Model, feeds: Arrays) -> State:
    """The state inputs of a run, corrected in the rows where that is due."""
    state = {k[6:]: torch.from_numpy(v) for k, v in feeds.items() if k.startswith("state.")}
    if not model.correct_every:
        return state
    due = torch.from_numpy(
        (feeds["position"] % model.correct_every == 0) & (feeds["num_steps"] > 0)
    )
    return choose(due, model.correct(state), state)


class LogSoftmax(OpRun):
    """onnx's own takes the logarithm of softmax: -inf where logits lie 104 or more apart."""

    def _run(self, x: Array, axis: int = -1) -> tuple[Array]:
        below = x - x.max(axis=axis, keepdims=True)
        return (below - np.log(np.exp(below).sum(axis=axis, keepdims=True)),)


def reference(graph: Path) -> Evaluate:
    """The model in onnx's own evaluator: standard operators and the functions in the file."""
    evaluator = ReferenceEvaluator(onnx.load(graph), new_ops=[LogSoftmax])
    names = list(evaluator.output_names)
    return lambda feeds: dict(zip(names, evaluator.run(None, feeds), strict=True))


def runtime(graph: Path, library: Library | None = None) -> Evaluate:
    """The model in ONNX Runtime on the CPU, one thread: stock, or with native kernels."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if library is not None:
        options.register_custom_ops_library(str(library.path))
    onnxruntime.disable_telemetry_events()
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, feeds), strict=True))


def largest_error(found: Arrays, expected: Arrays) -> float:
    """max |a - b| / (1 + |b|) over all that `expected` names; infinite where not finite."""
    worst = 0.0
    for name, b in expected.items():
        error = np.abs(found[name] - b) / (1.0 + np.abs(b))
        worst = max(worst, float(error.max()) if np.isfinite(error).all() else np.inf)
    return worst


def largest_of(found: list[Arrays], expected: list[Arrays]) -> float:
    """`largest_error` over several runs."""
    return max(largest_error(one, other) for one, other in zip(found, expected, strict=True))


def choose(rows: torch.Tensor, yes: State, no: State) -> State:
    """The states (B, ...) of `yes` in these rows (B), of `no` in all others."""

    def pick(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.where(rows.view(-1, *[1] * (a.ndim - 1)), a, b)

    return {name: pick(yes[name], no[name]) for name in no}


def _evaluators(graph: Path, library: Library | None) -> tuple[Evaluate, Evaluate]:
    ours = runtime(graph, library)
    return (reference(graph) if library is None else ours), ours


def refuse(case: ParityCase, tolerance: float, of: str = "") -> None:
    """Raise `ParityError` where a case is above its tolerance."""
    worst = max(case.reference_error, case.runtime_error)
    if not worst <= tolerance:
        raise ParityError(
            f"parity{of}: {case.weights} weights, batch {case.batch}, {case.num_steps} steps "
            f"from position {case.start} differ from torch by {worst:.2e}, expected at most "
            f"{tolerance:.0e}"
        )
