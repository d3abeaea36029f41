"""The group SO(d): projection, coordinates, exponential, membership, samples and drift."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from train.groups import SO

SIZES = [2, 3, 5, 8]


def ambient(d: int, *batch: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*batch, d, d, generator=generator, dtype=torch.float64)


def rotations(d: int, num_samples: int, seed: int = 0) -> Tensor:
    return SO(d).sample(num_samples, torch.Generator().manual_seed(seed))


def inner(A: Tensor, B: Tensor) -> Tensor:
    return (A * B).sum((-2, -1))


def close(A: Tensor, B: Tensor, tolerance: float = 1e-12) -> bool:
    return torch.allclose(A, B, rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("d", SIZES)
def test_projection_lands_in_the_algebra_and_is_idempotent(d: int) -> None:
    X = SO(d).project(ambient(d, 4))
    assert torch.equal(X, -X.mT)
    assert torch.equal(SO(d).project(X), X)


@pytest.mark.parametrize("d", SIZES)
def test_projection_is_self_adjoint(d: int) -> None:
    A, B, project = ambient(d, 4, seed=1), ambient(d, 4, seed=2), SO(d).project
    assert close(inner(project(A), B), inner(A, project(B)))


def test_projection_is_the_nearest_tangent() -> None:
    A, group = ambient(5), SO(5)
    nearest = torch.linalg.matrix_norm(A - group.project(A))
    others = group.tangent(torch.randn(50, group.dim, dtype=torch.float64))
    assert bool((torch.linalg.matrix_norm(A - group.project(A) - others) >= nearest).all())


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 12), st.integers(0, 2**32))
def test_coordinates_and_tangents_are_inverse_and_isometric(d: int, seed: int) -> None:
    group, A, B = SO(d), ambient(d, 3, seed=seed), ambient(d, 3, seed=seed + 1)
    u, v = group.coordinates(A), group.coordinates(B)
    assert u.shape == (3, group.dim) == (3, d * (d - 1) // 2)
    assert close(group.tangent(u), group.project(A))
    assert close(group.coordinates(group.tangent(u)), u)
    assert close((u * v).sum(-1), inner(group.project(A), group.project(B)), 1e-10)


def test_coordinates_run_over_the_upper_triangle_row_by_row() -> None:
    S = SO(3).tangent(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)) * math.sqrt(2.0)
    expected = [[0.0, 1.0, 2.0], [-1.0, 0.0, 3.0], [-2.0, -3.0, 0.0]]
    assert close(S, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_the_exponential_of_a_tangent_is_in_the_group(d: int, scale: float) -> None:
    group = SO(d)
    X = group.project(ambient(d, 2, 3)).float() * scale
    inside, error = group.contains(group.exp(X), 1e-5)
    assert inside and error <= 1e-5


@pytest.mark.parametrize("d", SIZES)
def test_the_identity_is_a_unit(d: int) -> None:
    group, H = SO(d), rotations(d, 4)
    assert torch.equal(group.identity() @ H, H)
    assert group.contains(group.identity(), 0.0) == (True, 0.0)
    assert torch.equal(group.exp(torch.zeros(d, d)), group.identity())


@pytest.mark.parametrize("d", SIZES)
def test_the_inverse_undoes(d: int) -> None:
    group, H = SO(d), rotations(d, 4)
    assert close(group.inverse(H) @ H, group.identity().expand_as(H), 1e-6)
    X = group.project(ambient(d, 4)).float()
    assert close(group.exp(-X), group.inverse(group.exp(X)), 1e-6)


def test_membership_reports_the_error_that_it_measured() -> None:
    H = rotations(4, 3).double() * 1.01
    inside, error = SO(4).contains(H)
    assert not inside
    assert math.isclose(error, 1.01**2 - 1.0, rel_tol=1e-3)
    assert SO(4).contains(H, tolerance=0.1) == (True, error)


def test_one_matrix_outside_is_enough() -> None:
    H = rotations(4, 3)
    H[1] *= 2.0
    inside, error = SO(4).contains(H)
    assert not inside and math.isclose(error, 3.0, rel_tol=1e-5)


@pytest.mark.parametrize("d", SIZES)
def test_reflections_are_not_in_the_group(d: int) -> None:
    H = rotations(d, 3)
    H[0, :, 0] *= -1.0
    inside, error = SO(d).contains(H)
    assert not inside and error <= 1e-5  # orthogonal, but of determinant -1


def test_nan_is_not_in_the_group() -> None:
    assert not SO(3).contains(torch.full((3, 3), math.nan))[0]


def test_a_correction_squares_the_distance() -> None:
    group, H = SO(6), rotations(6, 20).double()
    for size in (0.1, 0.01, 0.001):
        off = H + size * ambient(6, 20) / 6.0
        before, after = gap(off), gap(group.correct(off))
        # eigenvalues 1 + x of HᵀH become 1 - (3x² - x³) / 4
        assert bool((after <= before**2).all())


def gap(H: Tensor) -> Tensor:
    """‖HᵀH - I‖ in the spectral norm."""
    size: Tensor = torch.linalg.matrix_norm(H.mT @ H - torch.eye(H.shape[-1]).to(H), 2)
    return size


def test_a_correction_leaves_the_group_where_it_is() -> None:
    H = rotations(6, 20).double()
    H = SO(6).correct(SO(6).correct(H))  # to float64 accuracy first
    assert close(SO(6).correct(H), H, 1e-14)


@pytest.mark.parametrize("d", SIZES)
def test_samples_are_in_the_group_and_repeat_with_their_generator(d: int) -> None:
    H = rotations(d, 100)
    inside, error = SO(d).contains(H, 1e-5)
    assert inside and error <= 1e-5
    assert torch.equal(H, rotations(d, 100))
    assert not torch.equal(H, rotations(d, 100, seed=1))


@pytest.mark.parametrize("d", SIZES)
def test_samples_are_spread_as_haar_measure_asks(d: int) -> None:
    num_samples = 4000
    H = rotations(d, num_samples)
    five_sigma = 5.0 / math.sqrt(num_samples)
    traces = H.diagonal(dim1=-2, dim2=-1).sum(-1)
    second_moment = 2.0 if d == 2 else 1.0
    assert abs(float(traces.mean())) <= five_sigma * math.sqrt(second_moment)
    assert abs(float(traces.square().mean()) - second_moment) <= 3.0 * five_sigma
    assert float(H.mean(0).abs().max()) <= five_sigma
    # turned by a fixed element, the distribution is the same
    turned = (rotations(d, 1, seed=7) @ H).diagonal(dim1=-2, dim2=-1).sum(-1)
    assert abs(float(turned.mean())) <= five_sigma * math.sqrt(second_moment)


def test_two_thousand_steps_with_corrections_stay_on_the_group() -> None:
    group, generator = SO(16), torch.Generator().manual_seed(0)
    H, worst = group.sample(1, generator), 0.0
    for position in range(2000):
        if position % 16 == 0:
            H = group.correct(H)
        u = torch.randn(1, group.dim, generator=generator) * 0.2
        H = H @ group.exp(group.tangent(u))
        worst = max(worst, group.contains(H)[1])
    assert worst < 1e-5


def test_a_matrix_of_one_number_has_no_rotations() -> None:
    with pytest.raises(ValueError, match=r"SO\(d\): found d = 1, expected at least 2"):
        SO(1)
