"""The CUDA kernels, without a GPU: there was none, so NOTHING HERE RUNS THEM ON ONE.

| what is tested                             | how                                            |
|--------------------------------------------|------------------------------------------------|
| their arithmetic, for teams of any size    | the same code, compiled for the CPU            |
| their barriers                             | the same, under a checker of threads           |
| launches, memory of the device, speed      | not at all                                     |
"""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from operator_feeds import (
    Array,
    Arrays,
    evaluate,
    matrix_feeds,
    mix_feeds,
    needs_kernels,
    rng,
    skew,
    token_feeds,
)
from scipy.linalg import expm

from serve.native.build import includes

HOST_FORM = Path(__file__).parent / "cuda_host.cpp"
SIZES = (1, 2, 3, 8, 16, 22, 33, 64)
TOLERANCES = {np.float32: 3e-6, np.float64: 2e-12}
HostForm = Callable[..., Array]


def compile_host_form(made: Path, *flags: str) -> Path:
    """The device code for the CPU, by the ordinary C++ compiler; skips where there is none."""
    compiler = next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        pytest.skip("no C++ compiler was found")
    command = [
        compiler,
        "-std=c++17",
        "-O2",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-Werror",
        *includes(),
    ]
    subprocess.run([*command, *flags, str(HOST_FORM), "-o", str(made)], check=True, timeout=300)
    return made


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> HostForm:
    """`host(operator, feeds, threads)`: what the device code gives on the CPU."""
    made = tmp_path_factory.mktemp("cuda") / "host.so"
    handle = ctypes.CDLL(str(compile_host_form(made, "-shared", "-fPIC")))

    def run(operator: str, feeds: Arrays, threads: int = 1) -> Array:
        given = [np.ascontiguousarray(a) for a in feeds.values()]
        first = given[0]
        real = "f64" if first.dtype == np.float64 else "f32"
        name = {"MixStep": f"mix_{real}", "SampleToken": "sample"}.get(operator, f"exp_{real}")
        sampled = operator == "SampleToken"
        out = np.full(len(first), -2) if sampled else np.full_like(first, 77)
        addresses = [ctypes.c_void_p(a.ctypes.data) for a in [*given, out]]
        if operator == "MatrixExp":
            addresses.insert(0, ctypes.c_void_p(None))
        sizes = [ctypes.c_ssize_t(len(first)), ctypes.c_ssize_t(first.shape[-1])]
        getattr(handle, name)(ctypes.c_int(threads), *addresses, *sizes)
        return out

    return run


# --- the arithmetic


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("norm", [0.0, 1e-5, 0.1, 1.0, 3.0, 10.0])
def test_exp_of_skew_matrices_is_scipys(host: HostForm, d: int, norm: float, dtype: Any) -> None:
    S = skew(3, d, norm, dtype)
    expected = np.stack([expm(M.astype(np.float64)) for M in S])
    assert np.abs(host("MatrixExp", {"S": S}) - expected).max() <= TOLERANCES[dtype] / 3


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("d", SIZES)
def test_exp_of_any_square_matrix_is_scipys(host: HostForm, d: int, dtype: Any) -> None:
    S = rng(d, 9).standard_normal((6, d, d)) * np.array([0.01, 0.1, 0.3, 1, 2, 3])[:, None, None]
    S = (S / np.sqrt(d)).astype(dtype)
    for M, E in zip(S, host("MatrixExp", {"S": S}), strict=True):
        expected = expm(M.astype(np.float64))
        assert np.abs(E - expected).max() <= TOLERANCES[dtype] * np.abs(expected).max()


def test_exp_of_nilpotent_and_defective_matrices_is_scipys_too(host: HostForm) -> None:
    S = np.triu(np.ones((1, 6, 6)), 1)
    for M in (S, S + 2 * np.eye(6)):
        found = host("MatrixExp", {"S": M})
        np.testing.assert_allclose(found[0], expm(M[0]), rtol=1e-12, atol=1e-12)


@needs_kernels
@pytest.mark.parametrize("operator", ["MatrixExp", "OrthoStep", "MixStep"])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("d", SIZES)
def test_matrices_are_those_of_the_cpu_kernels(
    host: HostForm, operator: str, d: int, dtype: Any
) -> None:
    feeds = matrix_feeds(operator, 9, d, dtype)
    if operator == "MixStep" and d == 1:  # no model has it, and nothing moves
        expected = feeds["H"]
    else:
        expected = evaluate("native", operator, feeds)
    np.testing.assert_allclose(host(operator, feeds), expected, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("d", [2, 5, 16, 22])
def test_a_mixed_step_is_the_formula(host: HostForm, d: int) -> None:
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
@pytest.mark.parametrize("d", [1, 3, 16, 22])
@pytest.mark.parametrize("threads", [2, 7])
def test_a_team_of_any_size_gives_the_same_bits(
    host: HostForm, operator: str, dtype: Any, d: int, threads: int
) -> None:
    feeds = matrix_feeds(operator, 11, d, dtype)
    np.testing.assert_array_equal(host(operator, feeds, threads), host(operator, feeds))


@pytest.mark.parametrize("operator", ["MatrixExp", "OrthoStep", "MixStep"])
def test_batch_mates_never_show_in_the_bits(host: HostForm, operator: str) -> None:
    feeds = matrix_feeds(operator, 19, 13)
    whole = host(operator, feeds)
    for rows in (slice(0, 1), slice(6, 12), slice(18, 19)):
        some = {n: a if n == "G" else a[rows] for n, a in feeds.items()}
        np.testing.assert_array_equal(host(operator, some), whole[rows])


def test_each_matrix_is_halved_for_itself(host: HostForm) -> None:
    norms = np.array([0.1, 7.0, 300.0, 2.0])[:, None, None]
    S = (skew(4, 9, 1.0) * norms).astype(np.float32)
    whole = host("MatrixExp", {"S": S})
    alone = [host("MatrixExp", {"S": S[b : b + 1]})[0] for b in range(4)]
    np.testing.assert_array_equal(whole, alone)


@pytest.mark.parametrize("operator", ["MatrixExp", "OrthoStep", "MixStep"])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_broken_matrix_is_nan_and_leaves_the_others_alone(
    host: HostForm, operator: str, dtype: Any, broken: float
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
def test_the_sampler_takes_the_characters_of_the_cpu_kernel(host: HostForm, V: int) -> None:
    feeds = token_feeds(397, V)
    expected = evaluate("native", "SampleToken", feeds)
    found = host("SampleToken", feeds)
    # A uniform within rounding of a border may fall on either side of it
    assert (found != expected).sum() <= 1
    for threads in (3, 8):
        np.testing.assert_array_equal(host("SampleToken", feeds, threads), found)


@needs_kernels
def test_ties_go_to_the_lower_index_in_cuts_too(host: HostForm) -> None:
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
    host: HostForm,
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


def test_what_is_forbidden_is_never_drawn(host: HostForm) -> None:
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
