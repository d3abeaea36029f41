"""Parity: the same characters through torch, the reference evaluator and ONNX Runtime.

Every case starts B streams, takes K characters in one run of `advance` (some forced, some sampled
by the graph, rows of different lengths), and lets torch take the same characters. Compared are
log-probabilities, logits and final states: |a - b| / (1 + |b|), largest over all.

Letters: B batch, K steps, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx.reference import ReferenceEvaluator
from tqdm import tqdm

from export.graph import MAX_STEPS
from serve.manifest import Parity, ParityCase
from serve.native.library import Library
from train.model import Model, State, Weights

TOLERANCE = 5e-5
BATCHES = (1, 2, 7, 32)
STEPS = (1, 5, MAX_STEPS)
UNIFORM_STEPS = 1 << 23  # uniforms are multiples of 2^-23

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


Measured = tuple[ParityCase, float]  # a case, and what it may differ by
Measure = Callable[[Subject, Evaluate, Evaluate, int, int], Measured]


def measure_parity(
    subjects: list[Subject],
    quiet: bool = False,
    measure: Measure | None = None,
    library: Library | None = None,
) -> Parity:
    """The report over all weights, batches and lengths; `ParityError` above the tolerance.

    `measure` makes one case; left out: `measure_case`, that of text. The runtime is the stock one,
    or has the kernels of `library`; then there is no reference, and both errors are its own.
    """
    todo = [(s, B, K) for s in subjects for B in BATCHES for K in STEPS]
    evaluators = {s.name: _evaluators(s.graph, library) for s in subjects}
    cases, tolerances = [], []
    for subject, B, K in tqdm(todo, desc="parity", unit="case", disable=quiet):
        case, tolerance = (measure or measure_case)(subject, *evaluators[subject.name], B, K)
        _refuse(case, tolerance)
        cases.append(case)
        tolerances.append(tolerance)
    worst = max(max(case.reference_error, case.runtime_error) for case in cases)
    return Parity(tolerance=max(tolerances), max_error=worst, cases=tuple(cases))


def measure_case(
    subject: Subject, evaluate_reference: Evaluate, evaluate_runtime: Evaluate, B: int, K: int
) -> Measured:
    """One comparison; the random numbers are a function of B and K."""
    feeds = make_feeds(subject.model, subject.weights, B, K, np.random.default_rng([B, K]))
    found = evaluate_runtime(feeds)
    replay = feeds | {"forced": np.maximum(found["tokens"], 0)}  # rested rows read nothing
    expected = advance_reference(subject.model, subject.weights, replay)
    case = ParityCase(
        weights=subject.name,
        batch=B,
        num_steps=K,
        reference_error=largest_error(evaluate_reference(replay), expected),
        runtime_error=largest_error(found, expected),
    )
    return case, TOLERANCE


def make_feeds(model: Model, weights: Weights, B: int, K: int, rng: np.random.Generator) -> Arrays:
    """Inputs of `advance`: fresh states, half the characters forced, rows of different lengths."""
    state = model.init_state(B)
    V = int(model.readout(weights, state).shape[-1])
    forced = rng.integers(0, V, (K, B))
    uniform = rng.integers(0, UNIFORM_STEPS, (K, B)) / UNIFORM_STEPS
    return {
        **{f"state.{name}": value.numpy() for name, value in state.items()},
        "position": np.zeros(B, np.int64),
        "forced": np.where(rng.random((K, B)) < 0.5, forced, -1),
        "num_steps": np.where(np.arange(B) % 3 == 2, K // 2, K).astype(np.int64),
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


def reference(graph: Path) -> Evaluate:
    """The model in onnx's own evaluator: standard operators and the functions in the file."""
    evaluator = ReferenceEvaluator(onnx.load(graph))
    names = list(evaluator.output_names)
    return lambda feeds: dict(zip(names, evaluator.run(None, feeds), strict=True))


def runtime(graph: Path, library: Library | None = None) -> Evaluate:
    """The model in ONNX Runtime on the CPU, one thread: stock, or with native kernels."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if library is not None:
        options.register_custom_ops_library(str(library.path))
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


def choose(rows: torch.Tensor, yes: State, no: State) -> State:
    """The states (B, ...) of `yes` in these rows (B), of `no` in all others."""

    def pick(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.where(rows.view(-1, *[1] * (a.ndim - 1)), a, b)

    return {name: pick(yes[name], no[name]) for name in no}


def _evaluators(graph: Path, library: Library | None) -> tuple[Evaluate, Evaluate]:
    ours = runtime(graph, library)
    return (reference(graph) if library is None else ours), ours


def _refuse(case: ParityCase, tolerance: float) -> None:
    worst = max(case.reference_error, case.runtime_error)
    if not worst <= tolerance:
        raise ParityError(
            f"parity: {case.weights} weights, batch {case.batch}, {case.num_steps} steps differ "
            f"from torch by {worst:.2e}, expected at most {tolerance:.0e}"
        )
