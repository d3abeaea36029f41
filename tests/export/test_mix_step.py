"""MixStep: a row is computed by itself, and in double to all digits.

How far the Γ-mixed tangent turns says how often it is halved, so a row's bits hang on that bound.
"""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from operator_feeds import TYPES, Array, Arrays, alone, evaluate, mix_feeds, needs_kernels, rng
from scipy.linalg import expm

from serve.native.library import load
from train.groups.matrix_exp import ANGLE

LEVELS = ("on", "plain")
pytestmark = needs_kernels


def native_session(feeds: Arrays) -> Any:
    """An ONNX Runtime session of one MixStep, run by the kernels."""
    library = load()
    assert library is not None
    model, options = alone("MixStep", feeds, TYPES[feeds["H"].dtype]), onnxruntime.SessionOptions()
    del model.functions[:]
    options.intra_op_num_threads = 1  # so that one workspace sees every run
    options.register_custom_ops_library(str(library.path))
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def tangents(feeds: Arrays) -> Array:
    """S of H exp(S), in double."""
    H, A, G = (value.astype(np.float64) for value in feeds.values())
    d = H.shape[-1]
    i, j = np.triu_indices(d, 1)
    seen = H.swapaxes(1, 2) @ A
    S: Array = np.zeros_like(seen)
    S[:, i, j] = ((seen[:, i, j] - seen[:, j, i]) / 2) @ G
    return S - S.swapaxes(1, 2)


def close_to_a_squaring(B: int, d: int, dtype: Any) -> Arrays:
    """Rows that turn a little less than what takes one more squaring: 1 to 1/10,000 less of it."""
    feeds, D = mix_feeds(B, d), d * (d - 1) // 2
    feeds["G"] = (np.eye(D) + 0.3 * rng(d, 4).standard_normal((D, D))).astype(dtype)
    bounds = np.linalg.norm(tangents(feeds), axis=(1, 2)) / np.sqrt(2)
    wanted = ANGLE * 2.0 ** (np.arange(B) % 4) * (1 - np.geomspace(1e-4, 0.1, B))
    feeds["A"] = feeds["A"] * (wanted / bounds)[:, None, None]
    return {name: value.astype(dtype) for name, value in feeds.items()}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [3, 6, 15, 16, 22])
def test_rows_are_the_same_alone_in_a_batch_and_after_it(
    d: int, dtype: Any, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSOR_NATIVE", level)
    feeds = close_to_a_squaring(32, d, dtype)
    session = native_session(feeds)

    def run(rows: slice) -> Array:
        given = {name: a if name == "G" else a[rows] for name, a in feeds.items()}
        return np.asarray(session.run(None, given)[0])

    def one_by_one() -> Array:
        return np.concatenate([run(slice(b, b + 1)) for b in range(32)])

    before, whole, after = one_by_one(), run(slice(None)), one_by_one()
    np.testing.assert_array_equal(whole, before)
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("form", ["native", "body"])
@pytest.mark.parametrize("d", [2, 6, 15, 16, 22])
def test_double_keeps_all_its_digits(d: int, form: str) -> None:
    feeds = mix_feeds(5, d, np.float64)
    feeds["A"] *= np.geomspace(1e-3, 4.0, 5)[:, None, None]
    found = evaluate(form, "MixStep", feeds)
    assert found.dtype == np.float64
    expected = feeds["H"] @ np.stack([expm(S) for S in tangents(feeds)])
    assert np.abs(found - expected).max() <= 1e-14 * d
