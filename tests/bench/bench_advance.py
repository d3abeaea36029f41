"""Characters per second: `advance` in ONNX Runtime against a loop of torch steps, in one run.

    python tests/bench/bench_advance.py [BUNDLE ...] [--quick] [--json FILE] [--device cuda]

First an `osm-rnn` on SO(16) whose random tokens turn as far as trained ones, then the bundles, the
shipped ones where none is named. One thread each. CPU seconds count, rounds alternate between the
forms, and the best of each counts, so that a busy machine slows all alike. The torch loop is the
plain form: eager, `torch.linalg.matrix_exp`, sampling by `torch.multinomial`. `bodies` is `advance`
without the native kernels. The share of SGEMM counts the model's own operations: its products,
those of the exponential's polynomial, and its squarings in the mean over random characters.

On CUDA the torch loop runs there, `advance` is the form without a loop, as served, and its times
include the way of its inputs and outputs to the device and back.
"""

import argparse
import copy
import dataclasses
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from where import Where, add_option, chosen

import train.groups.matrix_exp
from export.bundle import INITIAL, probe_angle
from export.graph.advance import build_advance
from export.graph.matrix_exp import body_squarings
from export.graph.unrolled import write_unrolled
from export.weights_file import set_weights, write_weights
from serve.manifest.page import GRAPH_FILE, UNROLLED_FILE, WEIGHTS_FILE
from serve.native.build import build
from serve.native.library import Library, load_cuda, status_cuda
from serve.native.onnx_runtime import onnxruntime
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.settings import SHIPPED
from train.layers.mixing import mix
from train.model import Model, Weights, family
from train.models.osm_rnn import OsmRnn

BATCHES = (1, 16, 64, 256)
STEPS = 16
V = 65  # characters of the untrained model
D = 16  # of its group
TURN = 5.0  # times the tokens at the start: planes then turn by up to 1.5 to 2.5 rad a step
SGEMM = 512  # size of the square matrices whose product measures the machine

Array = NDArray[Any]
Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in its forms."""

    name: str
    key: str
    model: Model
    weights: Weights
    graph: Path


def main() -> None:
    """Print the table, and write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="*", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 40 s")
    parser.add_argument("--json", type=Path, help="write the figures as one flat object")
    add_option(parser)
    options = parser.parse_args()
    where = chosen(parser, options.device)
    torch.set_num_threads(1)
    rounds, figures = 3 if options.quick else 30, dict[str, float]()
    library, level = find_kernels(where)
    os.environ["TORSOR_NATIVE"] = "off"  # for torch, which asks for it later
    train.groups.matrix_exp._exact_exp = train.groups.matrix_exp.matrix_exp_reference
    print(where.line(level))
    print(
        f"{'model':24} {'streams':>7} {'torch/s':>9} {'bodies/s':>9} {'native/s':>9} {'ratio':>6}"
    )
    with tempfile.TemporaryDirectory() as folder:
        subjects = [untrained(Path(folder))]
        places = options.bundles or sorted(p.parent for p in SHIPPED.glob("*/manifest.json"))
        subjects += map(shipped, places)
        for subject in subjects:
            here = subject if where.kind == "cpu" else without_loop(subject, Path(folder))
            measure(here, library, rounds, figures, where)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def find_kernels(where: Where) -> tuple[Path, str]:
    """The library of the native kernels there, and what they are in words."""
    if where.kind == "cpu":
        library = Library(build())
        return library.path, f"native ({library.level})"
    if (path := load_cuda()) is None:
        raise SystemExit(f"bench_advance: {status_cuda()}")
    return path, "native (cuda)"


def measure(
    subject: Subject, library: Path, rounds: int, figures: dict[str, float], where: Where
) -> None:
    """Rows of one model."""
    for B in BATCHES:
        forms: dict[str, Work] = {
            "torch": torch_run(subject, B, where),
            "bodies": advance_run(subject, None, B, where),
            "native": advance_run(subject, library, B, where),
            "sgemm": sgemm_run(where),
        }
        best = dict.fromkeys(forms, math.inf)
        for form in forms.values():
            form()
        for _ in range(rounds):
            for name, form in forms.items():
                best[name] = min(best[name], elapsed(form, where))
        _tell(subject, B, best, figures)


def _tell(subject: Subject, B: int, best: dict[str, float], figures: dict[str, float]) -> None:
    rates = {name: B * STEPS / seconds for name, seconds in best.items()}
    ratio = rates["native"] / rates["torch"]
    figures[f"advance.{subject.key}characters_per_s.b{B}"] = rates["native"]
    figures[f"advance.{subject.key}over_torch_eager.b{B}"] = ratio
    figures[f"advance.{subject.key}native_over_bodies.b{B}"] = rates["native"] / rates["bodies"]
    told = " ".join(f"{rates[name]:9,.0f}" for name in ("torch", "bodies", "native"))
    share = ""
    if (flops := operations(subject)) is not None:
        peak = 2 * SGEMM**3 / best["sgemm"]
        figures[f"advance.{subject.key}share_of_sgemm.b{B}"] = flops * rates["native"] / peak
        share = f"  {flops * rates['native'] / peak:.0%} of SGEMM, {peak / 1e9:.0f} GF/s"
    print(f"{subject.name:24} {B:7} {told} {ratio:6.1f}{share}", flush=True)


