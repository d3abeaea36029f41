"""The exponential of skew-symmetric matrices in training: gradients, batches, squarings.

That it is the exponential is tested in `tests/whole/test_exponential.py`.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from train.groups.matrix_exp import (
    ANGLE,
    MAX_SQUARINGS,
    angle_bound,
    coefficients,
    matrix_exp,
    matrix_exp_reference,
    num_squarings,
    observed_angles,
)


def skew(d: int, norm: float, *batch: int, seed: int = 0) -> Tensor:
    """Random skew-symmetric matrices of that Frobenius norm, float64."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(*batch, d, d, generator=generator, dtype=torch.float64)
    S = A - A.mT
    size: Tensor = torch.linalg.matrix_norm(S)
    return S / size[..., None, None] * norm


def distance(A: Tensor, B: Tensor) -> float:
    return float((A.double() - B.double()).abs().max())


def orthogonality_error(H: Tensor) -> float:
    return distance(H.mT @ H, torch.eye(H.shape[-1]).expand_as(H))


def test_small_tangents_keep_their_digits() -> None:
    S = skew(6, 1e-6).float()
    assert distance(matrix_exp(S) - torch.eye(6), S) <= 1e-7


def test_the_first_dimensions_are_batch_dimensions() -> None:
    S = skew(4, 1.0, 2, 3).float()
    E = matrix_exp(S)
    assert E.shape == (2, 3, 4, 4)
    assert all(distance(E[i, j], matrix_exp(S[i, j])) <= 1e-6 for i in range(2) for j in range(3))


def test_an_empty_batch_stays_empty() -> None:
    assert matrix_exp(torch.zeros(0, 5, 5)).shape == (0, 5, 5)


@pytest.mark.parametrize("d", [2, 8, 32])
@pytest.mark.parametrize("norm", [30.0, 100.0])
def test_big_tangents_stay_orthogonal(d: int, norm: float) -> None:
    assert orthogonality_error(matrix_exp(skew(d, norm, 8).float())) <= 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_opposite_tangent_gives_the_inverse(dtype: torch.dtype) -> None:
    S = skew(7, 4.0, 5).to(dtype)
    assert distance(matrix_exp(-S), matrix_exp(S).mT) <= 1e-6


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_gives_nan_and_leaves_its_batch_mates_alone(bad: float) -> None:
    S = skew(6, 8.0, 3).float()
    alone = matrix_exp(S)
    S[1, 0, 1], S[1, 1, 0] = bad, -bad
    E = matrix_exp(S)
    assert E[1].isnan().any()
    assert distance(E[[0, 2]], alone[[0, 2]]) <= 1e-6
    assert matrix_exp(S[1]).isnan().any()


def test_gradients_are_those_of_the_map_itself() -> None:
    def from_ambient(A: Tensor) -> Tensor:
        return matrix_exp(A - A.mT)

    for norm in (0.3, 3.0):  # without and with squarings
        A = skew(4, norm, 2).triu().requires_grad_()
        assert torch.autograd.gradcheck(from_ambient, (A,))


def test_gradients_equal_those_of_the_reference() -> None:
    A = skew(8, 3.0, 2).triu().requires_grad_()
    probe = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = [
        torch.autograd.grad((function(A - A.mT) * probe).sum(), A)[0]
        for function in (matrix_exp, matrix_exp_reference)
    ]
    assert distance(*gradients) <= 1e-6


def test_the_polynomial_is_right_up_to_its_angle() -> None:
    x = np.linspace(-ANGLE, ANGLE, 10_001)
    value = sum(c * (1j * x) ** k for k, c in enumerate(coefficients()))
    assert np.abs(value - np.exp(1j * x)).max() < 1e-8


@given(st.floats(0.0, ANGLE * 2.0**MAX_SQUARINGS))
def test_squarings_are_the_least_that_fit(angle: float) -> None:
    s = num_squarings(angle)
    assert angle / 2.0**s <= ANGLE * (1.0 + 1e-12)
    assert s == 0 or angle / 2.0 ** (s - 1) > ANGLE * (1.0 - 1e-12)


@pytest.mark.parametrize("angle", [math.inf, math.nan])
def test_an_angle_that_is_not_finite_needs_no_squarings(angle: float) -> None:
    assert num_squarings(angle) == 0


def test_squarings_are_bounded() -> None:
    assert num_squarings(1e300) == MAX_SQUARINGS


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 16), st.floats(0.01, 100.0), st.integers(0, 2**32))
def test_the_bound_is_at_least_every_plane_angle(d: int, norm: float, seed: int) -> None:
    S = skew(d, norm, 3, seed=seed)
    angles = torch.linalg.eigvals(S).imag
    assert angle_bound(S) >= float(angles.max()) * (1.0 - 1e-9)


def test_angles_are_observed_only_inside_the_block() -> None:
    S = skew(4, 2.0)
    with observed_angles() as angles:
        matrix_exp(S)
        matrix_exp(S / 2.0)
    matrix_exp(S)
    assert angles == [angle_bound(S), angle_bound(S / 2.0)]
