"""The baselines: an LSTM that is torch's, a Transformer with a window, the tanh RNNs of a paper."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from train.model import Model, State, Weights, scan_reference
from train.models.lstm import GATES, Lstm, LstmConfig
from train.models.tanh_rnn import (
    TanhRnn,
    TanhRnnConfig,
    block_diagonal,
    eigenvalue_blocks,
    uniform_matrix,
)
from train.models.transformer import PIECE, Transformer, TransformerConfig

V, B = 11, 3


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def characters(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(V, shape, generator=generator(seed))


def distance(A: Tensor, B: Tensor) -> float:
    return float((A - B).abs().max().detach())


def lstm(**sizes: Any) -> Lstm:
    sizes = {"n": 10, "embedding": 6, **sizes}
    return Lstm(LstmConfig(input_size=V, output_size=V, **sizes), generator())


def transformer(**sizes: Any) -> Transformer:
    sizes = {"d": 16, "context": 5, **sizes}
    return Transformer(TransformerConfig(input_size=V, output_size=V, **sizes), generator())


def tanh_rnn(n: int, construction: str, seed: int = 0) -> TanhRnn:
    config = TanhRnnConfig(input_size=V, output_size=V, n=n, construction=construction)
    return TanhRnn(config, generator(seed))


def outputs(model: Model, xs: Tensor) -> Tensor:
    return model.scan(model.weights(), model.init_state(xs.shape[1]), xs)[1]


def assert_scan_is_loop(model: Model, weights: Weights, state: State, xs: Tensor) -> State:
    state, ys = model.scan(weights, start := state, xs)
    looped, expected = scan_reference(model, weights, start, xs)
    assert distance(ys, expected) <= 1e-5
    assert all(distance(state[name], looped[name]) <= 1e-5 for name in looped)
    return state


# LSTM


@pytest.mark.parametrize("layers", [1, 3])
@torch.no_grad()
def test_the_lstm_is_that_of_torch(layers: int) -> None:
    model, xs = lstm(layers=layers), characters(20, B)
    weights, theirs = model.weights(), nn.LSTM(6, 10, layers)
    for k in range(layers):
        getattr(theirs, f"weight_ih_l{k}").copy_(weights[f"layers.{k}.input"])
        getattr(theirs, f"weight_hh_l{k}").copy_(weights[f"layers.{k}.recurrent"])
        getattr(theirs, f"bias_ih_l{k}").copy_(weights[f"layers.{k}.bias"])
        getattr(theirs, f"bias_hh_l{k}").zero_()
    hs, (h, c) = theirs(weights["input"][xs])
    expected = hs @ weights["readout"].mT + weights["readout.bias"]
    for run in (model.scan, lambda *given: scan_reference(model, *given)):
        state, ys = run(weights, model.init_state(B), xs)
        assert distance(ys, expected) <= 1e-5
        for k in range(layers):
            assert distance(state[f"layers.{k}.h"], h[k]) <= 1e-5
            assert distance(state[f"layers.{k}.c"], c[k]) <= 1e-5


def test_the_lstm_scan_has_the_gradients_of_the_loop() -> None:
    model, xs, found = lstm(layers=2), characters(20, B), []
    for run in (model.scan, lambda *given: scan_reference(model, *given)):
        model.zero_grad()
        state, ys = run(model.weights(), model.init_state(B), xs)
        (ys.square().sum() + sum(s.sum() for s in state.values())).backward()  # type: ignore[no-untyped-call]
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(found[0]) == len(found[1]) == len(list(model.parameters()))
    for ours, expected in zip(*found, strict=True):
        assert distance(ours, expected) <= 1e-5 * (1.0 + float(expected.abs().max()))


@pytest.mark.parametrize("gate", GATES)
@torch.no_grad()
def test_a_slice_of_the_recurrent_matrix_drives_its_gate_alone(gate: str) -> None:
    model = lstm()
    target = next(t for t in model.targets() if t.name == f"layers.0.recurrent.{gate}")
    assert target.slice is not None
    (start, stop), columns = target.slice
    assert (stop - start, columns) == (10, (0, 10))
    weights, x = model.weights(), characters(B)
    state = {name: torch.randn(B, 10, generator=generator(1)) for name in model.init_state(B)}
    edited = weights[target.weight].clone()
    edited[start:stop] = 0.0
    after = model.update(weights | {target.weight: edited}, state, x)
    h, c = state["layers.0.h"], state["layers.0.c"]
    own = weights["input"][x] @ weights["layers.0.input"].mT + weights["layers.0.bias"]
    parts = dict(zip(GATES, (own + h @ weights["layers.0.recurrent"].mT).chunk(4, -1), strict=True))
    parts[gate] = own[:, start:stop]
    c = parts["forget"].sigmoid() * c + parts["input"].sigmoid() * parts["cell"].tanh()
    assert distance(after["layers.0.c"], c) <= 1e-6
    assert distance(after["layers.0.h"], parts["output"].sigmoid() * c.tanh()) <= 1e-6


@torch.no_grad()
def test_cells_can_remember_from_the_start() -> None:
    biases = lstm(layers=2, forget_bias=2.0).weights()["layers.1.bias"].chunk(4)
    for gate, bias in zip(GATES, biases, strict=True):
        assert torch.equal(bias, torch.full((10,), 2.0 if gate == "forget" else 0.0))


# Transformer


@pytest.mark.parametrize("context", [1, 5, 24])
@torch.no_grad()
def test_the_transformer_scan_is_the_loop_beyond_the_context(context: int) -> None:
    model = transformer(context=context)
    weights, state = model.weights(), model.init_state(B)
    for length in (1, 7, PIECE + 9, 3):
        state = assert_scan_is_loop(model, weights, state, characters(length, B, seed=length))


@torch.no_grad()
def test_later_characters_change_nothing_earlier() -> None:
    model, xs = transformer(), characters(30, B)
    for first in (1, 13, 29):
        changed = torch.cat([xs[:first], (xs[first:] + 1) % V])
        before, after = outputs(model, xs), outputs(model, changed)
        assert torch.equal(before[:first], after[:first])
        assert distance(before[first], after[first]) > 1e-3


@pytest.mark.parametrize("layers", [1, 2, 3])
@torch.no_grad()
def test_a_character_is_seen_through_the_windows_of_all_layers_and_no_further(layers: int) -> None:
    model, xs = transformer(layers=layers), characters(40, B)
    reach = layers * (model.config.context - 1)
    changed = torch.cat([xs[:10], (xs[10:11] + 1) % V, xs[11:]])
    moved = (outputs(model, xs) - outputs(model, changed)).abs().amax((1, 2))
    assert (moved[10 : 10 + reach + 1] > 1e-6).all()
    assert moved[10 + reach + 1 :].max() <= 1e-6


@torch.no_grad()
def test_outputs_know_the_lag_and_not_the_position() -> None:
    model, xs = transformer(), characters(30, B)
    reach = model.config.layers * (model.config.context - 1)
    long = outputs(model, torch.cat([characters(77, B, seed=1), xs]))
    assert distance(long[77 + reach :], outputs(model, xs)[reach:]) <= 1e-5


@torch.no_grad()
def test_the_order_of_the_characters_counts() -> None:
    model, xs = transformer(layers=1), characters(5, B)
    mixed = xs[[2, 0, 1, 3, 4]]
    assert distance(outputs(model, xs)[-1], outputs(model, mixed)[-1]) > 1e-3


@torch.no_grad()
def test_a_fresh_stream_looks_at_what_it_has_read_alone() -> None:
    model, xs = transformer(), characters(4, B)
    weights, fresh = model.weights(), model.init_state(B)
    noise = {name: torch.randn(s.shape, generator=generator(2)) for name, s in fresh.items()}
    _, expected = model.scan(weights, fresh, xs)
    _, ys = model.scan(weights, noise | {"seen": fresh["seen"]}, xs)
    assert torch.equal(ys, expected)


@torch.no_grad()
def test_the_state_of_the_transformer_is_a_bounded_window_of_float32() -> None:
    model = transformer()
    shapes = {name: value.shape for name, value in model.init_state(B).items()}
    for length in (1, 4, 9):
        state, _ = model.scan(model.weights(), model.init_state(B), characters(length, B))
        assert {name: value.shape for name, value in state.items()} == shapes
        assert all(value.dtype == torch.float32 for value in state.values())
        assert torch.equal(state["seen"].sum(1), torch.full((B,), float(min(length, 5))))


@pytest.mark.parametrize("head", range(4))
@torch.no_grad()
def test_a_head_that_is_zeroed_takes_nothing_of_its_values(head: int) -> None:
    model, xs = transformer(), characters(9, B)
    name = f"layers.0.attention.head.{head}"
    target = next(t for t in model.targets() if t.name == name)
    assert target.slice is not None
    (_, (start, stop)), weights = target.slice, model.weights()
    output, value = weights[target.weight].clone(), weights["layers.0.attention.value"].clone()
    output[:, start:stop], value[start:stop] = 0.0, 0.0
    edits = [{target.weight: output}, {"layers.0.attention.value": value}]
    first, second = (model.scan(weights | edit, model.init_state(B), xs)[1] for edit in edits)
    assert distance(first, second) <= 1e-6
    assert distance(first, outputs(model, xs)) > 1e-3


@pytest.mark.parametrize("make", [lstm, transformer, tanh_rnn])
def test_gradients_are_finite_far_from_the_start(make: Any) -> None:
    model = make() if make is not tanh_rnn else tanh_rnn(8, "cayley")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(30.0)
    outputs(model, characters(150, B)).logsumexp(-1).sum().backward()  # type: ignore[no-untyped-call]
    trained = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in trained)


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        (LstmConfig, {"n": 0}, "n: found 0, expected at least 1"),
        (LstmConfig, {"layers": 0}, "layers: found 0, expected at least 1"),
        (LstmConfig, {"forget_bias": 101.0}, "forget_bias: found 101.0, expected -100 to 100"),
        (LstmConfig, {"embedding": 0}, "embedding: found 0, expected at least 1"),
        (TransformerConfig, {"d": 60}, "d: found 60, expected a multiple of 8, twice the heads"),
        (TransformerConfig, {"heads": 0}, "heads: found 0, expected at least 1"),
        (TransformerConfig, {"heads": 64}, "heads: found 64, expected at most 28"),
        (TransformerConfig, {"context": 0}, "context: found 0, expected at least 1"),
        (TransformerConfig, {"feed_forward": 0.0}, "feed_forward: found 0.0, expected 1/d to 64"),
        (TanhRnnConfig, {"construction": "lu"}, "construction: found 'lu', expected one of ortho"),
        (TanhRnnConfig, {"construction": "normal", "n": 7}, "n: found 7, expected an even number"),
    ],
)
def test_sizes_that_make_no_model_are_refused(
    kind: Any, sizes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(input_size=V, output_size=V, **sizes)


# Tanh RNNs


def recurrent(n: int, construction: str, seed: int = 0) -> Tensor:
    return tanh_rnn(n, construction, seed).weights()["recurrent"].detach().double()


def test_an_orthogonal_recurrent_matrix_keeps_lengths() -> None:
    W = recurrent(20, "orthogonal")
    assert distance(W @ W.mT, torch.eye(20).double()) <= 1e-6


def test_a_dense_recurrent_matrix_is_uniform() -> None:
    W = recurrent(64, "dense") * 8.0
    assert 0.99 < float(W.abs().max()) <= 1.0
    assert abs(float(W.mean())) <= 0.05
    assert abs(float(W.square().mean()) - 1 / 3) <= 0.02


def test_a_normal_recurrent_matrix_commutes_with_its_transpose() -> None:
    W = recurrent(200, "normal")
    assert distance(W @ W.mT, W.mT @ W) <= 1e-5
    values = torch.linalg.eigvals(W)
    assert abs(float(values.abs().square().mean()) - 1 / 3) <= 0.06  # a² + b²
    assert int((values.imag.abs() > 1e-6).sum()) == 200


@pytest.mark.parametrize("n", [1, 2, 9, 16])
def test_blocks_have_the_eigenvalues_that_they_are_made_of(n: int) -> None:
    W = uniform_matrix(n, generator(n)).double()
    D = block_diagonal(eigenvalue_blocks(W))
    found, expected = (
        torch.stack(sorted(torch.linalg.eigvals(M), key=lambda z: (float(z.real), float(z.imag))))
        for M in (D, W)
    )
    assert float((found - expected).abs().max()) <= 1e-8
    assert distance(D @ D.mT, D.mT @ D) <= 1e-12


def test_a_cayley_matrix_stays_normal_with_its_spectrum_while_it_learns() -> None:
    model = tanh_rnn(12, "cayley")
    trained = [p for p in model.parameters() if p.requires_grad]
    xs, places = characters(9, B), []
    pairs, before = model.spectrum[1] != 0, model.spectrum.detach().clone()
    for _ in range(5):
        D = block_diagonal(model.spectrum).detach()
        W = model.weights()["recurrent"].detach().double()
        assert distance(W @ W.mT, W.mT @ W) <= 1e-5
        powers = [torch.linalg.matrix_power(M.double(), 3).trace() for M in (W, D)]
        assert abs(float(powers[0] - powers[1])) <= 1e-5
        assert abs(float(W.norm() - D.norm())) <= 1e-5
        places.append(W)
        outputs(model, xs).logsumexp(-1).sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in trained:
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad.sign())
    assert distance(places[0], places[-1]) > 0.1
    assert torch.equal(model.spectrum[1] != 0, pairs)  # a pair stays a pair, and is learned
    moved = (model.spectrum[1] - before[1]).detach().abs()
    assert float(moved[pairs].min()) > 0


def test_without_a_choice_the_recurrent_matrix_is_drawn_as_ever() -> None:
    config, draws = TanhRnnConfig(input_size=V, output_size=V, n=6), generator(5)
    torch.randn(V, 6, generator=draws)
    expected = torch.linalg.qr(torch.randn(6, 6, generator=draws))[0]
    assert torch.equal(TanhRnn(config, generator(5)).recurrent.detach(), expected)


@pytest.mark.parametrize("construction", ["orthogonal", "dense", "normal", "cayley"])
def test_constructions_have_shapes_where_there_is_no_memory(construction: str) -> None:
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in tanh_on_meta(construction).named_parameters()}
    real = {name: p.shape for name, p in tanh_rnn(8, construction).named_parameters()}
    assert shapes == real


def tanh_on_meta(construction: str) -> TanhRnn:
    return TanhRnn(TanhRnnConfig(input_size=V, output_size=V, n=8, construction=construction))
