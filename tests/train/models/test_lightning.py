"""Lightning attention: the text family, the paper's map, its symmetries and its dimension."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from train.experiments.lightning_geometry import (
    Layer,
    Measured,
    change_attention,
    change_basis,
    expected_dimension,
    lightning_map,
    measured_dimension,
    numerical_rank,
    random_layers,
    scale_layers,
)
from train.experiments.neuromanifold import main
from train.model import Weights, scan_reference
from train.models.lightning import CHUNK, Lightning, LightningConfig

V, B = 7, 3
PLAIN: dict[str, Any] = {"block": "plain", "decay": "none", "heads": 1}
FORMS = [{}, {"decay": "none"}, {"block": "plain"}, {"block": "plain", "decay": "none"}, PLAIN]
every_form = pytest.mark.parametrize(
    "sizes", FORMS, ids=lambda sizes: "-".join(map(str, sizes.values()))
)


def make_model(seed: int = 0, **sizes: Any) -> Lightning:
    small = {"d": 6, "layers": 2, "heads": 2, "a": 2}
    config = LightningConfig(input_size=V, output_size=V, **{**small, **sizes})
    return Lightning(config, torch.Generator().manual_seed(seed)).double()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def characters(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(V, shape, generator=generator(seed))


def distance(A: Tensor, B: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    return float(((A - B).abs().max() / B.abs().max().clamp(min=1.0)).detach())


# The text family


@every_form
@torch.no_grad()
def test_the_scan_is_the_loop_of_steps_in_float64(sizes: dict[str, Any]) -> None:
    model = make_model(**sizes)
    weights = model.weights()
    start, _ = scan_reference(model, weights, model.init_state(B), characters(3, B, seed=1))
    xs = characters(2 * CHUNK + 5, B)
    state, ys = model.scan(weights, start, xs)
    looped, expected = scan_reference(model, weights, start, xs)
    assert distance(ys, expected) <= 1e-10
    assert list(state) == list(looped) == list(start)
    assert max(distance(state[name], looped[name]) for name in state) <= 1e-10


@every_form
@torch.no_grad()
def test_characters_are_one_hot_vectors(sizes: dict[str, Any]) -> None:
    model, xs = make_model(**sizes), characters(9, B)
    _, expected = model.scan(model.weights(), model.init_state(B), xs)
    vectors = torch.nn.functional.one_hot(xs, V).double()
    _, ys = model.scan(model.weights(), model.init_state(B), vectors)
    assert distance(ys, expected) <= 1e-12


@torch.no_grad()
def test_the_past_is_summed_with_decay() -> None:
    model = make_model(layers=1, block="plain")
    weights, xs = model.weights(), characters(6, 1)
    state, _ = model.scan(weights, model.init_state(1), xs)
    x = weights["input"][xs[:, 0]]  # (T, d)
    k = (x @ weights["layers.0.key"].T).reshape(6, 2, -1)  # (T, h, a)
    v = (x @ weights["layers.0.value"].T).reshape(6, 2, -1)
    ages = torch.arange(5, -1, -1).unsqueeze(-1)
    kept = weights["layers.0.decay"] ** ages  # (T, h)
    assert bool((weights["layers.0.decay"] < 1).all() & (weights["layers.0.decay"] > 0).all())
    expected = torch.einsum("th,thn,tha->hna", kept, v, k)
    assert distance(state["layers.0.sum"][0], expected) <= 1e-12


@torch.no_grad()
def test_a_decay_of_zero_sees_the_present_only() -> None:
    model = make_model(block="plain")
    weights = {k: v * (not k.endswith("decay")) for k, v in model.weights().items()}
    xs = characters(8, B)
    state, ys = model.scan(weights, model.init_state(B), xs)
    _, alone = model.step(weights, model.init_state(B), xs[-1])
    assert distance(ys[-1], alone) <= 1e-12
    assert all(value.isfinite().all() for value in state.values())


@torch.no_grad()
def test_long_texts_stay_bounded_in_a_residual_block() -> None:
    model = make_model().float()
    xs = characters(5000, 1)
    state, ys = model.scan(model.weights(), model.init_state(1), xs)
    assert float(ys.abs().max()) < 100.0
    assert float(state["layers.1.sum"].abs().max()) < 1000.0


@torch.no_grad()
def test_plain_layers_are_the_map_of_the_paper_on_every_prefix() -> None:
    model = make_model(**PLAIN, layers=2, a=3)
    weights, xs = model.weights(), characters(5, 1)
    X = weights["input"][xs[:, 0]].T  # (d, t)
    for layer in layers_of(weights, 2):  # a layer sees the causal outputs of the one before
        prefixes = [lightning_map([layer], X[:, : i + 1])[:, -1] for i in range(5)]
        X = torch.stack(prefixes, 1)
    _, ys = model.scan(weights, model.init_state(1), xs)
    assert distance(ys[:, 0], X.T @ weights["readout"].T + weights["readout.bias"]) <= 1e-12


def layers_of(weights: Weights, count: int) -> list[Layer]:
    """The layers of a plain model with one head."""
    names = ("query", "key", "value")
    return [Layer(*(weights[f"layers.{i}.{name}"] for name in names)) for i in range(count)]


def edited(weights: Weights, layers: list[Layer]) -> Weights:
    names = ("query", "key", "value")
    return weights | {
        f"layers.{i}.{name}": value
        for i, layer in enumerate(layers)
        for name, value in zip(names, layer, strict=True)
    }


def symmetric(layers: list[Layer]) -> dict[str, list[Layer]]:
    """Other weights of the same function, by the symmetry; for three layers of width d."""
    a, d = layers[1].query.shape
    C, P = normal(a, a, seed=4) + 2 * eye(a), normal(d, d, seed=5) + 2 * eye(d)
    return {
        "layer scaling": scale_layers(layers, [1.2, -0.9]),
        "queries and keys": [layers[0], change_attention(layers[1], C), layers[2]],
        "attention and values": [change_attention(layers[0], eye(a), -1.5), *layers[1:]],
        "first basis": change_basis(layers, 1, P),
        "second basis": change_basis(layers, 2, P),
    }


SYMMETRIES = list(symmetric(random_layers([3] * 4, [2] * 3, generator())))


@pytest.mark.parametrize("decay", ["learned", "none"])
@pytest.mark.parametrize("name", SYMMETRIES)
@torch.no_grad()
def test_symmetries_are_edits_that_leave_a_plain_text_model_as_it_is(name: str, decay: str) -> None:
    model = make_model(block="plain", heads=1, decay=decay, layers=3)
    weights, xs = model.weights(), characters(9, B)
    _, expected = model.scan(weights, model.init_state(B), xs)
    changed = edited(weights, symmetric(layers_of(weights, 3))[name])
    _, ys = model.scan(changed, model.init_state(B), xs)
    moved = max(distance(changed[key], weights[key]) for key in weights)
    assert moved > 0.01
    assert distance(ys, expected) <= 1e-10


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"d": 0}, "d: found 0, expected at least 1"),
        ({"d": 7}, "d: found 7, expected a multiple of 4, the heads"),
        ({"a": 0}, "a: found 0, expected at least 1"),
        ({"block": "dense"}, "block: found 'dense', expected 'residual' or 'plain'"),
        ({"decay": "fixed"}, "decay: found 'fixed', expected 'learned' or 'none'"),
        ({"feed_forward": 0.0}, "feed_forward: found 0.0, expected 1/d to 64"),
    ],
)
def test_sizes_that_make_no_model_are_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LightningConfig(input_size=V, output_size=V, **sizes)


def test_queries_and_keys_are_square_where_heads_share_the_width() -> None:
    ops = {a: {target.name: target.ops for target in make_model(a=a).targets()} for a in (2, 3)}
    assert ops[2]["layers.1.query"] == ops[2]["layers.1.key"] == ("zero",)
    assert ops[3]["layers.1.query"] == ops[3]["layers.1.value"] == ("schur", "zero", "identity")


# The map and its symmetries


def test_the_map_is_a_sum_over_pairs_of_tokens() -> None:
    (layer,) = layers = random_layers([4, 3], [2], generator())
    X, (Q, K, W) = normal(4, 5), layer
    for i in range(5):
        scores = torch.stack([(K @ X[:, j]) @ (Q @ X[:, i]) for j in range(5)])
        values = torch.stack([W @ X[:, j] for j in range(5)])
        assert distance(lightning_map(layers, X)[:, i], scores @ values) <= 1e-12
        soft = lightning_map(layers, X, normalised=True)[:, i]
        assert distance(soft, scores.softmax(0) @ values) <= 1e-12
    A = K.T @ Q
    assert distance(lightning_map(layers, X), W @ X @ X.T @ A @ X) <= 1e-12


@pytest.mark.parametrize("name", SYMMETRIES)
def test_symmetries_leave_the_map_as_it_is(name: str) -> None:
    layers, X = random_layers([3] * 4, [2] * 3, generator()), normal(20, 3, 4)
    changed = symmetric(layers)[name]
    assert distance(lightning_map(changed, X), lightning_map(layers, X)) <= 1e-10
    keeps_softmax = name in ("queries and keys", "first basis", "second basis")
    soft = [lightning_map(weights, X, normalised=True) for weights in (changed, layers)]
    assert (distance(*soft) <= 1e-10) == keeps_softmax


def test_a_layer_of_rank_one_is_the_same_with_key_and_value_swapped() -> None:
    k, q, v, w = normal(4, 5)
    layers = [Layer(q[None], k[None], torch.outer(v, w))]
    swapped = [Layer(q[None], w[None], torch.outer(v, k))]
    X = normal(10, 5, 3, seed=1)
    assert distance(lightning_map(swapped, X), lightning_map(layers, X)) <= 1e-12


def test_symmetries_that_do_not_fit_are_refused() -> None:
    layers = random_layers([3] * 3, [2] * 2, generator())
    with pytest.raises(ValueError, match="factors: found 2, expected one fewer than layers"):
        scale_layers(layers, [1.0, 2.0])
    with pytest.raises(ValueError, match="layer: found 2, expected 1 to 1"):
        change_basis(layers, 2, eye(3))


# The dimension

CHECKED = [  # widths, attention dimensions, tokens, dimension, normalised
    ((3, 2), (1,), 2, 10, 11),
    ((3, 2), (2,), 2, 13, 14),
    ((3, 3), (3,), 2, 17, 18),
    ((3, 4), (5,), 3, 20, 21),
    ((4, 2), (2,), 3, 19, 20),
    ((4, 1), (2,), 3, 15, 16),
    ((1, 1), (1,), 2, 1, 2),
    ((3, 3, 3), (2, 2), 3, 23, 25),
    ((4, 4, 4), (1, 1), 3, 28, 30),
    ((4, 4, 4), (2, 4), 3, 42, 44),
    ((5, 5, 5), (2, 2), 3, 55, 57),
    ((4, 2, 3), (2, 1), 3, 23, 25),
    ((3, 1, 2), (1, 1), 3, 8, 10),
    ((3, 3, 3, 3), (1, 1, 1), 3, 21, 24),
    ((4, 3, 3, 3), (2, 2, 2), 3, 37, 40),
    ((4, 4, 4, 4), (2, 2, 2), 3, 49, 52),
]


@pytest.mark.parametrize(("widths", "dims", "tokens", "plain", "normalised"), CHECKED)
def test_the_formula_is_the_rank_of_the_jacobian(
    widths: tuple[int, ...], dims: tuple[int, ...], tokens: int, plain: int, normalised: int
) -> None:
    assert expected_dimension(widths, dims) == plain
    assert measured_dimension(widths, dims, num_tokens=tokens).dimension == plain
    assert expected_dimension(widths, dims, normalised=True) == normalised
    found = measured_dimension(widths, dims, num_tokens=tokens, normalised=True)
    assert found.dimension == normalised


@pytest.mark.parametrize(
    ("widths", "dims", "formula", "found"), [((3, 2), (2,), 13, 11), ((3, 3), (3,), 17, 14)]
)
def test_one_token_alone_shows_less(
    widths: tuple[int, ...], dims: tuple[int, ...], formula: int, found: int
) -> None:
    assert expected_dimension(widths, dims) == formula
    assert measured_dimension(widths, dims, num_tokens=1).dimension == found


@pytest.mark.parametrize(
    ("widths", "dims", "plain", "normalised"),
    [((4, 4, 4), (1, 2), 31, 35), ((4, 4, 4), (1, 3), 31, 38), ((2, 2, 2), (1, 2), 8, None)],
)
def test_a_rank_of_one_before_a_larger_one_is_refused_and_indeed_shows_less(
    widths: tuple[int, ...], dims: tuple[int, ...], plain: int, normalised: int | None
) -> None:
    with pytest.raises(ValueError, match="expected no 1 before a larger one"):
        expected_dimension(widths, dims)
    assert measured_dimension(widths, dims).dimension == plain
    if normalised is not None:
        assert expected_dimension(widths, dims, normalised=True) == normalised
        assert measured_dimension(widths, dims, normalised=True).dimension == normalised


@pytest.mark.parametrize(
    ("widths", "dims", "message"),
    [
        ((2, 4, 2), (2, 2), r"found \[4\] hidden, expected one width, at most the input's 2"),
        ((4, 3, 2, 4), (2, 2, 2), r"found \[3, 2\] hidden, expected one width"),
        ((3, 3), (2, 2), "one more width than layers"),
        ((3, 0), (2,), "expected positive numbers"),
        ((3,), (), "expected positive numbers"),
    ],
)
def test_sizes_outside_the_theorem_are_refused(
    widths: tuple[int, ...], dims: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        expected_dimension(widths, dims)


def test_a_rank_is_read_where_the_gap_is_widest() -> None:
    U, W = normal(9, 3), normal(3, 6, seed=1)
    assert numerical_rank(U @ W).dimension == 3
    assert numerical_rank(U @ W).gap > 1e10
    assert numerical_rank(eye(4)).dimension == 4
    assert isinstance(numerical_rank(U), Measured)


def test_a_rank_without_a_gap_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.experiments.lightning_geometry.LEAST_GAP", 1e30)
    with pytest.raises(ArithmeticError, match="expected a gap of 1e\\+30"):
        measured_dimension((3, 2), (1,))


def test_the_experiment_prints_its_table_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--max-delta", "4", "--json", str(tmp_path / "dimensions.json")]) == 0
    rows = json.loads((tmp_path / "dimensions.json").read_text())["rows"]
    assert [row["expected"] for row in rows] == [23, 25, 38, 40]
    assert [row["measured"] for row in rows] == [23, 25, 38, 40]
    assert len(capsys.readouterr().out.splitlines()) == 5


@pytest.mark.slow
def test_the_experiment_agrees_with_the_formula_at_every_width() -> None:
    assert main(["--max-delta", "10"]) == 0
