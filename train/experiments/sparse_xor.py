"""Sparse XOR: whether one step of gradient descent finds the two bits, and what fails to.

    python -m train.experiments.sparse_xor --seeds 100 --samples --json xor.json

"Transformers Provably Learn Sparse XOR with Polylogarithmic Parameters", arXiv 2502.07553. The
label of x ∈ {-1, +1}^d is -x_r x_s for two unknown bits. The loss is the mean squared error over
all 2^d inputs, in closed form. A seed succeeds if the heads look most at r and s, one each, and the
loss is below 0.05. Sizes and the rate η = C d² √m with C = 30 are ours; so are the linear and erf
attention, each at the best of several rates.

Letters: S seeds, d bits, m size of positions and queries, n samples.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from train.models.sparse_xor import STARTS, attend, sphere, start_queries

C = 30.0
LEARNED = 0.05  # loss below which a seed has learned
CHUNK = 10  # seeds that are worked on together
ONE_STEP = {"d": 1024, "m": 96}
CONTROLS = {"d": 64, "m": 34, "num_seeds": 20}
CONTROL_STEPS = 500
CONTROL_RATES = {"linear": (0.003, 0.01, 0.03), "erf": (1.0, 1e3, 1e5)}  # linear diverges at 0.1
SAMPLED = ({"d": 32, "m": 24}, {"d": 64, "m": 34})  # m = 2 log² d
SAMPLE_RATIOS = (1 / 8, 1 / 2, 1, 2, 8)  # n / d²
SAMPLE_SEEDS = 60
HEADER = (
    "attention  queries         d    m        n     rate  steps  seeds  success  collapse    loss"
)


class Problem(NamedTuple):
    """S seeds: positions, start and hidden bits, in float64."""

    positions: Tensor  # (S, d, m)
    queries: Tensor  # (S, 2, m)
    support: Tensor  # (S, 2) r and s


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of some seeds."""

    attention: str
    queries: str
    d: int
    m: int
    samples: int | None  # n; None: all 2^d inputs
    rate: float
    steps: int
    seeds: int
    success: float  # share of seeds
    collapse: float  # share of seeds whose heads look most at one bit
    loss: float  # median


def population_loss(attention: Tensor, support: Tensor) -> Tensor:
    """The mean of (f(x) - y)² over all x, exactly: (..., 2, d), (..., 2) -> (...).

    With a = γ, b = γ~: |a|²|b|² + 2 (a·b)² - 2 Σ_i a_i² b_i² - 2 (a_r b_s + a_s b_r) + 1.
    """
    a, b = attention.unbind(-2)
    a_r, a_s = a.gather(-1, support).unbind(-1)
    b_r, b_s = b.gather(-1, support).unbind(-1)
    squares = a.square().sum(-1) * b.square().sum(-1) - 2 * (a * b).square().sum(-1)
    return squares + 2 * (a * b).sum(-1).square() - 2 * (a_r * b_s + a_s * b_r) + 1


def empirical_loss(attention: Tensor, support: Tensor, inputs: Tensor) -> Tensor:
    """The mean of (f(x) - y)² over inputs (S, n, d): (S)."""
    first, second = (inputs @ attention.mT).unbind(-1)  # (S, n)
    pair = inputs.gather(-1, support.unsqueeze(-2).expand(*inputs.shape[:-1], 2))
    return (pair.prod(-1) - first * second).square().mean(-1)  # f(x) - y


def make_problem(seeds: range, d: int, m: int, start: str) -> Problem:
    """Random positions, queries and bits, a generator a seed."""
    problems = []
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        positions = sphere(d, m, generator=g, dtype=torch.float64)
        queries = start_queries(start, m, generator=g, dtype=torch.float64)
        problems.append(Problem(positions, queries, torch.randperm(d, generator=g)[:2]))
    return Problem(*(torch.stack(parts) for parts in zip(*problems, strict=True)))


def descend(
    kind: str, problem: Problem, loss: Callable[[Tensor], Tensor], rate: float, steps: int
) -> Tensor:
    """Attention (S, 2, d) after steps of gradient descent on both queries of every seed."""
    queries = problem.queries.clone().requires_grad_()
    for _ in range(steps):
        total = loss(attend(kind, problem.positions, queries)).sum()  # seeds don't meet
        (gradient,) = torch.autograd.grad(total, queries)
        queries = (queries.detach() - rate * gradient).requires_grad_()
    return attend(kind, problem.positions, queries).detach()


