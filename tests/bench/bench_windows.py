"""Characters per second of attention models: windows that `advance` copies at every step, or not.

    python tests/bench/bench_windows.py [--quick] [--json FILE]

Models of 100K parameters with random weights and runs of 16 sampled characters, on one thread. The
plain form carries every window through the loop and copies it at each step. Rounds alternate
between the two, and the best of each counts, so that a busy machine slows both.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import numpy_helper

from export.graph import windows as blocks
from export.graph.advance import MAX_STEPS, build_advance
from serve.native.onnx_runtime import onnxruntime
from train.model import Model, family
from train.presets import BUDGETS, fit_sizes

BATCHES = (1, 16, 64)
V = 65
SUBJECTS: dict[str, tuple[str, dict[str, int]]] = {
    "transformer": ("transformer", {}),
    "transformer_w128": ("transformer", {"context": 128}),
    "osm_former": ("osm-former", {}),
}


def main() -> None:
    """Print the table, and write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and no wide window")
    parser.add_argument("--json", type=Path, help="write the figures as one flat object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    print(f"{'model':18} {'streams':>7} {'plain/s':>10} {'blocks/s':>10} {'ratio':>6}")
    for name, (family_name, sizes) in SUBJECTS.items():
        if not (options.quick and sizes):
            measure(name, family_name, sizes, 5 if options.quick else 30, figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def measure(
    name: str, family_name: str, sizes: dict[str, int], rounds: int, figures: dict[str, float]
) -> None:
    """Rows of one model."""
    model = make_model(family_name, sizes)
    sessions = [make_session(model, with_blocks) for with_blocks in (False, True)]
    for B in BATCHES:
        runs = [make_run(session, model, B) for session in sessions]
        times = [[elapsed(run) for run in runs] for _ in range(rounds + 1)][1:]
        plain, ours = (B * MAX_STEPS / min(column) for column in zip(*times, strict=True))
        figures[f"windows.{name}.characters_per_s.b{B}"] = ours
        figures[f"windows.{name}.over_plain.b{B}"] = ours / plain
        print(f"{name:18} {B:7} {plain:10,.0f} {ours:10,.0f} {ours / plain:6.1f}", flush=True)


def make_model(family_name: str, sizes: dict[str, int]) -> Model:
    """A model of 100K parameters."""
    kind = family(family_name)
    ends = {"input_size": V, "output_size": V, **sizes}
    config = kind.Config(**fit_sizes(family_name, ends, BUDGETS["100k"]))
    return kind(config, torch.Generator().manual_seed(0)).requires_grad_(False).eval()


def make_session(model: Model, with_blocks: bool) -> onnxruntime.InferenceSession:
    """`advance`, as it is or with windows that its loop carries."""
    found: Any = blocks.has_windows
    try:
        if not with_blocks:
            blocks.has_windows = lambda model: False  # type: ignore[assignment]
        weights = model.weights()
        graph = build_advance(model, weights, 3)
    finally:
        blocks.has_windows = found
    graph.graph.initializer.extend(
        numpy_helper.from_array(value.numpy(), name) for name, value in weights.items()
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # as served
    return onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def make_run(session: onnxruntime.InferenceSession, model: Model, B: int) -> Callable[[], object]:
    """One run that samples `MAX_STEPS` characters of B fresh streams."""
    K = MAX_STEPS
    feeds = {f"state.{name}": v.numpy() for name, v in model.init_state(B).items()} | {
        "position": np.zeros(B, np.int64),
        "forced": np.full((K, B), -1),
        "num_steps": np.full(B, K),
        "uniform": np.random.default_rng(0).random((K, B), np.float32),
        "temperature": np.ones(B, np.float32),
        "top_k": np.zeros(B, np.int64),
        "top_p": np.ones(B, np.float32),
        "bias": np.zeros((B, V), np.float32),
    }
    return lambda: session.run(None, feeds)


def elapsed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
