"""The body of `torsor.MatrixExp` alone: in ONNX Runtime, in onnx's own evaluator, in the range."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator
from scipy.linalg import expm

from export.graph.matrix_exp import (
    HEADROOM,
    MAX_BODY_SQUARINGS,
    POLYNOMIAL,
    body_range,
    body_squarings,
    matrix_exp_function,
)
from serve.manifest.page import DOMAIN, OPSET, VERSION
from train.groups.matrix_exp import matrix_exp

Array = NDArray[Any]
Evaluate = Callable[[Array], Array]

SIZES = (2, 3, 16, 22, 64)
SQUARINGS = (0, 1, 2, 3, 4)
SHARES = (0.0, 1e-6, 0.1, 0.5, 0.9, 0.9999)  # of the range

every_squarings = pytest.mark.parametrize("s", SQUARINGS)
both_evaluators = pytest.mark.parametrize("kind", ["runtime", "reference"])


@functools.cache
def body_model(s: int, dtype: str = "float32") -> onnx.ModelProto:
    """A model that is one `MatrixExp` with a body of s squarings."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    given_, made = (helper.make_tensor_value_info(name, kind, ["B", "d", "d"]) for name in "SE")
    node = helper.make_node("MatrixExp", ["S"], ["E"], domain=DOMAIN)
    return helper.make_model(
        helper.make_graph([node], "alone", [given_], [made]),
        functions=[matrix_exp_function(s)],
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, VERSION)],
        ir_version=10,
    )


@functools.cache
def evaluator(kind: str, s: int, dtype: str = "float32") -> Evaluate:
    whole = body_model(s, dtype).SerializeToString()
    run: Callable[[None, dict[str, Array]], Any] = (
        ReferenceEvaluator(whole).run
        if kind == "reference"
        else onnxruntime.InferenceSession(whole, providers=["CPUExecutionProvider"]).run
    )
    return lambda S: np.asarray(run(None, {"S": S})[0])


def skew(d: int, angle: float, seed: int, one_plane: bool = False) -> Array:
    """A random skew-symmetric float32 matrix with ‖S‖_F / √2 = angle: (d, d)."""
    normal = np.random.default_rng([d, seed]).normal
    if one_plane:  # all of the angle in one plane: the most that the polynomial can meet
        a, b = np.linalg.qr(normal(size=(d, 2)))[0].T
        S = np.outer(a, b) - np.outer(b, a)
    else:
        A = normal(size=(d, d))
        S = A - A.T
    made: Array = (S / np.linalg.norm(S) * math.sqrt(2) * angle).astype(np.float32)
    return made


def over_the_range(d: int, s: int) -> Array:
    """Matrices over the whole range of a body, in all planes and in one: (B, d, d)."""
    angles = [share * body_range(s) for share in SHARES]
    return np.stack([skew(d, a, seed, bool(seed % 2)) for a in angles for seed in range(4)])


def exact(S: Array) -> Array:
    made: Array = expm(S.astype(np.float64))
    return made


def assert_close(found: Array, expected: Array, S: Array, forms: int = 1) -> None:
    """Relative to the norm of exp(S), √d: 1e-6 a form, and beyond 10 rad 1e-7 of the angle."""
    angles = np.linalg.norm(S, axis=(-2, -1)) / math.sqrt(2)
    errors = np.linalg.norm(found - expected, axis=(-2, -1)) / math.sqrt(S.shape[-1])
    assert (errors <= forms * 1e-6 * np.maximum(1.0, angles / 10.0)).all()