def judge(attention: Tensor, support: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Success, collapse and loss of every seed: (S) each."""
    most = attention.argmax(-1)  # (S, 2)
    loss = population_loss(attention, support)
    found = (most.sort(-1).values == support.sort(-1).values).all(-1)
    return found & (loss < LEARNED), most[:, 0] == most[:, 1], loss


def one_step_rate(d: int, m: int) -> float:
    """η = C d² √m."""
    return C * d**2 * math.sqrt(m)


def experiment(
    kind: str,
    start: str,
    d: int,
    m: int,
    num_seeds: int,
    *,
    rate: float | None = None,
    steps: int = 1,
    samples: int | None = None,
) -> Row:
    """Train the two heads for each of the seeds; by default one step of `one_step_rate`."""
    rate = one_step_rate(d, m) if rate is None else rate
    verdicts = []
    for first in range(0, num_seeds, CHUNK):
        seeds = range(first, min(first + CHUNK, num_seeds))
        problem = make_problem(seeds, d, m, start)
        loss = _loss(problem, seeds, samples)
        verdicts.append(judge(descend(kind, problem, loss, rate, steps), problem.support))
    success, collapse, losses = (torch.cat(parts) for parts in zip(*verdicts, strict=True))
    return Row(
        attention=kind,
        queries=start,
        d=d,
        m=m,
        samples=samples,
        rate=rate,
        steps=steps,
        seeds=num_seeds,
        success=float(success.double().mean()),
        collapse=float(collapse.double().mean()),
        loss=float(losses.median()),
    )


def _loss(problem: Problem, seeds: range, samples: int | None) -> Callable[[Tensor], Tensor]:
    if samples is None:
        return lambda attention: population_loss(attention, problem.support)
    d, drawn = problem.positions.shape[-2], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(2**32 + seed)
        drawn.append(torch.randint(2, (samples, d), generator=generator).double() * 2 - 1)
    inputs = torch.stack(drawn)
    return lambda attention: empirical_loss(attention, problem.support, inputs)


def one_step_rows(num_seeds: int) -> Iterator[Row]:
    """Softmax attention, one step, by how the second query starts."""
    for start in STARTS:
        yield experiment("softmax", start, **ONE_STEP, num_seeds=num_seeds)


def control_rows() -> Iterator[Row]:
    """Softmax against linear and erf attention, which get many steps and several rates."""
    yield experiment("softmax", "opposite", **CONTROLS)
    yield experiment("softmax", "opposite", **CONTROLS, steps=CONTROL_STEPS)
    for kind, rates in CONTROL_RATES.items():
        for rate in rates:
            yield experiment(kind, "opposite", **CONTROLS, rate=rate, steps=CONTROL_STEPS)


def sample_rows() -> Iterator[Row]:
    """Softmax attention, one step on n random inputs instead of all."""
    for sizes in SAMPLED:
        for ratio in SAMPLE_RATIOS:
            n = round(ratio * sizes["d"] ** 2)
            yield experiment("softmax", "opposite", **sizes, num_seeds=SAMPLE_SEEDS, samples=n)


def format_row(row: Row) -> str:
    """A line under `HEADER`."""
    n = "all" if row.samples is None else str(row.samples)
    sizes = f"{row.attention:9}  {row.queries:11} {row.d:5} {row.m:4} {n:>8}"
    training = f"{row.rate:8.2g}  {row.steps:5}  {row.seeds:5}"
    return f"{sizes} {training}  {row.success:7.2f}  {row.collapse:8.2f}  {row.loss:6.3f}"


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    options = make_parser().parse_args(arguments)
    tables = {"one_step": one_step_rows(options.seeds), "controls": control_rows()}
    if options.samples:
        tables["samples"] = sample_rows()
    page = dict[str, list[dict[str, object]]]()
    for name, rows in tables.items():
        print(f"\n{name.replace('_', ' ')}\n{HEADER}")
        page[name] = []
        for row in rows:
            print(format_row(row), flush=True)
            page[name].append(asdict(row))
    if options.json is not None:
        options.json.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m train.experiments.sparse_xor",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--seeds", type=int, default=100, help="of the first table (default: 100)")
    parser.add_argument("--samples", action="store_true", help="one step on few inputs, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables as JSON too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
