"""The CUDA kernels, without a GPU: there was none, so NOTHING HERE RUNS THEM ON ONE.

| what is tested                             | how                                            |
|--------------------------------------------|------------------------------------------------|
| their arithmetic, for teams of any size    | the same code, compiled for the CPU            |
| their barriers                             | the same, under a checker of threads           |
| launches, memory of the device, speed      | not at all                                     |
"""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_code import DeviceCode, compile_host_form
from operator_feeds import (
    evaluate,
    matrix_feeds,
    mix_feeds,
    needs_kernels,
    rng,
    skew,
    token_feeds,
)
from scipy.linalg import expm

SIZES = (1, 2, 3, 8, 16, 22, 33, 64)
TOLERANCES = {np.float32: 3e-6, np.float64: 2e-12}


@pytest.fixture(scope="module")
def host(device_code: DeviceCode) -> DeviceCode:
    """`host(operator, feeds, threads)`: what the device code gives on the CPU."""
    return device_code


# --- the arithmetic


@needs_kernels
@pytest.mark.parametrize("operator", ["MatrixExp", "OrthoStep", "MixStep"])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_matrices_are_those_of_the_cpu_kernels(host: DeviceCode, operator: str, dtype: Any) -> None:
    for d in SIZES:
        feeds = matrix_feeds(operator, 9, d, dtype)
        if operator == "MixStep" and d == 1:  # no model has it, and nothing moves
            expected = feeds["H"]
        else:
            expected = evaluate("native", operator, feeds)
        np.testing.assert_allclose(host(operator, feeds), expected, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("d", [2, 5, 16, 22])
def test_a_mixed_step_is_the_formula(host: DeviceCode, d: int) -> None:
    feeds = mix_feeds(5, d, np.float64)
    H, A, G = feeds.values()
    i, j = np.triu_indices(d, 1)
    B = H.swapaxes(1, 2) @ A
    v = (B - B.swapaxes(1, 2))[:, i, j] / np.sqrt(2) @ G
    S = np.zeros_like(A)
    S[:, i, j] = v / np.sqrt(2)
    expected = H @ np.stack([expm(M) for M in S - S.swapaxes(1, 2)])
    # the polynomial for skew matrices is good to 4e-9
    np.testing.assert_allclose(host("MixStep", feeds), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("operator", ["MatrixExp", "OrthoStep", "MixStep"])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_team_of_any_size_gives_the_same_bits(
    host: DeviceCode, operator: str, dtype: Any
) -> None:
    for d in (1, 3, 16, 22):
        feeds = matrix_feeds(operator, 11, d, dtype)
        for threads in (2, 7):
            np.testing.assert_array_equal(host(operator, feeds, threads), host(operator, feeds))


@pytest.mark.parametrize("operator", ["MatrixExp", "OrthoStep", "MixStep"])
def test_batch_mates_never_show_in_the_bits(host: DeviceCode, operator: str) -> None:
    feeds = matrix_feeds(operator, 19, 13)
    whole = host(operator, feeds)
    for rows in (slice(0, 1), slice(6, 12), slice(18, 19)):
        some = {n: a if n == "G" else a[rows] for n, a in feeds.items()}
        np.testing.assert_array_equal(host(operator, some), whole[rows])


def test_each_matrix_is_halved_for_itself(host: DeviceCode) -> None:
    norms = np.array([0.1, 7.0, 300.0, 2.0])[:, None, None]
    S = (skew(4, 9, 1.0) * norms).astype(np.float32)
    whole = host("MatrixExp", {"S": S})
    alone = [host("MatrixExp", {"S": S[b : b + 1]})[0] for b in range(4)]
    np.testing.assert_array_equal(whole, alone)


@pytest.mark.parametrize("operator", ["MatrixExp", "OrthoStep", "MixStep"])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_broken_matrix_is_nan_and_leaves_the_others_alone(
    host: DeviceCode, operator: str, dtype: Any, broken: float
) -> None:
    feeds = matrix_feeds(operator, 4, 6, dtype)
    whole = host(operator, feeds)
    name = "A" if operator == "MixStep" else "S"
    feeds[name] = feeds[name].copy()
    feeds[name][2, 1, 3] = broken
    for threads in (1, 3):
        found = host(operator, feeds, threads)
        assert np.isnan(found[2]).all()
        np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(whole, 2, 0))


# --- the sampler


@needs_kernels
@pytest.mark.parametrize("V", [1, 2, 7, 8, 65, 300])
def test_the_sampler_takes_the_characters_of_the_cpu_kernel(host: DeviceCode, V: int) -> None:
    feeds = token_feeds(397, V)
    expected = evaluate("native", "SampleToken", feeds)
    found = host("SampleToken", feeds)
    # A uniform within rounding of a border may fall on either side of it
    assert (found != expected).sum() <= 1
    for threads in (3, 8):
        np.testing.assert_array_equal(host("SampleToken", feeds, threads), found)


@needs_kernels
def test_ties_go_to_the_lower_index_in_cuts_too(host: DeviceCode) -> None:
    r = rng(5)
    logits = r.integers(0, 3, (200, 24)).astype(np.float32)
    feeds = token_feeds(200, 24, logits=logits, bias=np.zeros_like(logits))
    expected = evaluate("native", "SampleToken", feeds)
    for threads in (1, 5):
        assert (host("SampleToken", feeds, threads) != expected).sum() <= 1
    feeds["top_k"][:], feeds["forced"][:] = 1, -1  # then only the lowest of the largest is left
    feeds["greedy"][:] = False
    np.testing.assert_array_equal(host("SampleToken", feeds, 5), logits.argmax(1))


def test_broken_rows_take_the_first_character_and_forced_ones_are_taken_anyway(
    host: DeviceCode,
) -> None:
    feeds = token_feeds(12, 9, forced=np.where(np.arange(12) == 3, 5, -1))
    whole = host("SampleToken", feeds)
    feeds["logits"] = feeds["logits"].copy()
    feeds["logits"][[2, 3], 4], feeds["logits"][7, 1] = np.nan, np.inf
    feeds["bias"][7, 1], feeds["bias"][9] = 0, -np.inf
    for threads in (1, 4):
        found = host("SampleToken", feeds, threads)
        assert (found[2], found[3], found[7], found[9]) == (0, 5, 0, 0)
        rest = np.delete(np.arange(12), [2, 3, 7, 9])
        np.testing.assert_array_equal(found[rest], whole[rest])


def test_what_is_forbidden_is_never_drawn(host: DeviceCode) -> None:
    ends = np.tile([0.0, 1 - 2.0**-23], 50)[:, None].astype(np.float32)
    feeds = token_feeds(100, 65, uniform=ends, forced=np.full(100, -1))
    feeds["bias"][:, 0], feeds["bias"][:, 30], feeds["bias"][:, 64] = -np.inf, 0, -np.inf
    tokens = host("SampleToken", feeds, 2)
    assert (feeds["bias"][np.arange(100), tokens] == 0).all()


# --- races


def test_no_barrier_is_missing(tmp_path: Path) -> None:
    """Teams of three under a checker of threads, for which a team's barrier is the only order."""
    program = compile_host_form(tmp_path / "races", "-g", "-O0", "-fsanitize=thread", "-DRACES")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the checker of threads does not run on this system")
    assert done.returncode == 0, done.stderr
