"""The exponential of skew-symmetric matrices, in the form that training and serving share.

For skew S the exponential splits into an even and an odd part, cos and sin of its plane angles:

    exp(S) = C(S^2) + S · N(S^2),   C(-x^2) ≈ cos x,   N(-x^2) ≈ sin x / x,   |x| <= ANGLE

Both are Chebyshev interpolants in x^2, so the whole is one polynomial of degree 9, evaluated with
4 matrix products. A larger S is halved until it fits and the result squared as often. How often
is read from the norm: a fixed number is silently wrong beyond its range, and not orthogonal.

The first dimensions are batch dimensions.
"""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from train.groups import native

ANGLE = 1.2  # radians that the polynomial covers; its error there is below 4e-9
DEGREE = 9
MAX_SQUARINGS = 30  # more than float32 can follow; a norm beyond it is a broken model


@functools.cache
def coefficients() -> tuple[float, ...]:
    """c_0 ... c_9 of exp(S) ≈ sum_k c_k S^k for skew S with plane angles up to `ANGLE`."""

    def fit(function: np.ufunc) -> np.ndarray:
        # sqrt can meet a rounding error below zero at the left end
        curve = np.polynomial.Chebyshev.interpolate(
            lambda y: function(np.sqrt(np.maximum(y, 0.0))), DEGREE // 2, (0.0, ANGLE**2)
        )
        return np.asarray(curve.convert(kind=np.polynomial.Polynomial).coef)

    signs = (-1.0) ** np.arange(DEGREE // 2 + 1)  # (ix)^2 = -x^2
    even = fit(np.cos) * signs
    odd = fit(lambda x: np.sinc(x / np.pi)) * signs  # type: ignore[arg-type]
    return tuple(float(c) for pair in zip(even, odd, strict=True) for c in pair)


def matrix_exp(S: Tensor) -> Tensor:  # (..., d, d) -> (..., d, d)
    """exp(S) of skew-symmetric S, equal to `matrix_exp_reference` to float accuracy.

    S of any norm up to 2^30; NaN in gives NaN out, and leaves the rest of the batch alone. A native
    kernel does it where there is one (`train.groups.native`); in an ONNX export this is one
    `torsor.MatrixExp` node.
    """
    if torch.onnx.is_in_onnx_export():
        exported: Tensor = torch.onnx.ops.symbolic(
            "torsor::MatrixExp", (S,), dtype=S.dtype, shape=S.shape, version=1
        )
        return exported
    with torch.autocast(S.device.type, enabled=False):
        return _exact_exp(exact(S))


def exact(S: Tensor) -> Tensor:
    """S in float32 if a coarse product made it: 8 bits are too few to stay on a group."""
    return S.float() if S.dtype == torch.bfloat16 else S


def _exact_exp(S: Tensor) -> Tensor:
    _tell(S)
    if native.available(S):
        return native.matrix_exp(S)
    angle = angle_bound(S)
    if not math.isfinite(angle):  # a broken matrix has no say in how the others are squared
        angle = angle_bound(S[torch.linalg.matrix_norm(S).isfinite()])
    return _scale_and_square(S, num_squarings(angle))


def ortho_step(H: Tensor, S: Tensor) -> Tensor:  # (..., d, d), (..., d, d) -> (..., d, d)
    """H exp(S) for skew-symmetric S, in one kernel where there is one.

    In an ONNX export this is one `torsor.OrthoStep` node.
    """
    if torch.onnx.is_in_onnx_export():
        exported: Tensor = torch.onnx.ops.symbolic(
            "torsor::OrthoStep", (H, S), dtype=S.dtype, shape=S.shape, version=1
        )
        return exported
    with torch.autocast(S.device.type, enabled=False):
        H, S = exact(H), exact(S)
        if not native.available(H, S):
            return H @ _exact_exp(S)
        _tell(S)
        return native.ortho_step(H, S)


def matrix_exp_reference(S: Tensor) -> Tensor:  # (..., d, d) -> (..., d, d)
    """exp(S) by `torch.linalg.matrix_exp`: the plain form, for any square S."""
    E: Tensor = torch.linalg.matrix_exp(S)
    return E


def angle_bound(S: Tensor) -> float:
    """At least the largest plane angle in the batch: max ‖S‖_F / √2, since angles come in pairs."""
    with torch.no_grad():
        return float(torch.linalg.matrix_norm(S).max()) / math.sqrt(2.0) if S.numel() else 0.0


def num_squarings(angle: float) -> int:
    """The least s with angle / 2^s <= `ANGLE`."""
    if not math.isfinite(angle) or angle <= ANGLE:
        return 0
    return min(MAX_SQUARINGS, math.ceil(math.log2(angle / ANGLE)))


@contextmanager
def observed_angles() -> Iterator[list[float]]:
    """The angle bounds of all calls of `matrix_exp` inside the block."""
    angles: list[float] = []
    _observers.append(angles.append)
    try:
        yield angles
    finally:
        _observers.remove(angles.append)


def is_observed() -> bool:
    """Whether someone wants to know the angles, so that they must pass `matrix_exp` one by one."""
    return bool(_observers)


_observers: list[Callable[[float], None]] = []


def _tell(S: Tensor) -> None:
    if _observers:
        angle = angle_bound(S)
        for observe in _observers:
            observe(angle)


def _scale_and_square(S: Tensor, squarings: int) -> Tensor:
    c = coefficients()
    S = S * 0.5**squarings
    S2 = S @ S
    S3 = S2 @ S
    # Paterson and Stockmeyer for F = exp(S) - I: the identity stays out, so small S keep their
    # digits, and (I + F)^2 - I = 2F + F^2.
    F = c[4] * S + c[5] * S2 + c[6] * S3 + S3 @ (c[7] * S + c[8] * S2 + c[9] * S3)
    F = c[1] * S + c[2] * S2 + c[3] * S3 + S3 @ F
    for _ in range(squarings):
        F = 2.0 * F + F @ F
    return F + torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
