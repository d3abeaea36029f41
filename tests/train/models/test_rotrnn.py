"""RotRNN and LRU are the recurrences of their papers, whatever form they are folded in."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, one_hot

from train.layers.linear_scan import associative_scan, linear_scan, rotate, then_rotate
from train.model import Model, State, Weights, scan_reference
from train.models.lru import Lru, LruConfig
from train.models.rotrnn import RotRnn, RotRnnConfig

V, D, L, H, N = 7, 12, 2, 3, 4
T, B = 37, 3  # T is no square, so the last chunk of a scan isn't whole


def make_rotrnn(seed: int = 0, **sizes: Any) -> RotRnn:
    given = {"width": D, "n": H * N, "heads": H, "layers": L} | sizes
    config = RotRnnConfig(input_size=V, output_size=V, **given)
    return RotRnn(config, torch.Generator().manual_seed(seed))


def make_lru(seed: int = 0, **sizes: Any) -> Lru:
    config = LruConfig(input_size=V, output_size=V, **{"width": D, "n": 5, "layers": L} | sizes)
    return Lru(config, torch.Generator().manual_seed(seed))


def characters(*shape: int) -> Tensor:
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(1))


def normal(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def warm_state(model: Model) -> State:
    state = {name: value.double() for name, value in model.init_state(B).items()}
    return {name: normal(*value.shape, seed=i) for i, (name, value) in enumerate(state.items())}


def distance(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max().detach())


def turns(model: RotRnn, layer: int) -> Tensor:
    """A = P Θ Pᵀ of a layer's heads, straight from the paper: (H, N, N)."""
    M, theta = model.M[layer], model.theta[layer]
    P = torch.linalg.matrix_exp(M - M.mT)
    heads = [
        torch.block_diag(  # type: ignore[no-untyped-call]
            *(torch.stack([t.cos(), -t.sin(), t.sin(), t.cos()]).view(2, 2) for t in angles)
        )
        for angles in theta
    ]
    A: Tensor = P @ torch.stack(heads) @ P.mT
    return A


# RotRNN against its paper


@torch.no_grad()
def test_rotations_are_orthogonal_with_determinant_one() -> None:
    model = make_rotrnn().double()
    for layer in range(L):
        for A in (model.rotations()[layer], turns(model, layer)):
            assert distance(A.mT @ A, torch.eye(N).double().expand(H, N, N)) <= 1e-7
            assert distance(torch.linalg.det(A), torch.ones(H)) <= 1e-7


def convolved(model: RotRnn, weights: Weights, state: State, xs: Tensor) -> Tensor:
    """The stack with K_k = ξ γ^k A^k B folded over time by FFT, from the parameters: (T, B, Y)."""
    P, gamma = model.rotations(), torch.exp(-torch.exp(model.gamma_log))
    h = model.encoder[xs] + model.encoder_bias
    for i in range(model.num_layers):
        u, b = layer_norm(h, (D,), model.norm[i]), model.B[i]
        A, g = turns(model, i), gamma[i, :, None, None]
        powers = torch.stack([g**k * torch.matrix_power(A, k) for k in range(len(xs) + 1)])
        xi = ((1.0 - gamma[i] ** 2) / b.square().sum((-2, -1)))[:, None, None].sqrt()
        kernel = torch.fft.rfft(powers[:-1] @ (xi * b), 2 * len(xs), dim=0)  # (F, H, N, D)
        folded = torch.einsum("fhnd,fbd->fbhn", kernel, torch.fft.rfft(u, 2 * len(xs), dim=0))
        start = (P[i] @ state["z"][:, i].reshape(B, H, N, 1)).squeeze(-1)  # x = P z
        x = torch.fft.irfft(folded, 2 * len(xs), dim=0)[: len(xs)]
        x = x + torch.einsum("thnm,bhm->tbhn", powers[1:], start)
        y = gelu(x.flatten(-2) @ model.C[i].mT + model.skip[i] * u)
        h = h + y * torch.sigmoid(y @ model.gate[i].mT + model.gate_bias[i])
    return model.readout(weights, {"h": h})


@torch.no_grad()
def test_scan_and_loop_and_convolution_are_one() -> None:
    model = make_rotrnn().double()
    weights, state, xs = model.weights(), warm_state(model), characters(T, B)
    after, ys = model.scan(weights, state, xs)
    looped, expected = scan_reference(model, weights, state, xs)
    assert distance(ys, expected) <= 1e-12
    assert max(distance(after[name], looped[name]) for name in after) <= 1e-12
    assert distance(convolved(model, weights, state, xs), expected) <= 1e-6


