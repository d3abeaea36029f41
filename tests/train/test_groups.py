"""All groups: projection, coordinates, exponential, membership, samples and drift."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from train.groups.by_name import group_names, make_group
from train.groups.group import Group
from train.groups.matrix_exp import matrix_exp, matrix_exp_reference
from train.groups.orthogonal import SO, O
from train.groups.torus import DiagonalTorus, Torus
from train.groups.unitary import SU, U, complex_form, real_form

SIZES = {
    "so": (2, 3, 5, 8),
    "o": (2, 5),
    "u": (1, 2, 5),
    "su": (2, 3, 5),
    "torus": (1, 2, 5),
    "diagonal": (1, 2, 5),
}
DIMS = {
    "so": lambda d: d * (d - 1) // 2,
    "o": lambda d: d * (d - 1) // 2,
    "u": lambda d: d * d,
    "su": lambda d: d * d - 1,
    "torus": lambda d: d,
    "diagonal": lambda d: d,
}
GROUPS = [
    pytest.param(make_group(name, d), id=f"{name}-{d}") for name, ds in SIZES.items() for d in ds
]
EACH = pytest.mark.parametrize("group", GROUPS)
NAMED = pytest.mark.parametrize("name", group_names())
COMPLEX = pytest.mark.parametrize("group", [U(1), U(2), U(5), SU(2), SU(5)])
SEEDS = st.integers(0, 2**32)
DOUBLE = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=DOUBLE)


def matrices(group: Group, *batch: int, seed: int = 0) -> Tensor:
    """Any real n×n matrices, of no structure."""
    return normal(*batch, group.size, group.size, seed=seed)


def tangents(group: Group, norm: float, *batch: int, seed: int = 0) -> Tensor:
    u = normal(*batch, group.dim, seed=seed)
    return group.tangent(u / u.norm(dim=-1, keepdim=True) * norm)


def elements(group: Group, num_samples: int, seed: int = 0) -> Tensor:
    return group.sample(num_samples, generator(seed))


def inner(group: Group, A: Tensor, B: Tensor) -> Tensor:
    """<A, B> = Re tr(A* B)."""
    return group.trace_scale * (A * B).sum((-2, -1))


def close(A: Tensor, B: Tensor, tolerance: float = 1e-12) -> bool:
    return torch.allclose(A, B, rtol=0.0, atol=tolerance)


@NAMED
def test_a_name_makes_a_group_of_its_sizes(name: str) -> None:
    for d in SIZES[name]:
        group = make_group(name, d)
        real = name in ("so", "o")
        assert (group.d, group.size, group.dim) == (d, d if real else 2 * d, DIMS[name](d))
        assert group.trace_scale == (1.0 if real or name == "torus" else 0.5)
        assert group.ambient(torch.zeros(3, group.ambient_dim)).shape == (3, *[group.size] * 2)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match="found 'sp', expected one of so, o, u, su, torus, diag"):
        make_group("sp", 3)


@NAMED
def test_a_size_that_is_too_small_is_refused(name: str) -> None:
    least = SIZES[name][0]
    expected = rf"\(d\): found d = {least - 1}, expected at least {least}"
    with pytest.raises(ValueError, match=type(make_group(name, least)).__name__ + expected):
        make_group(name, least - 1)


@EACH
def test_ambient_matrices_are_linear_and_reach_the_whole_algebra(group: Group) -> None:
    a, b = normal(4, group.ambient_dim, seed=1), normal(4, group.ambient_dim, seed=2)
    assert close(group.ambient(2.0 * a - b), 2.0 * group.ambient(a) - group.ambient(b))
    basis = group.ambient(torch.eye(group.ambient_dim, dtype=DOUBLE))
    assert torch.linalg.matrix_rank(basis.flatten(-2)) == group.ambient_dim
    assert torch.linalg.matrix_rank(group.coordinates(basis)) == group.dim


@EACH
def test_projection_lands_in_the_algebra_and_is_idempotent(group: Group) -> None:
    X = group.project(matrices(group, 4))
    assert torch.equal(X, -X.mT)
    assert close(group.project(X), X)


@EACH
def test_projection_is_self_adjoint(group: Group) -> None:
    A, B = matrices(group, 4, seed=1), matrices(group, 4, seed=2)
    assert close(inner(group, group.project(A), B), inner(group, A, group.project(B)))


@EACH
def test_projection_is_the_nearest_tangent(group: Group) -> None:
    A = matrices(group)
    nearest = torch.linalg.matrix_norm(A - group.project(A))
    others = group.tangent(normal(50, group.dim))
    assert bool((torch.linalg.matrix_norm(A - group.project(A) - others) >= nearest).all())


@settings(max_examples=40)
@given(st.sampled_from(group_names()), st.integers(2, 9), SEEDS)
def test_coordinates_and_tangents_are_inverse_and_isometric(name: str, d: int, seed: int) -> None:
    group = make_group(name, d)
    A, B = matrices(group, 3, seed=seed), matrices(group, 3, seed=seed + 1)
    u, v = group.coordinates(A), group.coordinates(B)
    assert u.shape == (3, group.dim) and u.dtype == A.dtype
    assert close(group.tangent(u), group.project(A))
    assert close(group.coordinates(group.tangent(u)), u)
    assert close((u * v).sum(-1), inner(group, group.project(A), group.project(B)), 1e-10)


def test_coordinates_run_over_the_upper_triangle_row_by_row() -> None:
    S = SO(3).tangent(torch.tensor([1.0, 2.0, 3.0], dtype=DOUBLE)) * math.sqrt(2.0)
    expected = [[0.0, 1.0, 2.0], [-1.0, 0.0, 3.0], [-2.0, -3.0, 0.0]]
    assert close(S, torch.tensor(expected, dtype=DOUBLE))


def test_the_bases_are_those_of_the_docstrings() -> None:
    r, i = math.sqrt(0.5), 1j
    skew, symmetric = [[0, r], [-r, 0]], [[0, r * i], [r * i, 0]]
    u = [skew, symmetric, [[i, 0], [0, 0]], [[0, 0], [0, i]]]
    su = [skew, symmetric, [[r * i, 0], [0, -r * i]]]
    for group, basis in ((U(2), u), (SU(2), su)):
        X = group.tangent(torch.eye(group.dim, dtype=DOUBLE))
        assert close(complex_form(X), torch.tensor(basis, dtype=torch.complex128))
    last = complex_form(SU(3).tangent(torch.eye(8, dtype=DOUBLE)[-1])).imag * math.sqrt(6.0)
    assert close(last, torch.diag(torch.tensor([1.0, 1.0, -2.0], dtype=DOUBLE)))
    X = Torus(2).tangent(torch.eye(2, dtype=DOUBLE)[1])
    assert close(X[2:, 2:], -torch.tensor(skew, dtype=DOUBLE)) and X.count_nonzero() == 2
    X = DiagonalTorus(2).tangent(torch.eye(2, dtype=DOUBLE)[1])
    assert float(X[3, 1]) == 1.0 == -float(X[1, 3]) and X.count_nonzero() == 2


@EACH
@pytest.mark.parametrize("norm", [0.1, 1.0, 10.0])
def test_the_exponential_of_a_tangent_is_in_the_group(group: Group, norm: float) -> None:
    X = tangents(group, norm, 2, 3)
    assert group.contains(group.exp(X), 1e-6)[0]
    inside, error = group.contains(group.exp(X.float()), 1e-5)
    assert inside and error <= 1e-5
    assert close(group.exp(X), matrix_exp_reference(X), 1e-6)


@settings(max_examples=40)
@given(st.sampled_from(group_names()), st.integers(2, 8), st.floats(0.01, 10.0), SEEDS)
def test_the_exponential_of_minus_x_undoes(name: str, d: int, norm: float, seed: int) -> None:
    group = make_group(name, d)
    X = tangents(group, norm, 2, seed=seed)
    I = group.identity().double().expand_as(X)  # noqa: E741
    assert close(group.exp(X) @ group.exp(-X), I, 1e-6)
    assert close(group.exp(-X), group.inverse(group.exp(X)), 1e-6)


@EACH
def test_the_identity_is_a_unit(group: Group) -> None:
    H = elements(group, 4)
    assert torch.equal(group.identity() @ H, H)
    assert group.contains(group.identity(), 0.0) == (True, 0.0)
    assert torch.equal(group.exp(torch.zeros(group.size, group.size)), group.identity())


@EACH
def test_the_inverse_undoes_and_products_stay(group: Group) -> None:
    G, H = elements(group, 4), elements(group, 4, seed=1)
    assert close(group.inverse(H) @ H, group.identity().expand_as(H), 1e-6)
    assert group.contains(group.inverse(H), 1e-5)[0]
    assert group.contains(G @ H, 1e-5)[0]


@EACH
def test_the_gradient_of_a_similarity_is_the_projection(group: Group) -> None:
    H, M = elements(group, 3).double(), matrices(group, 3, seed=1)
    X = tangents(group, 1.0, 3, seed=2)
    size = torch.zeros(3, 1, 1, dtype=DOUBLE, requires_grad=True)
    (slope,) = torch.autograd.grad(inner(group, H @ group.exp(size * X), M).sum(), size)
    assert close(slope.flatten(), inner(group, X, group.project(H.mT @ M)), 1e-7)


@COMPLEX
def test_the_real_form_turns_complex_products_into_products(group: Group) -> None:
    d = group.d
    A, B = torch.complex(*normal(2, 3, d, d)), torch.complex(*normal(2, 3, d, d, seed=1))
    assert close(real_form(A @ B), real_form(A) @ real_form(B))
    assert torch.equal(real_form(A.mH), real_form(A).mT)
    assert torch.equal(complex_form(real_form(A)), A)
    trace = (A.mH @ B).diagonal(dim1=-2, dim2=-1).sum(-1).real
    assert close(inner(group, real_form(A), real_form(B)), trace)
    S = (A - A.mH) / 2
    if isinstance(group, SU):
        S = S - torch.eye(d) * S.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    assert close(group.project(real_form(A)), real_form(S))
    assert close(group.exp(real_form(S)), real_form(torch.linalg.matrix_exp(S)), 1e-6)
    a = torch.stack([A.real, A.imag], dim=1).flatten(1)
    assert torch.equal(group.ambient(a), real_form(A))


@pytest.mark.parametrize("group", [Torus(1), Torus(4), DiagonalTorus(1), DiagonalTorus(4)])
def test_planes_turn_like_the_larger_group(group: Group) -> None:
    X = tangents(group, 5.0, 3)
    assert close(group.exp(X), matrix_exp(X), 1e-7)
    larger: Group = U(group.d) if isinstance(group, DiagonalTorus) else SO(group.size)
    assert close(larger.project(X), X)
    assert larger.contains(elements(group, 5), 1e-5)[0]
    assert close(group.exp(1e4 * X), matrix_exp_reference(1e4 * X), 1e-9)  # any angle


@EACH
def test_membership_reports_the_error_that_it_measured(group: Group) -> None:
    H = elements(group, 3).double()
    inside, error = group.contains(1.01 * H)
    assert not inside
    assert math.isclose(error, 1.01**2 - 1.0, rel_tol=1e-3)
    assert group.contains(1.01 * H, tolerance=0.1) == (True, error)
    off = torch.zeros_like(H)
    off[1, 0, 0] = 1e-3
    inside, error = group.contains(H @ (group.identity() + off))  # one matrix is enough
    assert not inside
    assert 0.9e-3 <= error <= 2.1e-3


@pytest.mark.parametrize("group", [U(2), SU(2), Torus(2), DiagonalTorus(2)])
def test_orthogonal_matrices_of_another_structure_are_not_in_the_group(group: Group) -> None:
    angle = 1e-3
    X = torch.zeros(4, 4, dtype=DOUBLE)
    X[0, 3], X[3, 0] = -angle, angle
    inside, error = group.contains(matrix_exp(X))
    assert not inside and 0.49 * angle <= error <= 1.01 * angle
    assert SO(4).contains(matrix_exp(X), 1e-6)[0]


def test_a_phase_of_the_determinant_is_not_in_su() -> None:
    group, H = SU(3), elements(SU(3), 4)
    X = DiagonalTorus(3).tangent(torch.tensor([1e-3, 0.0, 0.0], dtype=DOUBLE))
    turned = H.double() @ DiagonalTorus(3).exp(X)
    inside, error = group.contains(turned)
    assert not inside and math.isclose(error, 1e-3, rel_tol=1e-3)
    assert U(3).contains(turned, 1e-6)[0]
    assert math.isclose(group.contains(-H)[1], math.pi, rel_tol=1e-6)  # det -I = -1


@pytest.mark.parametrize("d", SIZES["so"])
def test_reflections_are_in_o_but_not_in_so(d: int) -> None:
    H = elements(SO(d), 3)
    H[0, :, 0] *= -1.0
    inside, error = SO(d).contains(H)
    assert not inside and error <= 1e-5  # orthogonal, but of determinant -1
    assert O(d).contains(H) == (True, error)


@EACH
def test_components_are_reached_in_turn(group: Group) -> None:
    fixed = group.components(5)
    assert fixed.shape == (5, group.size, group.size)
    assert group.contains(fixed, 0.0) == (True, 0.0)
    dets = torch.linalg.det(fixed).tolist()
    assert dets == ([1.0, -1.0] * 3)[:5] if isinstance(group, O) else [1.0] * 5
    assert torch.equal(fixed[0::2], group.identity().expand(3, -1, -1))
    assert torch.equal(group.components(0), fixed[:0])


@EACH
def test_nan_is_not_in_the_group(group: Group) -> None:
    H = elements(group, 3)
    H[1] = math.nan
    assert not group.contains(H)[0]


def gap(H: Tensor) -> Tensor:
    """‖HᵀH - I‖ in the spectral norm."""
    size: Tensor = torch.linalg.matrix_norm(H.mT @ H - torch.eye(H.shape[-1]).to(H), 2)
    return size


@EACH
def test_a_correction_squares_the_distance(group: Group) -> None:
    H = elements(group, 20).double()
    H = group.correct(group.correct(H))
    for size in (0.1, 0.01, 0.001):
        off = group.ambient(normal(20, group.ambient_dim))
        off = H @ (group.identity() + size * off / torch.linalg.matrix_norm(off)[:, None, None])
        before, after = gap(off), gap(group.correct(off))
        # eigenvalues 1 + x of HᵀH become 1 - (3x² - x³) / 4
        assert bool((after <= before**2 + 1e-14).all())


@EACH
def test_a_correction_leaves_the_group_where_it_is(group: Group) -> None:
    H = elements(group, 20).double()
    H = group.correct(group.correct(H))  # to float64 accuracy first
    assert close(group.correct(H), H, 1e-14)


@pytest.mark.parametrize("group", [U(3), SU(3), Torus(3), DiagonalTorus(3)])
def test_a_correction_restores_the_structure(group: Group) -> None:
    H = elements(group, 20).double() + 1e-5 * matrices(group, 20)
    assert group.contains(H)[1] >= 1e-5
    corrected = group.correct(group.correct(H))
    kept = U(3) if isinstance(group, SU) else group  # the phase of det stays as it is
    assert kept.contains(corrected, 1e-9)[0]
    assert close(corrected, H, 1e-4)


@EACH
def test_samples_are_in_the_group_and_repeat_with_their_generator(group: Group) -> None:
    H = elements(group, 100)
    inside, error = group.contains(H, 1e-5)
    assert inside and error <= 1e-5
    assert H.dtype == torch.get_default_dtype()
    assert torch.equal(H, elements(group, 100))
    assert not torch.equal(H, elements(group, 100, seed=1))


def second_moment(group: Group) -> float:
    """E (Re tr H)² under Haar measure."""
    match group:
        case Torus():
            return 2.0 * group.d
        case DiagonalTorus():
            return group.d / 2.0
        case U():
            return 0.5
        case SU():
            return 1.0 if group.d == 2 else 0.5
    return 2.0 if isinstance(group, SO) and group.d == 2 else 1.0


@EACH
def test_samples_are_spread_as_haar_measure_asks(group: Group) -> None:
    num_samples = 4000
    five_sigma = 5.0 / math.sqrt(num_samples)
    moment = second_moment(group)

    def traces(H: Tensor) -> Tensor:
        return group.trace_scale * H.diagonal(dim1=-2, dim2=-1).sum(-1)

    H = elements(group, num_samples)
    assert abs(float(traces(H).mean())) <= five_sigma * math.sqrt(moment)
    assert abs(float(traces(H).square().mean()) - moment) <= 3.0 * five_sigma * moment
    assert float(H.mean(0).abs().max()) <= five_sigma
    # turned by a fixed element, the distribution is the same
    turned = traces(elements(group, 1, seed=7) @ H)
    assert abs(float(turned.mean())) <= five_sigma * math.sqrt(moment)
    assert abs(float(turned.square().mean()) - moment) <= 3.0 * five_sigma * moment
    if isinstance(group, O):
        assert abs(float(torch.linalg.det(H).mean())) <= five_sigma


# Largest error of 4 chains over 10,000 float32 steps with |X| = 0.5 at d = 8, as measured. It grows
# with the number of steps; for so(2), where all steps round alike, it was 3.3e-4.
DRIFT = {"so": 6.2e-5, "o": 6.2e-5, "u": 6.7e-5, "su": 6.5e-5, "torus": 4.8e-5, "diagonal": 1.9e-5}
# The same with a correction every 16 steps. For su it is the phase of det, which wanders on.
CORRECTED = {
    "so": 1.0e-6,
    "o": 7.7e-7,
    "u": 8.3e-7,
    "su": 7.2e-6,
    "torus": 7.2e-7,
    "diagonal": 6.0e-7,
}


@NAMED
def test_ten_thousand_steps_drift_little_and_corrections_end_that(name: str) -> None:
    group, chains, steps = make_group(name, 8), 4, 10_000
    H = kept = elements(group, chains)
    moves = group.exp(tangents(group, 0.5, steps, chains).float())
    drift = error = 0.0
    for position in range(steps):
        H, kept = H @ moves[position], kept @ moves[position]
        if position % 16 == 0:
            kept = group.correct(kept)
        if position % 500 == 499:
            drift, error = max(drift, group.contains(H)[1]), max(error, group.contains(kept)[1])
    assert drift <= 3.0 * DRIFT[name]
    assert error <= 3.0 * CORRECTED[name]


def test_two_thousand_steps_with_corrections_stay_on_the_group() -> None:
    group, random = SO(16), generator()
    H, worst = group.sample(1, random), 0.0
    for position in range(2000):
        if position % 16 == 0:
            H = group.correct(H)
        u = torch.randn(1, group.dim, generator=random) * 0.2
        H = H @ group.exp(group.tangent(u))
        worst = max(worst, group.contains(H)[1])
    assert worst < 1e-5


@EACH
def test_no_method_changes_the_precision(group: Group) -> None:
    H = elements(group, 3)
    for dtype in (torch.float32, DOUBLE):
        A = group.ambient(normal(3, group.ambient_dim).to(dtype))
        u = group.coordinates(A)
        X = group.tangent(u)
        made = [A, u, X, group.project(A), group.exp(X), group.correct(H.to(dtype))]
        assert {M.dtype for M in made} == {dtype}


@NAMED
def test_shapes_can_be_had_without_numbers(name: str) -> None:
    with torch.device("meta"):
        group = make_group(name, 4)
        A = group.ambient(torch.zeros(3, group.ambient_dim))
        H = group.correct(group.tangent(group.coordinates(A)))
    assert H.is_meta and H.shape == (3, group.size, group.size)
    assert group.contains(group.exp(tangents(group, 1.0)), 1e-6)[0]  # the same group, in earnest
