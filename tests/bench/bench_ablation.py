"""Ablations over the wire: what an ablated stream costs, and a sweep beside torch.

    python tests/bench/bench_ablation.py [--quick] [--json FILE]

| figure                         | what is measured                                              |
|--------------------------------|---------------------------------------------------------------|
| `ablation.speed_share`         | characters a second of one ablated stream over those of a     |
|                                | plain one, streamed over HTTP in turns; the medians           |
| `ablation.first_char_extra_ms` | first characters under ablations that the server has never    |
|                                | seen, less those of the plain model; the medians              |
| `ablation.sweep_over_torch`    | points a second of a sweep of `score` over 10,000 characters, |
|                                | through the server, over those of torch eager in a loop       |
| `ablation.structure_512_s`     | structure of a 512-wide matrix: ordered Schur form and masses |

One server, one bundle, loopback. The torch loop does what a script would: it edits the weights by
the same numpy code, scores the text step by step in eager mode with `torch.linalg.matrix_exp`, no
kernels of ours, and takes the first few points only. The text is random characters.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from servers import KINDS, Server, alone, running, start, wait_ready

import train.groups.matrix_exp
from clients.http_client import HttpClient
from serve.ablation import schur
from serve.ablation.apply import apply_ablation
from serve.ablation.parse import parse_ablation
from serve.manifest.read import read_manifest
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.settings import SHIPPED
from train.model import family

MODEL = "osm-rnn-shakespeare"
TEXT = 10_000  # characters
POINTS = 200
TORCH_POINTS = 3
STREAM = 6_000  # characters of a timed stream
ROUNDS = 9
SETTLE_S = 0.2
POLL_S = 0.05

Figures = dict[str, float]


def main() -> int:
    """Print the table, and write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and points, under 40 s")
    parser.add_argument("--json", type=Path, help="write the figures as one flat object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["TORSOR_NATIVE"] = "off"  # for torch; the server has an environment of its own
    train.groups.matrix_exp._exact_exp = train.groups.matrix_exp.matrix_exp_reference
    figures = {"ablation.structure_512_s": structure_s(512)}
    with tempfile.TemporaryDirectory() as folder, running() as servers:
        os.environ["TORSOR_DATA_FOLDER"] = folder
        server = start_torsor(Path(folder))
        servers.append(server)
        wait_ready(server)
        rounds = 5 if options.quick else ROUNDS
        figures |= speed(server, rounds) | first_characters(server, 2 * rounds)
        points = 40 if options.quick else POINTS
        with alone(server, servers):
            figures |= sweep(server, points)
    figures["ablation.torch_point_s"] = torch_point_s(1 if options.quick else TORCH_POINTS)
    ratio = figures["ablation.torch_point_s"] / figures["ablation.sweep_point_s"]
    figures["ablation.sweep_over_torch"] = ratio
    for name, value in figures.items():
        print(f"{name:32} {value:10.4g}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


def start_torsor(folder: Path) -> Server:
    """The server, with its kernels."""
    before = os.environ.pop("TORSOR_NATIVE")
    try:
        return start(KINDS["torsor"], folder)
    finally:
        os.environ["TORSOR_NATIVE"] = before


def speed(server: Server, rounds: int) -> Figures:
    """Characters a second of a plain and of an ablated stream, in turns."""
    rates: dict[str, list[float]] = {"plain": [], "ablated": []}
    kinds: dict[str, Any] = {"plain": None, "ablated": point(0.9)}
    with HttpClient(f"http://127.0.0.1:{server.port}") as client:
        for turn in range(rounds + 1):  # the first one warms up
            for kind, ablation in kinds.items():
                since = time.perf_counter()
                stream = client.generate(
                    "", model=MODEL, max_tokens=STREAM, seed=turn, ablation=ablation
                )
                written = sum(len(chunk.text) for chunk in stream)
                rates[kind].append(written / (time.perf_counter() - since))
    plain, ablated = (statistics.median(rates[kind][1:]) for kind in kinds)
    return {
        "ablation.plain_characters_per_s": plain,
        "ablation.ablated_characters_per_s": ablated,
        "ablation.speed_share": ablated / plain,
    }


def first_characters(server: Server, rounds: int) -> Figures:
    """Milliseconds to the first character, of the plain model and of ablations never seen."""
    waits: dict[str, list[float]] = {"plain": [], "ablated": []}
    with HttpClient(f"http://127.0.0.1:{server.port}") as client:
        for turn in range(rounds):
            fresh = point(0.3 + 0.5 * turn / rounds)
            for kind, ablation in (("plain", None), ("ablated", fresh)):
                time.sleep(SETTLE_S)
                since = time.perf_counter()
                stream = client.generate("", model=MODEL, max_tokens=1, ablation=ablation)
                next(stream)
                waits[kind].append(1000 * (time.perf_counter() - since))
                stream.close()
    plain, ablated = (statistics.median(waits[kind]) for kind in waits)
    return {
        "ablation.first_char_plain_ms": plain,
        "ablation.first_char_ablated_ms": ablated,
        "ablation.first_char_extra_ms": ablated - plain,
    }


def sweep(server: Server, points: int) -> Figures:
    """Seconds a point of a sweep through the server, baseline and job included."""
    body = {
        "model": MODEL,
        "query": "score",
        "text": text(),
        "grid": {"edits": [point("$alpha")["edits"][0]], "axes": {"alpha": alphas(points)}},
    }
    url = f"http://127.0.0.1:{server.port}/v1/sweeps"
    since = time.perf_counter()
    page = httpx.post(url, json=body, timeout=60).raise_for_status().json()
    while page["state"] in ("queued", "running"):
        time.sleep(POLL_S)
        page = httpx.get(f"{url}/{page['id']}", timeout=60).raise_for_status().json()
    seconds = time.perf_counter() - since
    if page["state"] != "done" or page["num_failed"]:
        raise RuntimeError(f"the sweep ended as {page}")
    return {"ablation.sweep_points": points, "ablation.sweep_point_s": seconds / points}


@torch.no_grad()
def torch_point_s(points: int) -> float:
    """Seconds a point in torch eager: edit the weights, score the text."""
    bundle = Bundle(SHIPPED / MODEL, Device("cpu", 1))
    kind = family(bundle.manifest.family)
    model = kind(kind.Config(**bundle.manifest.config)).requires_grad_(False).eval()
    names = list(model.weights())
    symbols = {symbol: index for index, symbol in enumerate(bundle.manifest.vocabulary)}
    xs = torch.tensor([symbols[character] for character in text()]).unsqueeze(1)  # (T, 1)
    since = time.perf_counter()
    for alpha in alphas(points):
        applied = apply_ablation(
            parse_ablation(point(alpha), bundle.manifest), bundle.weights, bundle.manifest
        )
        arrays = dict(bundle.weights) | applied.weights
        weights = {name: torch.from_numpy(np.array(arrays[name])) for name in names}
        bits(model, weights, xs)
    return (time.perf_counter() - since) / points


def bits(model: Any, weights: Any, xs: torch.Tensor) -> float:
    """Bits per character of a text: logits before each character, then the character."""
    state, total = model.init_state(1), 0.0
    for position, x in enumerate(xs):
        if model.correct_every and position % model.correct_every == 0:
            state = model.correct(state)
        logs = model.readout(weights, state).log_softmax(-1)
        total -= float(logs[0, x])
        state = model.update(weights, state, x)
    return total / len(xs) / float(np.log(2.0))


def structure_s(n: int) -> float:
    """Seconds of an ordered Schur form and its masses; the best of three."""
    W, found = np.random.default_rng(0).normal(0.0, n**-0.5, (n, n)), []
    for _ in range(3):
        since = time.perf_counter()
        schur.spectrum(schur.ordered_schur(W), 0.9)
        found.append(time.perf_counter() - since)
    return min(found)


def point(alpha: Any) -> dict[str, Any]:
    """An ablation of the mixing; its couplings are there for any alpha."""
    edit = {"target": "mixing", "op": "schur", "alpha": alpha, "zero": ["RR", "C→R", "CC"]}
    return {"edits": [edit]}


def alphas(points: int) -> list[float]:
    """Different ones, so that every point is another ablation."""
    return [0.2 + 0.7 * index / points for index in range(points)]


def text() -> str:
    """Random characters of the vocabulary; the same in every run."""
    vocabulary = read_manifest(SHIPPED / MODEL).vocabulary
    return "".join(random.Random(0).choices(vocabulary, k=TEXT))


if __name__ == "__main__":
    sys.exit(main())
