"""Processor time of one training iteration: the fast form against the plain one, in one run.

    python tests/bench/bench_training.py [--quick] [--json FILE] [--device cuda]

One thread; the processor's time of this process counts, so waiting for a busy machine doesn't. An
iteration is forward and backward of the same windows. Rounds alternate between the two, and the
best of each counts.

On CUDA, by the clock, the fast form of the OSM-RNN is its own exponential, step by step: the native
kernels of training are the CPU's.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from where import Where, add_option, chosen

from serve.native.library import status
from train.groups import native
from train.groups.matrix_exp import matrix_exp, matrix_exp_reference
from train.model import State, scan_reference
from train.models.rotrnn import RotRnn, RotRnnConfig

Iteration = Callable[[], object]
Exp = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """Two iterations to compare; the ratio is `training.KEY`."""

    key: str
    what: str
    ours: Iteration
    plain: Iteration
    most_rounds: int = 20


def main() -> None:
    """Print the table, and write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 40 s")
    parser.add_argument("--json", type=Path, help="write the figures as one flat object")
    add_option(parser)
    options = parser.parse_args()
    where = chosen(parser, options.device)
    torch.set_num_threads(1)
    if where.kind == "cpu" and not native.available():
        parser.exit(1, f"nothing to compare: {status()}\n")
    figures: dict[str, float] = {}
    print(where.line(status() if where.kind == "cpu" else "torch's own kernels"))
    print(f"{'iteration':44} {'plain ms':>9} {'ours ms':>9} {'ratio':>6}")
    for make in ROWS:
        measure(make(where), 5 if options.quick else 20, figures, where)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def measure(row: Row, rounds: int, figures: dict[str, float], where: Where) -> None:
    """One line of the table."""
    row.ours(), row.plain()
    rounds = min(rounds, row.most_rounds)
    times = [(elapsed(row.plain, where), elapsed(row.ours, where)) for _ in range(rounds)]
    plain, ours = (min(column) for column in zip(*times, strict=True))
    figures[f"training.{row.key}"] = plain / ours
    figures[f"training.{row.key}.plain_s"], figures[f"training.{row.key}.ours_s"] = plain, ours
    print(f"{row.what:44} {plain * 1e3:9.1f} {ours * 1e3:9.1f} {plain / ours:6.1f}", flush=True)


def osm_rnn(where: Where) -> Row:
    """OSM-RNN over SO(22) of 99,902 parameters, full mixing, 32 windows of 64 characters.

    Tokens are as big as training makes them: a step turns its planes by up to 2 or 3 radians.
    """
    V, d, B, T = 65, 22, 32, 64
    D = d * (d - 1) // 2
    torch.manual_seed(0)
    weights = {
        "tokens": 0.25 * torch.randn(V, d, d),
        "mixing": torch.eye(D) + 0.02 * torch.randn(D, D),
        "prototypes": 0.4 * torch.randn(V, D),
        "temperature": torch.ones(()),
        "bias": torch.zeros(V),
    }
    weights = {n: weight.to(where.kind).requires_grad_() for n, weight in weights.items()}
    xs, ys = torch.randint(V, (2, T, B)).to(where.kind)
    H0 = torch.eye(d, device=where.kind).expand(B, d, d).contiguous()
    fast: tuple[Exp, Callable[..., Tensor]] = (native.matrix_exp, native.osm_scan)
    if where.kind == "cuda":
        fast = (matrix_exp, partial(plain_osm_scan, exp=matrix_exp))

    def iteration(exp: Exp, scan: Callable[..., Tensor]) -> Iteration:
        def run() -> object:
            Hs = scan(weights["tokens"], xs, H0, weights["mixing"])
            P = exp(tangent(weights["prototypes"], d))
            scores = weights["temperature"] * (Hs.flatten(2) @ P.flatten(1).mT)
            loss = F.cross_entropy((scores + weights["bias"]).flatten(0, 1), ys.flatten())
            return torch.autograd.grad(loss, list(weights.values()))

        return run

    ours, plain = (
        iteration(*fast),
        iteration(matrix_exp_reference, plain_osm_scan),
    )
    return Row("osm_rnn_over_plain", f"osm-rnn SO({d}), {B} windows of {T}", ours, plain)


def plain_osm_scan(
    table: Tensor, xs: Tensor, H: Tensor, mixing: Tensor, exp: Exp = matrix_exp_reference
) -> Tensor:
    """H' = H exp(Γ proj(Hᵀ M_x)), one step at a time."""
    i, j = torch.triu_indices(H.shape[-1], H.shape[-1], 1, device=H.device)
    Hs = []
    for M in table[xs]:
        A = H.mT @ M
        u = (A - A.mT)[:, i, j] * math.sqrt(0.5)
        H = H @ exp(tangent(u @ mixing.mT, H.shape[-1]))
        Hs.append(H)
    return torch.stack(Hs)


def tangent(u: Tensor, d: int) -> Tensor:
    """Coordinates to skew-symmetric matrices: (..., D) -> (..., d, d)."""
    rows, columns = torch.triu_indices(d, d, 1, device=u.device)
    flat = u.new_zeros(*u.shape[:-1], d * d)
    flat = flat.index_copy(-1, rows * d + columns, u * math.sqrt(0.5))
    upper = torch.unflatten(flat, -1, (d, d))
    return upper - upper.mT


def rotrnn(where: Where) -> Row:
    """RotRNN of default sizes, parallel scan against the loop of steps, 8 sequences of 1,024."""
    V, B, T = 65, 8, 1024
    model = RotRnn(RotRnnConfig(input_size=V, output_size=V), torch.Generator().manual_seed(0))
    model = model.to(where.kind)
    xs, ys = torch.randint(V, (2, T, B), generator=torch.Generator().manual_seed(1)).to(where.kind)

    def iteration(fold: Callable[..., tuple[State, Tensor]]) -> Iteration:
        def run() -> object:
            _, logits = fold(model.weights(), model.init_state(B), xs)
            loss = F.cross_entropy(logits.flatten(0, 1), ys.flatten())
            return torch.autograd.grad(loss, list(model.parameters()))

        return run

    ours, plain = iteration(model.scan), iteration(partial(scan_reference, model))
    what = f"rotrnn scan over loop, {B} sequences of {T:,}"
    return Row("rotrnn_scan_over_loop", what, ours, plain, most_rounds=2)


ROWS: tuple[Callable[[Where], Row], ...] = (osm_rnn, rotrnn)


def elapsed(work: Iteration, where: Where) -> float:
    """Seconds that one call takes: of the processor, on CUDA by the clock."""
    started = where.now()
    work()
    return where.now() - started


if __name__ == "__main__":
    main()
