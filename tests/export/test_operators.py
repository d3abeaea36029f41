"""Our operators in ONNX Runtime: the native kernels, the bodies in the file, and the plain forms.

| form      | what runs                                          |
|-----------|----------------------------------------------------|
| native    | ONNX Runtime with the kernels of serve/native/     |
| body      | stock ONNX Runtime: the functions in the file      |
| reference | onnx's own evaluator: the same functions           |
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from operator_feeds import (
    Array,
    Arrays,
    evaluate,
    matrix_feeds,
    mix_feeds,
    needs_kernels,
    rng,
    token_feeds,
)

from serve.native.library import load
from train.groups.orthogonal import SO
from train.layers.mixing import step

Evaluate = Callable[[Arrays], Array]

FORMS = ("native", "body", "reference")
SIZES = (1, 2, 3, 8, 15, 16, 22, 33)


# --- one operator, three forms


@needs_kernels
@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 3e-6), (np.float64, 2e-14)])
def test_kernel_and_body_agree_on_any_square_matrix(dtype: Any, tolerance: float) -> None:
    for d in SIZES:
        A = rng(d, 10).standard_normal((6, d, d))
        A[1] += A[1].T.copy()
        A[2] -= A[2].T.copy()
        A[3] = np.triu(A[3], 1)
        norms = np.array([4, 4, 4, 4, 0.01, 0])[:, None, None]  # the body's range in double is 4.5
        size = np.maximum(np.linalg.norm(A, axis=(1, 2), keepdims=True), 1e-30)
        feeds = {"S": (A / size * norms).astype(dtype)}
        kernel, body, reference = (evaluate(form, "MatrixExp", feeds) for form in FORMS)
        assert kernel.dtype == body.dtype == dtype
        for found in (body, reference):
            np.testing.assert_allclose(found, kernel, rtol=tolerance, atol=tolerance)


@needs_kernels
@pytest.mark.parametrize("operator", ["MatrixExp", "OrthoStep", "MixStep"])
def test_kernel_body_and_reference_agree(operator: str) -> None:
    for d in SIZES[1:]:
        feeds = matrix_feeds(operator, 5, d)
        forms = [evaluate(form, operator, feeds) for form in FORMS]
        for found in forms[1:]:
            assert found.shape == forms[0].shape
            np.testing.assert_allclose(found, forms[0], rtol=0, atol=3e-6)


@needs_kernels
@pytest.mark.parametrize("d", [2, 5, 16, 22])
def test_a_mixed_step_is_the_one_of_training(d: int) -> None:
    feeds = mix_feeds(7, d)
    H, A, G = (torch.from_numpy(a) for a in feeds.values())
    expected = step(SO(d), {"mixing": G.mT.contiguous()}, "mixing", H, A)
    found = evaluate("native", "MixStep", feeds)
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=3e-6)


@needs_kernels
@pytest.mark.parametrize("operator", ["OrthoStep", "MixStep"])
def test_leading_axes_may_be_any_number(operator: str) -> None:
    feeds = matrix_feeds(operator, 6, 5)
    whole = evaluate("native", operator, feeds)
    cut = {n: a if n == "G" else a.reshape(2, 3, 5, 5) for n, a in feeds.items()}
    for form in ("native", "body"):
        found = evaluate(form, operator, cut)
        np.testing.assert_allclose(found.reshape(6, 5, 5), whole, rtol=0, atol=3e-6)


@needs_kernels
@pytest.mark.parametrize("operator", ["MatrixExp", "OrthoStep", "MixStep"])
@pytest.mark.parametrize("d", [3, 16, 22])
def test_batch_mates_and_threads_never_show_in_the_bits(operator: str, d: int) -> None:
    feeds = matrix_feeds(operator, 70, d)
    whole = evaluate("native", operator, feeds)
    np.testing.assert_array_equal(evaluate("native", operator, feeds, num_threads=2), whole)
    for rows in (slice(0, 1), slice(31, 35), slice(69, 70)):
        some = {n: a if n == "G" else a[rows] for n, a in feeds.items()}
        np.testing.assert_array_equal(evaluate("native", operator, some), whole[rows])


@needs_kernels
@pytest.mark.parametrize("operator", ["MatrixExp", "OrthoStep", "MixStep"])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_broken_matrix_is_nan_and_leaves_the_others_alone(operator: str, broken: float) -> None:
    feeds = matrix_feeds(operator, 4, 6)
    whole = evaluate("native", operator, feeds)
    name = "A" if operator == "MixStep" else "S"
    feeds[name] = feeds[name].copy()
    feeds[name][2, 1, 3] = broken
    found = evaluate("native", operator, feeds)
    assert np.isnan(found[2]).all()
    np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(whole, 2, 0))


@needs_kernels
def test_an_empty_batch_is_an_empty_result() -> None:
    for operator in ("MatrixExp", "OrthoStep", "MixStep"):
        feeds = {n: a if n == "G" else a[:0] for n, a in matrix_feeds(operator, 2, 4).items()}
        assert evaluate("native", operator, feeds).shape == (0, 4, 4)


@needs_kernels
@pytest.mark.parametrize(
    "operator, changed, problem",
    [
        ("MatrixExp", {"S": np.zeros((2, 3, 4), np.float32)}, "square matrices"),
        ("OrthoStep", {"S": np.zeros((1, 4, 4), np.float32)}, "one shape"),
        ("MixStep", {"G": np.zeros((5, 6), np.float32)}, "mixing"),
    ],
)
def test_shapes_that_dont_fit_are_errors(operator: str, changed: Arrays, problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        evaluate("native", operator, matrix_feeds(operator, 2, 4) | changed)


# --- the sampler


@pytest.mark.parametrize("V", [2, 7, 8, 65, 300])
def test_every_form_takes_the_same_characters(V: int) -> None:
    feeds = token_feeds(97, V)
    tokens = [evaluate(form, "SampleToken", feeds) for form in ("body", "reference")]
    if load() is not None:
        tokens.append(evaluate("native", "SampleToken", feeds))
    for found in tokens[1:]:
        # A uniform may lie within rounding of a border: then either neighbour is right
        apart = found != tokens[0]
        assert apart.mean() <= 0.02
        assert np.abs(found - tokens[0])[apart & (feeds["top_k"][:, 0] == V)].max(initial=0) <= 1


@needs_kernels
def test_rows_of_the_sampler_are_drawn_alone() -> None:
    feeds = token_feeds(41, 65)
    whole = evaluate("native", "SampleToken", feeds)
    np.testing.assert_array_equal(evaluate("native", "SampleToken", feeds, num_threads=2), whole)
    for b in range(41):
        one = {name: a[b : b + 1] for name, a in feeds.items()}
        assert evaluate("native", "SampleToken", one)[0] == whole[b]


@needs_kernels
def test_greedy_takes_the_lowest_of_the_largest() -> None:
    logits = np.array([[0, 3, 1, 3, 3], [-np.inf, -np.inf, 2, 1, 2]], np.float32)
    greedy = {"logits": logits, "bias": np.zeros_like(logits), "greedy": np.array([True, True])}
    feeds = token_feeds(2, 5, **greedy, forced=np.array([-1, -1]))
    assert evaluate("native", "SampleToken", feeds).tolist() == [1, 2]


@needs_kernels
def test_a_broken_row_takes_the_first_character_and_forced_ones_are_taken_anyway() -> None:
    feeds = token_feeds(12, 9, forced=np.where(np.arange(12) == 3, 5, -1))
    feeds["logits"] = feeds["logits"].copy()
    whole = evaluate("native", "SampleToken", feeds)
    feeds["logits"][[2, 3], 4] = np.nan
    found = evaluate("native", "SampleToken", feeds)
    assert (found[2], found[3]) == (0, 5)
    np.testing.assert_array_equal(np.delete(found, [2, 3]), np.delete(whole, [2, 3]))


@needs_kernels
def test_the_last_uniform_draws_a_character_that_is_there() -> None:
    last = np.full((64, 1), ((1 << 23) - 1) / (1 << 23), np.float32)
    feeds = token_feeds(64, 65, uniform=last, forced=np.full(64, -1), greedy=np.zeros(64, bool))
    found = evaluate("native", "SampleToken", feeds)
    assert ((0 <= found) & (found < 65)).all()


# --- instruction sets


@needs_kernels
def test_plain_kernels_do_what_the_fast_ones_do(tmp_path: Path) -> None:
    feeds = mix_feeds(9, 13)
    np.savez(tmp_path / "feeds.npz", **feeds)  # type: ignore[arg-type]
    program = (
        "import sys, numpy as np; sys.path.insert(0, 'tests/support'); import operator_feeds as t; "
        f"feeds = dict(np.load({str(tmp_path / 'feeds.npz')!r})); "
        f"np.save({str(tmp_path / 'out.npy')!r}, t.evaluate('native', 'MixStep', feeds))"
    )
    root = Path(__file__).parent.parent.parent
    environment = os.environ | {"TORSOR_NATIVE": "plain"}
    subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, check=True)
    fast = evaluate("native", "MixStep", feeds)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), fast, rtol=0, atol=3e-6)