def same_bits(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


@every_squarings
def test_the_body_passes_the_checker(s: int) -> None:
    onnx.checker.check_model(body_model(s), full_check=True)
    assert {node.domain for node in matrix_exp_function(s).node} == {""}


@both_evaluators
@every_squarings
def test_it_is_the_exponential_over_the_whole_range(s: int, kind: str) -> None:
    for S in (over_the_range(d, s) for d in SIZES):
        assert_close(evaluator(kind, s)(S), exact(S), S)


@every_squarings
def test_it_equals_the_exponential_that_trains(s: int) -> None:
    for S in (over_the_range(d, s) for d in SIZES):
        trained = matrix_exp(torch.from_numpy(S)).numpy()
        assert_close(evaluator("runtime", s)(S), trained, S, forms=2)


@settings(max_examples=60)
@given(st.sampled_from(SIZES), st.sampled_from(SQUARINGS), st.floats(0.0, 40.0), st.integers(0, 99))
def test_it_is_right_or_nan_at_any_angle(d: int, s: int, angle: float, seed: int) -> None:
    S = skew(d, angle, seed)[None]
    E = evaluator("runtime", s)(S)
    if angle <= 0.999 * body_range(s):
        assert_close(E, exact(S), S)
    elif angle > 1.001 * body_range(s):
        assert np.isnan(E).all()


@both_evaluators
@pytest.mark.parametrize("s", [0, 3])
@pytest.mark.parametrize("beyond", [1.001, 2.0, 1e6, 1e30, math.inf, math.nan])
def test_outside_the_range_the_whole_matrix_is_nan(beyond: float, s: int, kind: str) -> None:
    S = np.stack([skew(16, 0.5 * body_range(s), seed) for seed in range(3)])
    before = evaluator(kind, s)(S)
    with np.errstate(over="ignore", invalid="ignore"):
        S[1] = skew(16, 1.0, 1) * np.float32(beyond * body_range(s))
        E = evaluator(kind, s)(S)
    assert np.isnan(E[1]).all()
    assert same_bits(E[[0, 2]], before[[0, 2]])


@both_evaluators
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_number_breaks_its_own_matrix_only(bad: float, kind: str) -> None:
    S = np.stack([skew(5, 1.0, seed) for seed in range(4)])
    before = evaluator(kind, 1)(S)
    S[2, 0, 3] = bad
    with np.errstate(over="ignore", invalid="ignore"):
        E = evaluator(kind, 1)(S)
    assert np.isnan(E[2]).all()
    assert same_bits(E[[0, 1, 3]], before[[0, 1, 3]])


@every_squarings
def test_a_matrix_alone_has_the_bits_it_has_in_a_batch(s: int) -> None:
    run = evaluator("runtime", s)
    for S in (over_the_range(d, s) for d in SIZES):
        assert same_bits(run(S), np.concatenate([run(one[None]) for one in S]))


@both_evaluators
@every_squarings
def test_results_are_rotations(s: int, kind: str) -> None:
    for S in (over_the_range(d, s) for d in SIZES):
        E = evaluator(kind, s)(S).astype(np.float64)
        drift = np.abs(np.swapaxes(E, 1, 2) @ E - np.eye(S.shape[-1])).max(axis=(1, 2))
        angles = np.linalg.norm(S, axis=(1, 2)) / math.sqrt(2)
        assert (drift <= 1.5e-6 * np.maximum(1.0, angles / 10.0)).all()
        assert np.allclose(np.linalg.det(E), 1.0, atol=1e-4)


@every_squarings
def test_the_zero_tangent_gives_the_identity_bit_for_bit(s: int) -> None:
    for d in SIZES:
        E = evaluator("runtime", s)(np.zeros((2, d, d), np.float32))
        assert same_bits(E, np.stack([np.eye(d, dtype=np.float32)] * 2))


@given(st.floats(0.0, body_range(MAX_BODY_SQUARINGS) / HEADROOM))
def test_squarings_are_the_fewest_that_cover_twice_what_was_seen(angle: float) -> None:
    s = body_squarings(angle)
    assert body_range(s) >= HEADROOM * angle * (1.0 - 1e-12)
    assert s == 0 or body_range(s - 1) < HEADROOM * angle * (1.0 + 1e-12)


@pytest.mark.parametrize(
    "angle", [body_range(MAX_BODY_SQUARINGS) / HEADROOM * 1.001, 1e6, math.inf, math.nan]
)
def test_a_chaotic_model_is_refused(angle: float) -> None:
    with pytest.raises(ValueError, match="smaller learning rate"):
        body_squarings(angle)


# Any square matrix, float32 and float64

SHAPES = (1, 2, 5, 16, 33)
KINDS: dict[str, Callable[[Array], Array]] = {  # of random A
    "general": lambda A: A,
    "skew": lambda A: A - A.T,
    "symmetric": lambda A: A + A.T,
    "shrinking": lambda A: -A @ A.T,
    "of rank one": lambda A: np.outer(A[0], A[0]),
    "nilpotent": lambda A: np.triu(A, 1),
    "defective": lambda A: np.eye(len(A)) + np.eye(len(A), k=1),
}
TOLERANCES = {"float32": 3e-6, "float64": 2e-12}  # of max(1, ‖E‖); scipy's own is 6e-13

every_type = pytest.mark.parametrize("dtype", TOLERANCES)


def squares(kind: str, d: int, s: int, dtype: str) -> Array:
    """Matrices of a kind over the whole range of a body: (B, d, d)."""
    limit = math.sqrt(2) * body_range(s, double=dtype == "float64")
    normal = np.random.default_rng(d).normal
    made = np.stack([KINDS[kind](normal(size=(d, d))) for _ in range(3)])
    made /= np.maximum(np.linalg.norm(made, axis=(1, 2), keepdims=True), 1e-30)
    whole: Array = np.concatenate([made * limit * share for share in SHARES]).astype(dtype)
    return whole


def errors(found: Array, expected: Array) -> Array:
    """Of each matrix, relative to max(1, ‖E‖): (B)."""
    size = np.maximum(1.0, np.abs(expected).max((1, 2)))
    worst: Array = np.abs(found - expected).max((1, 2)) / size
    return worst


def test_the_polynomial_is_taylors() -> None:
    p = np.polynomial.Polynomial

    def cubic(letter: str) -> Any:
        return p([0.0, *(POLYNOMIAL.get(f"{letter}{k}", 0.0) for k in (1, 2, 3))])

    B = cubic("b") ** 2
    X = cubic("e") + B
    whole = p([0.0, 1.0]) + cubic("c") + POLYNOMIAL["g"] * B + (cubic("d") + X) * X
    expected = [1.0 / math.factorial(k) for k in range(1, 13)]
    np.testing.assert_allclose(whole.coef[1:], expected, rtol=1e-13, atol=0)


@both_evaluators
@every_type
def test_it_is_the_exponential_of_any_square_matrix(dtype: str, kind: str) -> None:
    for s, kind_of_matrix, d in itertools.product((0, 2, 4), KINDS, SHAPES):
        S = squares(kind_of_matrix, d, s, dtype)
        E = evaluator(kind, s, dtype)(S)
        assert E.dtype == S.dtype
        assert errors(E, exact(S)).max() <= TOLERANCES[dtype], (s, kind_of_matrix, d)


@both_evaluators
@every_type
@pytest.mark.parametrize("s", [0, 3])
def test_the_range_of_each_type_ends_where_it_is_said_to(s: int, dtype: str, kind: str) -> None:
    S = squares("general", 7, s, dtype)[-3:]
    assert np.isfinite(evaluator(kind, s, dtype)(S)).all()
    S[1] *= 1.001
    E = evaluator(kind, s, dtype)(S)
    assert np.isnan(E[1]).all() and np.isfinite(E[[0, 2]]).all()


@both_evaluators
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_one_bad_double_breaks_its_own_matrix_only(bad: float, kind: str) -> None:
    S = squares("general", 5, 1, "float64")
    before = evaluator(kind, 1, "float64")(S)
    S[2, 0, 3] = bad
    with np.errstate(over="ignore", invalid="ignore"):
        E = evaluator(kind, 1, "float64")(S)
    assert np.isnan(E[2]).all()
    assert same_bits(np.delete(E, 2, 0), np.delete(before, 2, 0))
