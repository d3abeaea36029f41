"""The exponential of a matrix in all its forms: each of them is scipy's, in float32 and float64.

| form        | what runs                                                              |
|-------------|------------------------------------------------------------------------|
| training    | `train.groups.matrix_exp`, with the kernels where they are built       |
| plain       | the same where there are none                                          |
| operator    | the kernels as an operator of torch                                    |
| kernel      | ONNX Runtime with the kernels of serve/native/                         |
| body        | stock ONNX Runtime: the function in the file                           |
| reference   | onnx's own evaluator: the same function                                |
| device code | the code of the CUDA kernels, compiled for the CPU                     |

The first three take skew-symmetric matrices, the others any square ones. What a form has beside
its values (gradients, ranges, steps, threads, bits) is tested where it lives.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from operator_feeds import SQUARINGS, TYPES, Array, alone, needs_kernels, rng, skew
from scipy.linalg import expm

from export.graph.matrix_exp import body_range
from serve.native.library import load
from train.groups import matrix_exp as training
from train.groups import native

SIZES = (1, 2, 3, 5, 8, 15, 16, 22, 32, 33, 64, 70)
NORMS = (0.0, 1e-5, 1e-3, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)  # of Frobenius
Exponential = Callable[[Array], Array]


class Form(NamedTuple):
    """What a form promises: the largest error by type; relative to max ‖E‖ for any matrix."""

    skew: dict[str, float]
    any_square: dict[str, float] = {}  # never changed


FORMS = {
    # the polynomial for skew-symmetric matrices is good to 4e-9, squared twice more
    "training": Form({"float32": 1e-6, "float64": 2e-7}),
    "plain": Form({"float32": 1e-6, "float64": 2e-7}),
    "operator": Form({"float32": 1e-6, "float64": 2e-7}),
    "kernel": Form({"float32": 1e-6, "float64": 2e-12}, {"float32": 3e-6, "float64": 2e-12}),
    "body": Form({"float32": 3e-6, "float64": 2e-12}, {"float32": 3e-6, "float64": 2e-12}),
    "reference": Form({"float32": 3e-6, "float64": 2e-12}, {"float32": 3e-6, "float64": 2e-12}),
    "device code": Form(
        {"float32": 1e-6, "float64": 2e-12 / 3}, {"float32": 3e-6, "float64": 2e-12}
    ),
}
MARKS = {
    **dict.fromkeys(("operator", "kernel"), needs_kernels),
    "device code": pytest.mark.process,  # a compiler runs
}
every_form = pytest.mark.parametrize(
    "form", [pytest.param(name, marks=MARKS.get(name, ())) for name in FORMS], indirect=True
)
general_forms = pytest.mark.parametrize(
    "form",
    [pytest.param(n, marks=MARKS.get(n, ())) for n, form in FORMS.items() if form.any_square],
    indirect=True,
)


def of_torch(exponential: Callable[[torch.Tensor], torch.Tensor]) -> Exponential:
    return lambda S: exponential(torch.from_numpy(S)).numpy()


def plain(S: torch.Tensor) -> torch.Tensor:
    return training._scale_and_square(S, training.num_squarings(training.angle_bound(S)))


@functools.cache
def in_onnx(form: str, dtype: str) -> Exponential:
    """A graph of one `MatrixExp`; its session takes any batch and size."""
    model = alone("MatrixExp", {"S": np.zeros((1, 1, 1), dtype)}, TYPES[np.dtype(dtype)])
    if form == "reference":
        evaluator: Any = ReferenceEvaluator(model)
        return lambda S: np.asarray(evaluator.run(None, {"S": S})[0])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if form == "kernel":
        del model.functions[:]  # nothing else could run it
        library = load()
        assert library is not None
        options.register_custom_ops_library(str(library.path))
    session: Any = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda S: np.asarray(session.run(None, {"S": S})[0])


def exponential_of(name: str, request: pytest.FixtureRequest) -> Exponential:
    if name == "device code":
        run = request.getfixturevalue("device_code")
        return lambda S: np.asarray(run("MatrixExp", {"S": S}))
    of_training = {
        "training": training.matrix_exp,
        "plain": plain,
        "operator": native.matrix_exp,
    }
    if name in of_training:
        return of_torch(of_training[name])
    return lambda S: in_onnx(name, S.dtype.name)(S)


class Found(NamedTuple):
    """A form that is asked, and what it promises."""

    name: str
    exp: Exponential
    promise: Form


@pytest.fixture(scope="module")
def form(request: pytest.FixtureRequest) -> Found:
    return Found(request.param, exponential_of(request.param, request), FORMS[request.param])


def exact(S: Array) -> Array:
    return np.stack([expm(M.astype(np.float64)) for M in S])


def takes(form: Found, dtype: str, norm: float) -> bool:
    """Whether a norm is in the range of a form: beyond theirs, bodies say NaN."""
    limit = math.sqrt(2) * body_range(SQUARINGS, double=dtype == "float64")
    return form.name not in ("body", "reference") or norm <= limit


@every_form
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_of_skew_symmetric_matrices_it_is_scipys(form: Found, dtype: str) -> None:
    for d in SIZES:
        for norm in NORMS:
            S = skew(5, d, norm, dtype)
            if takes(form, dtype, norm):
                E = form.exp(S)
                assert E.dtype == S.dtype
                assert np.abs(E - exact(S)).max() <= form.promise.skew[dtype], (d, norm)


@every_form
@settings(max_examples=25)
@given(d=st.integers(2, 32), norm=st.floats(0.1, 10.0), seed=st.integers(0, 2**32))
def test_of_any_size_and_norm_it_is_scipys(form: Found, d: int, norm: float, seed: int) -> None:
    A = rng(d, seed).standard_normal((2, d, d))
    S = A - A.swapaxes(1, 2)
    S = (S / np.linalg.norm(S, axis=(1, 2), keepdims=True) * norm).astype(np.float32)
    assert np.abs(form.exp(S) - exact(S)).max() <= form.promise.skew["float32"]


@general_forms
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_of_any_square_matrix_it_is_scipys(form: Found, dtype: str) -> None:
    for d in SIZES:
        scales = np.array([0.01, 0.1, 0.3, 1, 2, 3])[:, None, None]
        S = (rng(d, 9).standard_normal((6, d, d)) * scales / np.sqrt(d)).astype(dtype)
        S = S[[takes(form, dtype, float(np.linalg.norm(M))) for M in S]]
        E = form.exp(S)
        assert E.dtype == S.dtype
        for found, expected in zip(E, exact(S), strict=True):
            limit = form.promise.any_square[dtype] * np.abs(expected).max()
            assert np.abs(found - expected).max() <= limit, d


@general_forms
def test_of_nilpotent_and_defective_matrices_it_is_scipys(form: Found) -> None:
    S = np.triu(np.ones((1, 6, 6)), 1)
    for M in (S, S + 2 * np.eye(6)):
        if takes(form, "float64", float(np.linalg.norm(M))):
            np.testing.assert_allclose(form.exp(M), exact(M), rtol=1e-12, atol=1e-12)


@every_form
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_of_zero_it_is_the_identity_bit_for_bit(form: Found, dtype: str) -> None:
    for d in SIZES:
        E = form.exp(np.zeros((2, d, d), dtype))
        assert E.tobytes() == np.stack([np.eye(d, dtype=dtype)] * 2).tobytes()


@pytest.mark.parametrize("form", [pytest.param("kernel", marks=needs_kernels)], indirect=True)
def test_in_double_kernels_keep_all_their_digits(form: Found) -> None:
    for d in (3, 16, 22):
        S = skew(3, d, 4.0, np.float64)
        assert np.abs(form.exp(S) - exact(S)).max() <= 1e-14 * d


@every_form
def test_of_a_plane_it_turns_by_the_angle(form: Found) -> None:
    for angle in (0.0, 1e-4, 0.7, training.ANGLE, 1.3, math.pi, 9.0):
        if takes(form, "float64", math.sqrt(2) * angle):
            c, s = math.cos(angle), math.sin(angle)
            E = form.exp(np.array([[[0.0, -angle], [angle, 0.0]]]))
            assert np.abs(E[0] - [[c, -s], [s, c]]).max() <= 1e-7, angle