@pytest.mark.parametrize("make", [make_rotrnn, make_lru])
@pytest.mark.parametrize("length", [1, 2, T])
def test_gradients_of_the_scan_are_those_of_the_loop(make: Any, length: int) -> None:
    model = make().double()
    xs, wish = characters(length, B), normal(length, B, V)
    found = []
    for fold in (model.scan, lambda *given: scan_reference(model, *given)):
        state = {name: value.requires_grad_() for name, value in warm_state(model).items()}
        after, ys = fold(model.weights(), state, xs)
        loss = (ys * wish).sum() + after["z"].square().sum() + after["h"].sum()
        found.append(torch.autograd.grad(loss, [*model.parameters(), state["z"]]))
    for ours, expected in zip(*found, strict=True):
        assert distance(ours, expected) <= 1e-10 * (1.0 + float(expected.abs().max()))


@torch.no_grad()
def test_one_hot_vectors_are_characters() -> None:
    model = make_rotrnn().double()
    weights, state, xs = model.weights(), warm_state(model), characters(T, B)
    _, expected = model.scan(weights, state, xs)
    _, ys = model.scan(weights, state, one_hot(xs, V).double())
    assert distance(ys, expected) <= 1e-12


@torch.no_grad()
def test_decays_and_angles_start_in_their_ranges() -> None:
    sizes: dict[str, Any] = {
        "heads": 64,
        "n": 128,
        "gamma_min": 0.3,
        "gamma_max": 0.99,
        "max_phase": 0.5,
    }
    weights = make_rotrnn(**sizes).weights()
    for i in range(L):
        gamma, theta = weights[f"layers.{i}.decay"], weights[f"layers.{i}.angle"]
        assert 0.3 - 1e-6 <= float(gamma.min()) < 0.4 and 0.9 < float(gamma.max()) <= 0.99 + 1e-6
        assert 0.0 <= float(theta.min()) < 0.1 and 0.4 < float(theta.max()) <= 0.5