def operations(subject: Subject) -> float | None:
    """Floating-point operations a character of an `osm-rnn` on SO(d) with full mixing.

    HᵀM, Γ, the four products of the exponential's polynomial, its squarings, the move, the readout.
    """
    config = subject.model.config
    if subject.model.family != "osm-rnn" or (config.group, config.mixing) != ("so", "linear"):
        return None
    d, dim = int(config.d), int(config.d) * (int(config.d) - 1) // 2
    products = 1 + 4 + mean_squarings(subject) + 1
    return 2 * (d**3 * products + dim**2 + d * d * int(config.output_size))


@torch.no_grad()
def mean_squarings(subject: Subject) -> float:
    """Squarings of the exponential in the mean, over random characters of 64 streams."""
    model, weights, counts = subject.model, subject.weights, list[int]()
    assert isinstance(model, OsmRnn)
    state, generator = model.init_state(64), torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        x = torch.randint(model.config.input_size, (64,), generator=generator)
        A = state["H"].mT @ weights["input"][x]
        S = mix(model.group, weights, "mixing", A)
        bounds = torch.minimum(torch.linalg.matrix_norm(S) / math.sqrt(2.0), S.abs().sum(1).amax(1))
        counts += [train.groups.matrix_exp.num_squarings(float(bound)) for bound in bounds]
        state = model.update(weights, state, x)
    return sum(counts) / len(counts)


def untrained(folder: Path) -> Subject:
    """An `osm-rnn` on SO(16) with random weights that turn like trained ones."""
    kind = family("osm-rnn")
    config = kind.Config(input_size=V, output_size=V, d=D)
    model = kind(config, torch.Generator().manual_seed(0)).requires_grad_(False).eval()
    weights = model.weights()
    weights["input"] = TURN * weights["input"]
    graph = build_advance(model, weights, body_squarings(probe_angle(model, weights)))
    arrays = {name: value.numpy() for name, value in weights.items()}
    initial = {INITIAL + name: value[0].numpy() for name, value in model.init_state(1).items()}
    offsets = write_weights(folder / WEIGHTS_FILE, arrays | initial)
    set_weights(graph, arrays, WEIGHTS_FILE, offsets)
    (folder / GRAPH_FILE).write_bytes(graph.SerializeToString())
    return Subject(f"osm-rnn SO({D}), random", "", model, weights, folder / GRAPH_FILE)


def shipped(folder: Path) -> Subject:
    """A bundle's model."""
    bundle = Bundle(folder, Device("cpu", 1))
    kind = family(bundle.manifest.family)
    model = kind(kind.Config(**bundle.manifest.config)).requires_grad_(False).eval()
    weights = {n: torch.from_numpy(np.array(bundle.weights[n])) for n in model.weights()}
    key = bundle.manifest.family.replace("-", "_") + "."
    return Subject(bundle.name, key, model, weights, folder / GRAPH_FILE)


def without_loop(subject: Subject, folder: Path) -> Subject:
    """The model in the form that runs on CUDA, where its graph has a loop."""
    place = Path(tempfile.mkdtemp(dir=folder))
    for name in (GRAPH_FILE, WEIGHTS_FILE):
        shutil.copy(subject.graph.parent / name, place)
    graph = place / (UNROLLED_FILE if write_unrolled(place) else GRAPH_FILE)
    return dataclasses.replace(subject, graph=graph)


def advance_run(subject: Subject, library: Path | None, B: int, where: Where) -> Work:
    """One run of `advance` that samples K characters of B streams."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    if library is not None:
        options.register_custom_ops_library(str(library))
    session = where.session(subject.graph, options)
    size, K = subject.model.config.output_size, STEPS
    state = subject.model.init_state(B)
    feeds = {f"state.{name}": value.contiguous().numpy() for name, value in state.items()} | {
        "position": np.zeros(B, np.int64),
        "forced": np.full((K, B), -1),
        "num_steps": np.full(B, K),
        "uniform": np.random.default_rng(0).random((K, B), np.float32),
        "temperature": np.ones(B, np.float32),
        "top_k": np.zeros(B, np.int64),
        "top_p": np.ones(B, np.float32),
        "bias": np.zeros((B, size), np.float32),
    }
    return lambda: session.run(None, feeds)


def torch_run(subject: Subject, B: int, where: Where) -> Work:
    """The same in torch: readout, sample, update."""
    model = copy.deepcopy(subject.model).to(where.kind)
    weights = {name: value.to(where.kind) for name, value in subject.weights.items()}

    @torch.no_grad()
    def run() -> None:
        state = model.init_state(B)
        for _ in range(STEPS):
            odds = model.readout(weights, state).softmax(-1)
            state = model.update(weights, state, torch.multinomial(odds, 1).squeeze(-1))

    return run


def sgemm_run(where: Where) -> Work:
    """A product of two float32 matrices, by torch's own library."""
    X = torch.rand(SGEMM, SGEMM, device=where.kind)
    return lambda: X @ X


def elapsed(work: Work, where: Where) -> float:
    """Seconds of one call."""
    started = where.now()
    work()
    return where.now() - started


if __name__ == "__main__":
    main()
