"""Characters per second: `advance` in ONNX Runtime against a loop of torch steps, in one run.

    python tests/bench/bench_advance.py [BUNDLE ...] [--quick] [--json FILE]

One thread each. Rounds alternate between the two, and the best of each counts, so that a busy
machine slows both. The torch loop is the plain form: eager, `torch.linalg.matrix_exp`, sampling by
`torch.multinomial`.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import train.matrix_exp
from serve.runtime import Bundle, Device
from serve.settings import SHIPPED
from train.model import family

BATCHES = (1, 16, 64)
STEPS = 16


def main() -> None:
    """Print the table, and write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="*", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 40 s")
    parser.add_argument("--json", type=Path, help="write the figures as one flat object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["TORSOR_NATIVE"] = "off"
    train.matrix_exp._exact_exp = train.matrix_exp.matrix_exp_reference
    figures: dict[str, float] = {}
    print(f"{'bundle':24} {'streams':>7} {'torch/s':>10} {'advance/s':>10} {'ratio':>6}")
    for folder in options.bundles or sorted(p.parent for p in SHIPPED.glob("*/manifest.json")):
        measure_bundle(folder, 3 if options.quick else 20, figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def measure_bundle(folder: Path, rounds: int, figures: dict[str, float]) -> None:
    """Rows of one bundle."""
    bundle = Bundle(folder, Device("cpu", 1))
    for B in BATCHES:
        ours, plain = advance_run(bundle, B), torch_run(bundle, B)
        ours(), plain()
        times = [(elapsed(ours), elapsed(plain)) for _ in range(rounds)]
        rates = [B * STEPS / min(column) for column in zip(*times, strict=True)]
        ratio = rates[0] / rates[1]
        name = bundle.manifest.family.replace("-", "_")
        figures[f"advance.{name}.characters_per_s.b{B}"] = rates[0]
        figures[f"advance.{name}.over_torch_eager.b{B}"] = ratio
        print(
            f"{bundle.name:24} {B:7} {rates[1]:10,.0f} {rates[0]:10,.0f} {ratio:6.1f}", flush=True
        )


def advance_run(bundle: Bundle, B: int) -> Callable[[], object]:
    """One run of `advance` that samples K characters of B streams."""
    V, K = len(bundle.manifest.vocabulary), STEPS
    feeds = {f"state.{n}": np.repeat(v[None], B, 0) for n, v in bundle.initial.items()} | {
        "position": np.zeros(B, np.int64),
        "forced": np.full((K, B), -1),
        "num_steps": np.full(B, K),
        "uniform": np.random.default_rng(0).random((K, B), np.float32),
        "temperature": np.ones(B, np.float32),
        "top_k": np.zeros(B, np.int64),
        "top_p": np.ones(B, np.float32),
        "bias": np.zeros((B, V), np.float32),
    }
    return lambda: bundle.plain.session.run(feeds)


def torch_run(bundle: Bundle, B: int) -> Callable[[], object]:
    """The same in torch: readout, sample, update."""
    kind = family(bundle.manifest.family)
    model = kind(kind.Config(**bundle.manifest.config))
    weights = {n: torch.from_numpy(np.array(bundle.weights[n])) for n in model.weights()}

    @torch.no_grad()
    def run() -> None:
        state = model.init_state(B)
        for _ in range(STEPS):
            odds = model.readout(weights, state).softmax(-1)
            state = model.update(weights, state, torch.multinomial(odds, 1).squeeze(-1))

    return run


def elapsed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