@torch.no_grad()
def test_the_state_of_white_inputs_has_the_norm_of_the_paper() -> None:
    # x_0 = 0 and ξ at every step: E|x_t|² = 1 - γ^(2t) after t inputs with E[u uᵀ] = I. Each |x_t|²
    # spreads by about its mean, so 4,000 streams know theirs to 2 %; 6 % are three such errors.
    gammas, streams, steps = torch.tensor([0.5, 0.9, 0.99]).double(), 4000, 48
    model = make_rotrnn(layers=1).double()
    model.gamma_log.copy_(torch.log(-torch.log(gammas)))
    weights = model.weights()
    theta, driven = (
        weights["layers.0.angle"],
        normal(steps, streams, D) @ weights["layers.0.input"].mT,
    )
    factor = torch.polar(gammas[:, None].expand_as(theta), theta).flatten()
    planes = torch.view_as_complex(driven.view(steps, streams, -1, 2))
    zs = linear_scan(factor, planes, torch.zeros_like(planes[0]))
    norms = zs.abs().square().view(steps, streams, H, N // 2).sum(-1).mean(1)  # (T, H)
    expected = 1.0 - gammas ** (2.0 * torch.arange(1, steps + 1)[:, None])
    assert float(((norms - expected) / expected).abs().max()) <= 0.06


@torch.no_grad()
def test_the_scale_of_B_changes_nothing() -> None:
    model = make_rotrnn().double()
    before = model.weights()
    model.B.mul_(7.5)
    after = model.weights()
    assert max(distance(before[name], after[name]) for name in before) <= 1e-12


@torch.no_grad()
def test_a_long_stream_stays_finite_and_near_its_exact_course() -> None:
    model, exact = make_rotrnn(gamma_max=0.9999), make_rotrnn(gamma_max=0.9999).double()
    weights, expected_weights = model.weights(), exact.weights()
    state, expected = model.init_state(1), exact.init_state(1)
    for xs in characters(10_000, 1).split(1000):  # type: ignore[no-untyped-call]
        state, ys = model.scan(weights, state, xs)
        expected, expected_ys = exact.scan(expected_weights, expected, xs)
        assert bool(ys.isfinite().all())
        assert distance(ys, expected_ys) <= 1e-3
    assert all(distance(state[name], expected[name]) <= 1e-3 for name in state)


@torch.no_grad()
def test_a_head_whose_input_is_zero_rests_and_the_others_go_on() -> None:
    model = make_rotrnn()
    weights = model.weights()
    heads = [t for t in model.targets() if ".heads." in t.name and t.weight.endswith("input")]
    assert len(heads) == L * H
    rows = [target.slice[0] for target in heads if target.slice and target.name[7] == "0"]
    assert rows == [(i * N, (i + 1) * N) for i in range(H)]
    target = next(target for target in heads if target.name == "layers.1.heads.2")
    edited = weights[target.weight].clone()
    assert target.slice is not None
    edited[slice(*target.slice[0])] = 0.0
    state, _ = model.scan(weights | {target.weight: edited}, model.init_state(B), characters(T, B))
    moved = state["z"].flatten(-2).view(B, L, H, N).abs().amax((0, -1)) > 0.0
    assert moved.tolist() == [[True, True, True], [True, True, False]]


def test_the_size_of_the_state_is_about_half_the_width_where_it_is_not_given() -> None:
    sizes = [make_rotrnn(n=0, width=width, heads=4).theta[0].numel() * 2 for width in (3, 16, 31)]
    assert sizes == [8, 8, 16]
    assert [len(make_lru(n=0, width=width).nu_log[0]) for width in (1, 16, 31)] == [1, 4, 7]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n": 10}, "n: found 10, expected a multiple of 6"),
        ({"layers": 0}, "layers: found 0, expected at least 1"),
        ({"heads": 0}, "heads: found 0, expected at least 1"),
        ({"gamma_min": 0.9, "gamma_max": 0.5}, "found 0.9 and 0.5, expected 0 < gamma_min <="),
        ({"gamma_max": 1.0}, "gamma_min, gamma_max: found 0.1 and 1.0"),
        ({"max_phase": 7.0}, "max_phase: found 7.0, expected more than 0 and at most 2π"),
    ],
)
def test_sizes_that_make_no_rotrnn_are_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_rotrnn(**sizes)


# LRU against its paper, and against RotRNN


@torch.no_grad()
def test_the_lru_is_the_complex_recurrence_of_its_paper() -> None:
    model = make_lru().double()
    weights, xs = model.weights(), characters(T, B)
    h = model.encoder[xs] + model.encoder_bias
    for i in range(L):
        lam = torch.exp(torch.complex(-model.nu_log[i].exp(), model.theta_log[i].exp()))
        b, c = torch.complex(*model.B[i].unbind(1)), torch.complex(*model.C[i].unbind(-1))
        u, numbers = layer_norm(h, (D,), model.norm[i]), torch.zeros(B, 5, dtype=torch.complex128)
        ys = []
        for driven in model.gamma_log[i].exp() * (u.to(b) @ b.mT):
            numbers = lam * numbers + driven
            ys.append((numbers @ c.mT).real)
        y = gelu(torch.stack(ys) + model.skip[i] * u)
        h = h + y * torch.sigmoid(y @ model.gate[i].mT + model.gate_bias[i])
    _, found = model.scan(weights, model.init_state(B), xs)
    assert distance(found, model.readout(weights, {"h": h})) <= 1e-12


@torch.no_grad()
def test_the_lru_starts_on_its_ring_with_its_normaliser() -> None:
    model = make_lru(n=200, r_min=0.4, r_max=0.9, max_phase=1.0)
    weights = model.weights()
    for i in range(L):
        modulus, angle = weights[f"layers.{i}.decay"], weights[f"layers.{i}.angle"]
        assert 0.4 - 1e-6 <= float(modulus.min()) < 0.5 and 0.8 < float(modulus.max()) <= 0.9 + 1e-6
        assert 0.0 < float(angle.min()) and 0.9 < float(angle.max()) <= 1.0 + 1e-6
        assert distance(model.gamma_log[i].exp(), torch.sqrt(1.0 - modulus**2)) <= 1e-5


