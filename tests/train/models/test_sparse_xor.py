"""Two heads on a sphere: the closed form of the loss, and what one step of descent finds."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from train.experiments import sparse_xor
from train.experiments.sparse_xor import (
    CONTROL_RATES,
    CONTROLS,
    descend,
    empirical_loss,
    experiment,
    judge,
    main,
    make_problem,
    one_step_rate,
    population_loss,
)
from train.model import scan_reference
from train.models.sparse_xor import KINDS, STARTS, SparseXor, SparseXorConfig, attend

D, M, T, B = 8, 5, 6, 3
every_kind = pytest.mark.parametrize("kind", KINDS)


def make_model(seed: int = 0, **sizes: Any) -> SparseXor:
    config = SparseXorConfig(input_size=D, output_size=1, **{"m": M, **sizes})
    return SparseXor(config, torch.Generator().manual_seed(seed))


def signs(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(2, shape, generator=torch.Generator().manual_seed(seed)).float() * 2 - 1


def distance(A: Tensor, B: Tensor) -> float:
    return float((A - B).abs().max().detach())


# The family


@every_kind
@torch.no_grad()
def test_the_scan_is_the_loop_of_steps_from_any_state(kind: str) -> None:
    model = make_model(attention=kind)
    weights, start = model.weights(), {"heads": torch.full((B, 2), 7.0)}
    state, ys = model.scan(weights, start, signs(T, B, D))
    looped, expected = scan_reference(model, weights, start, signs(T, B, D))
    assert ys.shape == (T, B, 1)
    assert distance(ys, expected) <= 1e-6
    assert distance(state["heads"], looped["heads"]) <= 1e-6


@torch.no_grad()
def test_the_output_is_minus_the_product_of_two_weighted_sums() -> None:
    model, x = make_model(), signs(B, D)
    theta, other = model.queries
    first = (model.positions @ theta).exp() / (model.positions @ theta).exp().sum()
    second = (model.positions @ other).exp() / (model.positions @ other).exp().sum()
    _, y = model.step(model.weights(), model.init_state(B), x)
    assert distance(y[:, 0], -(x @ first) * (x @ second)) <= 1e-6


@torch.no_grad()
def test_a_fresh_stream_reads_zero() -> None:
    model = make_model()
    assert model.readout(model.weights(), model.init_state(B)).tolist() == [[0.0]] * B


@torch.no_grad()
def test_definitions_of_attention() -> None:
    model = make_model()
    scores = model.queries @ model.positions.mT
    given = (model.positions, model.queries)
    assert distance(attend("softmax", *given).sum(-1), torch.ones(2)) <= 1e-6
    assert distance(attend("linear", *given), scores) == 0.0
    expected = [[(1 + math.erf(s)) / (2 * D) for s in row] for row in scores.tolist()]
    assert distance(attend("erf", *given), torch.tensor(expected)) <= 1e-6


def test_positions_lie_on_the_sphere_and_only_queries_learn() -> None:
    model = make_model()
    assert distance(torch.linalg.vector_norm(model.positions, dim=1), torch.ones(D)) <= 1e-6
    _, ys = model.scan(model.weights(), model.init_state(B), signs(T, B, D))
    ys.square().sum().backward()  # type: ignore[no-untyped-call]
    assert model.positions.grad is None
    assert model.queries.grad is not None
    assert bool(model.queries.grad.any())
    assert model.num_parameters() == D * M + 2 * M


def test_second_queries_start_where_they_are_told() -> None:
    found = {start: make_model(queries=start).queries.detach() for start in STARTS}
    assert distance(found["opposite"][1], -found["opposite"][0]) == 0.0
    assert distance(found["same"][1], found["same"][0]) == 0.0
    assert distance(found["independent"][1].abs(), found["independent"][0].abs()) > 0.1
    norms = torch.stack([torch.linalg.vector_norm(pair, dim=1) for pair in found.values()])
    assert distance(norms, torch.ones_like(norms)) <= 1e-6


@torch.no_grad()
def test_targets_are_the_heads() -> None:
    model, x = make_model(), signs(B, D)
    targets = model.targets()
    assert [target.name for target in targets] == ["heads.0", "heads.1"]
    for target in targets:
        weights = {target.weight: model.weights()[target.weight].clone()}
        assert target.slice is not None
        weights[target.weight][tuple(slice(*bounds) for bounds in target.slice)] = 0.0
        state, y = model.step(weights, model.init_state(B), x)
        assert y.any() == 0
        assert state["heads"].any(0).tolist() == [
            name != target.name for name in ("heads.0", "heads.1")
        ]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"m": 0}, "m: found 0, expected at least 1"),
        ({"output_size": 2}, "output_size: found 2, expected 1"),
        ({"attention": "relu"}, "attention: found 'relu', expected one of softmax, linear, erf"),
        ({"queries": "far"}, "queries: found 'far', expected one of opposite, independent, same"),
    ],
)
def test_sizes_that_make_no_model_are_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SparseXorConfig(**{"input_size": D, "output_size": 1, **sizes})


# The loss


def random_attention(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_the_closed_form_is_the_mean_over_all_inputs() -> None:
    attention = random_attention(4, 2, D)
    support = torch.tensor([[0, 1], [5, 2], [7, 0], [3, 4]])
    inputs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=D)), dtype=torch.float64)
    expected = empirical_loss(attention, support, inputs.expand(4, -1, -1))
    assert len(inputs) == 2**D
    assert distance(population_loss(attention, support), expected) <= 1e-12


def test_the_empirical_loss_is_that_of_the_model() -> None:
    model, x, support = make_model(), signs(20, D), torch.tensor([[6, 1]])
    _, y = model.scan(model.weights(), model.init_state(20), x.unsqueeze(0))
    expected = (y[0, :, 0] + x[:, 6] * x[:, 1]).square().mean()
    found = empirical_loss(model.weights()["attention"].unsqueeze(0), support, x.unsqueeze(0))
    assert distance(found[0], expected) <= 1e-6


def test_the_gradient_is_that_of_the_research_notes() -> None:
    attention, (r, s) = random_attention(2, D).requires_grad_(), (2, 6)
    loss = population_loss(attention, torch.tensor([r, s]))
    (found,) = torch.autograd.grad(loss, attention)
    a, b = attention.detach()
    expected = 2 * a * (b @ b) + 4 * (a @ b) * b - 4 * a * b.square()
    expected[r] -= 2 * b[s]
    expected[s] -= 2 * b[r]
    assert distance(found[0], expected) <= 1e-12


@torch.no_grad()
def test_heads_that_take_one_bit_each_have_no_loss_and_others_do() -> None:
    one_hot = torch.eye(D, dtype=torch.float64)
    support = torch.tensor([[3, 5], [3, 5], [3, 5], [3, 5]])
    picks = torch.tensor([[3, 5], [5, 3], [3, 3], [1, 5]])
    success, collapse, loss = judge(one_hot[picks], support)
    assert success.tolist() == [True, True, False, False]
    assert collapse.tolist() == [False, False, True, False]
    assert loss.tolist() == [0.0, 0.0, 2.0, 2.0]


# What is learned


def test_one_step_of_descent_is_one_step() -> None:
    problem = make_problem(range(2), D, M, "opposite")
    queries = problem.queries.clone().requires_grad_()
    losses = population_loss(attend("softmax", problem.positions, queries), problem.support)
    (gradient,) = torch.autograd.grad(losses[1], queries)
    moved = attend("softmax", problem.positions, queries - 4.0 * gradient)
    found = descend(
        "softmax", problem, lambda weights: population_loss(weights, problem.support), 4.0, 1
    )
    assert distance(found[1], moved[1]) <= 1e-12


@pytest.mark.slow
def test_one_step_finds_both_bits_of_1024_in_95_of_100_seeds() -> None:
    row = experiment("softmax", "opposite", 1024, 96, 100)
    assert row.rate == pytest.approx(30 * 1024**2 * 96**0.5)
    assert row.steps == 1
    assert row.success >= 0.95
    assert row.loss < 1e-3


@pytest.mark.parametrize("start", ["opposite", "independent"])
def test_one_step_finds_both_bits_of_1024(start: str) -> None:
    row = experiment("softmax", start, 1024, 96, 10)
    assert row.success >= 0.9
    assert row.success + row.collapse == 1.0


def test_heads_that_start_alike_stay_alike() -> None:
    row = experiment("softmax", "same", 256, 61, 10)
    assert (row.success, row.collapse) == (0.0, 1.0)
    assert row.loss > 1.0


def test_softmax_learns_in_one_step_where_linear_and_erf_do_not_in_many() -> None:
    sizes = CONTROLS | {"num_seeds": 5}
    assert experiment("softmax", "opposite", **sizes).success == 1.0
    for kind, rates in CONTROL_RATES.items():
        row = experiment(kind, "opposite", **sizes, rate=rates[1], steps=100)
        assert row.success == 0.0
        assert row.loss > 0.8


def test_few_samples_find_less_than_many() -> None:
    few, many = (experiment("softmax", "opposite", 32, 24, 20, samples=n) for n in (64, 16 * 32**2))
    assert few.success <= 0.2
    assert many.success >= 0.6


def test_the_rate_grows_with_the_square_of_the_bits() -> None:
    assert one_step_rate(64, 16) == 4 * one_step_rate(32, 16) == 30 * 64**2 * 4


def test_the_experiment_prints_its_tables_and_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_xor, "CONTROL_STEPS", 2)
    assert main(["--seeds", "2", "--json", str(tmp_path / "xor.json")]) == 0
    page = json.loads((tmp_path / "xor.json").read_text())
    assert list(page) == ["one_step", "controls"]
    printed = capsys.readouterr().out.splitlines()
    assert sum(len(rows) for rows in page.values()) == len([x for x in printed if x]) - 4
    assert [row["queries"] for row in page["one_step"]] == list(STARTS)