@torch.no_grad()
def test_heads_of_size_two_are_an_lru() -> None:
    # Each plane stands for a conjugate pair, that Re[.] takes together. The normalisers differ, ξ a
    # head and √(1 - abs λ²) a number, so B takes ξ and the LRU's own is 1.
    rotrnn, lru = make_rotrnn(heads=5, n=10), make_lru(seed=1, n=5)
    shared = [name for name, _ in lru.named_parameters() if name in rotrnn.state_dict()]
    for name in set(shared) - {"B", "C", "gamma_log"}:
        lru.get_parameter(name).copy_(rotrnn.get_parameter(name))
    rotations = rotrnn.recurrences()
    lru.nu_log.copy_(rotrnn.gamma_log)
    lru.theta_log.copy_(rotrnn.theta.squeeze(-1).log())
    lru.gamma_log.zero_()
    lru.B.copy_(rotations["input"].view(L, 5, 2, D))
    lru.C.copy_(rotations["output"].view(L, D, 5, 2) * torch.tensor([1.0, -1.0]))
    xs = characters(200, B)
    _, found = lru.scan(lru.weights(), lru.init_state(B), xs)
    _, expected = rotrnn.scan(rotrnn.weights(), rotrnn.init_state(B), xs)
    assert distance(found, expected) <= 1e-5


def test_a_ring_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="r_min, r_max: found 0.99 and 0.5"):
        make_lru(r_min=0.99, r_max=0.5)


# Scans


def moves(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Decays, angles and drives that differ from time to time: (T, 3), (T, 3), (T, 3, 2)."""
    return torch.sigmoid(normal(length, 3)), normal(length, 3, seed=4), normal(length, 3, 2, seed=5)


def one_by_one(decay: Tensor, angle: Tensor, driven: Tensor) -> Tensor:
    zs = [torch.zeros_like(driven[0])]
    for gamma, theta, b in zip(decay, angle, driven, strict=True):
        zs.append(rotate(gamma, theta, zs[-1]) + b)
    return torch.stack(zs[1:])


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 16, 33])
def test_the_associative_scan_is_the_loop(length: int) -> None:
    given = [value.requires_grad_() for value in moves(length)]
    decay, angle, zs = associative_scan(then_rotate, tuple(given))
    expected = one_by_one(*given)
    assert distance(zs, expected) <= 1e-12
    assert distance(decay, given[0].cumprod(0)) <= 1e-12
    assert distance(angle, given[1].cumsum(0)) <= 1e-12
    wish = normal(length, 3, 2, seed=6)
    found = torch.autograd.grad((zs * wish).sum(), given, allow_unused=length == 1)
    looped = torch.autograd.grad((expected * wish).sum(), given)
    for ours, theirs in zip(found, looped, strict=True):
        assert distance(torch.zeros(1) if ours is None else ours, theirs) <= 1e-12


def test_the_law_of_the_scan_is_associative() -> None:
    a, b, c = (tuple(value[i : i + 1] for value in moves(3)) for i in range(3))
    left, right = then_rotate(then_rotate(a, b), c), then_rotate(a, then_rotate(b, c))
    assert all(distance(x, y) <= 1e-14 for x, y in zip(left, right, strict=True))


@pytest.mark.parametrize("length", [1, 2, 5, 16, 17])
def test_the_scan_in_chunks_is_the_loop_and_so_are_its_gradients(length: int) -> None:
    factor = torch.polar(torch.tensor([0.0, 0.5, 0.999]), torch.tensor([0.1, 2.0, 6.0])).to(
        torch.cdouble
    )
    driven = torch.view_as_complex(normal(length, 2, 3, 2))
    start = torch.view_as_complex(normal(2, 3, 2, seed=7))
    zs = [start]
    for b in driven:
        zs.append(factor * zs[-1] + b)
    given = [value.requires_grad_() for value in (factor, driven, start)]
    assert distance(linear_scan(*given), torch.stack(zs[1:])) <= 1e-12
    assert torch.autograd.gradcheck(linear_scan, given, fast_mode=True)


@torch.no_grad()
def test_scans_give_the_same_bits_again_and_keep_memory_apart() -> None:
    factor = torch.polar(torch.full((3,), 0.9), torch.arange(3.0))
    driven = torch.view_as_complex(normal(40, 2, 3, 2).float())
    before, start = driven.clone(), torch.zeros(2, 3, dtype=torch.cfloat)
    first = linear_scan(factor, driven, start)
    assert torch.equal(first, linear_scan(factor, driven, start))
    assert torch.equal(driven, before) and not start.any()
    assert math.isfinite(float(first.abs().sum()))
