"""The ordered real Schur form, its split and its couplings."""

import threading
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from serve.ablation.lapack import eigenvalue_conditions, real_schur
from serve.ablation.norm import frobenius
from serve.ablation.schur import TIE, Schur, couplings, ordered_schur, spectrum, split

DTREXC = scipy.linalg.lapack.dtrexc

Matrix = NDArray[np.float64]


def random_matrix(n: int, seed: int) -> Matrix:
    return np.random.default_rng(seed).normal(0.0, n**-0.5, (n, n))


def orthogonal(n: int, seed: int = 0) -> Matrix:
    return np.asarray(np.linalg.qr(random_matrix(n, seed))[0])


def rotated(W: Any) -> Matrix:
    Q = orthogonal(len(W))
    return np.asarray(Q @ W @ Q.T, np.float64)


def jordan(value: float, n: int) -> Matrix:
    return value * np.eye(n) + np.eye(n, k=1)


def turn(modulus: float, angle: float) -> Matrix:
    c, s = modulus * np.cos(angle), modulus * np.sin(angle)
    return np.array([[c, -s], [s, c]])


def block_diagonal(*blocks: Any) -> Matrix:
    return np.asarray(scipy.linalg.block_diag(*blocks), np.float64)


def moduli(schur: Schur) -> Matrix:
    return np.array([block.modulus for block in schur.blocks])


def eigenvalue_distance(found: Any, expected: Any) -> float:
    costs = np.abs(np.asarray(found)[:, None] - np.asarray(expected)[None, :])
    distance = 0.0
    for _ in range(len(costs)):  # nearest pairs first
        i, j = np.unravel_index(int(np.argmin(costs)), costs.shape)
        distance = max(distance, float(costs[i, j]))
        costs = np.delete(np.delete(costs, i, 0), j, 1)
    return distance


def check(W: NDArray[Any], schur: Schur) -> None:
    """What holds for every matrix: W = Q T Q^T, Q orthogonal, T in whole blocks, in order."""
    n = len(W)
    A = np.asarray(W, np.float64)
    assert schur.backward_error <= 1e-15 * (n + 10)
    assert frobenius(A - schur.Q @ schur.T @ schur.Q.T) <= 1e-15 * (n + 10) * schur.norm
    assert schur.orthogonality <= 2e-15 * (n + 10)
    assert schur.norm == pytest.approx(frobenius(A), rel=1e-14)
    assert [b.start for b in schur.blocks] == [0, *np.cumsum([b.size for b in schur.blocks])[:-1]]
    assert sum(block.size for block in schur.blocks) == n == len(schur.eigenvalues)
    inside = np.zeros((n, n), bool)
    for block in schur.blocks:
        rows = slice(block.start, block.start + block.size)
        inside[rows, rows] = True
        assert (block.eigenvalue.imag > 0.0) == (block.size == 2)
    assert not np.tril(np.where(inside, 0.0, schur.T)).any()
    slack = TIE * moduli(schur)[:-1] + 1e-15 * n * schur.norm
    assert (np.diff(moduli(schur)) <= slack).all()


HARD: dict[str, NDArray[Any]] = {
    "one by one": np.array([[-3.0]]),
    "identity": np.eye(5),
    "minus identity": -np.eye(4),
    "zero": np.zeros((3, 3)),
    "zero, one by one": np.zeros((1, 1)),
    "rotation": turn(1.0, 1.0),
    "cycle": np.roll(np.eye(7), 1, axis=0),
    "two cycles": block_diagonal(np.roll(np.eye(3), 1, axis=0), np.roll(np.eye(4), 1, axis=0)),
    "orthogonal": orthogonal(24),
    "orthogonal in float32": orthogonal(24).astype(np.float32),
    "jordan": jordan(0.9, 6),
    "jordan, rotated": rotated(jordan(0.9, 6)),
    "two jordan blocks, rotated": rotated(block_diagonal(jordan(1.0, 3), jordan(-1.0, 3))),
    "nilpotent": np.eye(5, k=1),
    "nilpotent, rotated": rotated(np.eye(5, k=1)),
    "rank one": np.outer(np.arange(6.0), np.ones(6)),
    "repeated pair": block_diagonal(*[turn(0.8, 0.5)] * 3),
    "repeated pair, coupled": block_diagonal(*[turn(0.8, 0.5)] * 3) + np.triu(np.ones((6, 6)), 2),
    "increasing diagonal": np.diag(np.arange(1.0, 9.0)) + np.triu(np.ones((8, 8)), 1),
    "badly scaled": np.array([[1.0, 1e150], [1e-150, 2.0]]),
    "graded": np.diag(10.0 ** np.arange(-20, 20, 5)) @ random_matrix(8, 1),
    "huge": 1e307 * random_matrix(6, 2),
    "tiny": 1e-300 * random_matrix(6, 3),
    "integers": np.arange(9).reshape(3, 3),
    "not contiguous": random_matrix(10, 4)[::2, ::2],
}


@pytest.mark.parametrize("name", HARD)
def test_every_hard_matrix_is_reconstructed_and_ordered(name: str) -> None:
    schur = ordered_schur(HARD[name])
    check(HARD[name], schur)
    assert schur.warnings == ()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(0, 10_000), st.sampled_from([np.float32, np.float64]))
def test_random_matrices_are_reconstructed_ordered_and_keep_their_spectrum(
    n: int, seed: int, dtype: type[np.floating[Any]]
) -> None:
    W = random_matrix(n, seed).astype(dtype)
    before = W.copy()
    schur = ordered_schur(W)
    check(W, schur)
    assert np.array_equal(W, before)
    expected = np.linalg.eigvals(W.astype(np.float64))
    assert eigenvalue_distance(schur.eigenvalues, expected) < 1e-6
    assert schur.rho == pytest.approx(np.abs(expected).max())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.5, 0.9, 1.0]), st.sampled_from([0.0, 1e-9, 1e-5, 0.3, 3.0])),
        min_size=1,
        max_size=6,
    ),
    st.integers(-3, 5),
    st.booleans(),
)
def test_repeated_and_nearly_defective_pairs_are_reconstructed(
    pairs: list[tuple[float, float]], exponent: int, rotate: bool
) -> None:
    B = block_diagonal(*[turn(modulus, angle) for modulus, angle in pairs])
    W = B + 10.0**exponent * np.triu(random_matrix(len(B), 5), 2)
    schur = ordered_schur(rotated(W) if rotate else W)
    assert schur.backward_error < 1e-13
    assert schur.orthogonality < 1e-13
    assert sum(block.size for block in schur.blocks) == len(W)


def test_a_large_matrix_is_ordered() -> None:
    W = random_matrix(512, 6)
    check(W, ordered_schur(W))


def test_a_result_can_be_shared_because_it_is_read_only() -> None:
    schur = ordered_schur(random_matrix(4, 7))
    with pytest.raises(ValueError, match="read-only"):
        schur.T[0, 0] = 0.0


def test_ties_stand_in_an_order_that_the_incoming_order_does_not_change() -> None:
    blocks = [turn(1.0, 2.0), [[-1.0]], turn(1.0, 0.5), [[1.0]], turn(0.5, 1.0), [[0.5]]]
    expected = [1.0, np.exp(0.5j), np.exp(2.0j), -1.0, 0.5, 0.5 * np.exp(1.0j)]
    rng = np.random.default_rng(8)
    for _ in range(6):
        W = block_diagonal(*[blocks[i] for i in rng.permutation(len(blocks))])
        for matrix in (W, rotated(W)):
            found = [block.eigenvalue for block in ordered_schur(matrix).blocks]
            assert np.allclose(found, expected, atol=1e-12)


def test_moduli_that_differ_by_more_than_a_tie_are_ordered_by_modulus() -> None:
    schur = ordered_schur(np.diag([-1.0, 1.0 - 3 * TIE, -1.0 - 3 * TIE, 1.0 + TIE / 2]))
    found = np.array(schur.eigenvalues).real
    assert np.allclose(found, [-1.0 - 3 * TIE, 1.0 + TIE / 2, -1.0, 1.0 - 3 * TIE], atol=1e-12)


def test_eigenvalues_below_rounding_error_of_the_matrix_tie() -> None:
    schur = ordered_schur(np.diag([1e-20, 1.0, -1e-19]))
    assert schur.eigenvalues == (1.0, 1e-20, -1e-19)


def test_couplings_are_disjoint_cover_n_and_hold_no_eigenvalue_block() -> None:
    schur = ordered_schur(random_matrix(20, 9))
    N = np.triu(np.ones((20, 20), bool), 1)
    for block in schur.blocks:
        N[block.start : block.start + block.size, block.start : block.start + block.size] = False
    for alpha in (0.2, 0.5, 0.9, 1.0):
        masks = couplings(schur, split(schur, alpha))
        assert list(masks) == ["RR", "C→R", "CC"]
        assert np.array_equal(sum(mask.astype(int) for mask in masks.values()), N.astype(int))


def test_couplings_lie_where_the_paper_puts_them() -> None:
    schur = ordered_schur(np.diag([4.0, 3.0, 2.0, 1.0]))
    masks = couplings(schur, 2)
    places = {name: np.argwhere(mask).tolist() for name, mask in masks.items()}
    assert places == {"RR": [[0, 1]], "C→R": [[0, 2], [0, 3], [1, 2], [1, 3]], "CC": [[2, 3]]}


@pytest.mark.parametrize("n_R", [-1, 1, 5])
def test_a_split_through_a_block_is_refused(n_R: int) -> None:
    schur = ordered_schur(block_diagonal(turn(1.0, 1.0), turn(0.5, 1.0)))
    with pytest.raises(ValueError, match="cuts a block"):
        couplings(schur, n_R)


def test_the_split_counts_both_rows_of_a_pair_and_takes_the_threshold_in() -> None:
    schur = ordered_schur(block_diagonal(turn(2.0, 1.0), [[1.8]], turn(1.0, 2.0), [[0.5]]))
    assert [split(schur, a) for a in (1.0, 0.95, 0.9, 0.5, 0.49, 0.25)] == [2, 2, 3, 5, 5, 6]


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.0001, float("nan"), float("inf")])
def test_alpha_outside_its_range_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        split(ordered_schur(np.eye(2)), alpha)


def test_a_tie_at_the_boundary_is_kept_whole_and_reported() -> None:
    W = np.diag([2.0, 1.8 * (1 + TIE / 4), -1.8 * (1 - TIE / 4), 1.8 * (1 - TIE), 1.0])
    for matrix in (W, rotated(W)):
        found = spectrum(ordered_schur(matrix), 0.9)
        assert (found.n_R, found.n_C) == (4, 1)
        assert len(found.warnings) == 1
        assert "tie at the R/C boundary: 2 blocks" in found.warnings[0]


def test_a_threshold_between_two_moduli_gives_no_warning() -> None:
    assert spectrum(ordered_schur(np.diag([2.0, 1.5, 1.0])), 0.6).warnings == ()


@pytest.mark.parametrize("alpha", [0.5, 0.9, 1.0])
def test_an_orthogonal_matrix_is_all_leading_at_every_threshold(alpha: float) -> None:
    for W in (orthogonal(16), orthogonal(16).astype(np.float32), np.eye(16), np.zeros((3, 3))):
        assert split(ordered_schur(W), alpha) == len(W)


def test_a_spectrum_weighs_the_couplings() -> None:
    W = np.array([[2.0, 3.0, 0.0], [0.0, 1.0, 4.0], [0.0, 0.0, 0.5]])
    found = spectrum(ordered_schur(W), 0.9)
    norm = np.linalg.norm(W)
    assert (found.n_R, found.n_C, found.rho, found.block_sizes) == (1, 2, 2.0, (1, 1, 1))
    assert found.masses == pytest.approx({"RR": 0.0, "C→R": 3.0 / norm, "CC": 4.0 / norm})
    assert found.eigenvalues == (2.0, 1.0, 0.5)


def test_swaps_that_lapack_refuses_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(T: Matrix, Q: Matrix, *rows: int, **options: int) -> tuple[Matrix, Matrix, int]:
        del rows, options
        return T, Q, 1

    monkeypatch.setattr(scipy.linalg.lapack, "dtrexc", refuse)
    schur = ordered_schur(np.diag([1.0, 2.0, 3.0]))
    assert schur.eigenvalues == (1.0, 2.0, 3.0)
    assert schur.warnings[0] == "refused swap: blocks at rows 1 and 2 are too close"
    assert schur.warnings[-1].startswith("order:")


def test_a_single_refused_swap_takes_its_upper_block_along_and_orders_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused: list[int] = []

    def refuse_once(T: Matrix, Q: Matrix, *rows: int, **options: int) -> Any:
        if not refused:
            refused.extend(rows)
            return T, Q, 1
        return DTREXC(T, Q, *rows, **options)

    monkeypatch.setattr(scipy.linalg.lapack, "dtrexc", refuse_once)
    schur = ordered_schur(np.diag([1.0, 2.0, 2.5, 4.0, 3.0]))
    assert refused == [4, 3]
    assert schur.eigenvalues == (2.5, 4.0, 3.0, 2.0, 1.0)
    assert schur.warnings[0] == "refused swap: blocks at rows 2 and 3 are too close"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_entries_that_are_not_finite_are_refused(bad: float) -> None:
    W = np.eye(3)
    W[1, 2] = bad
    with pytest.raises(ValueError, match="expected finite numbers"):
        ordered_schur(W)


@pytest.mark.parametrize("shape", [(2, 3), (4,), (0, 0), (2, 2, 2)])
def test_only_square_matrices_are_taken(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected a square matrix"):
        ordered_schur(np.zeros(shape))


def test_complex_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match="expected real numbers"):
        ordered_schur(np.eye(2, dtype=complex))


def test_a_norm_beyond_float64_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond float64"):
        ordered_schur(np.full((4, 4), 1e308))


# Clusters that only rounding spreads


def defective(multiplicity: int, seed: int | None) -> Matrix:
    """Eigenvalues 1, 0.9 in one Jordan block, and some below; rotated by a seed."""
    W = block_diagonal(1.0, jordan(0.9, multiplicity), np.diag(np.linspace(0.1, 0.6, 7)))
    Q = np.eye(len(W)) if seed is None else orthogonal(len(W), seed)
    return np.asarray(Q @ W @ Q.T, np.float64)


@pytest.mark.parametrize("multiplicity", [4, 8])  # of a pair, rounding moves less than a tie
@pytest.mark.parametrize("seed", [None, *range(5)])
def test_a_defective_cluster_is_never_cut(multiplicity: int, seed: int | None) -> None:
    found = spectrum(ordered_schur(defective(multiplicity, seed)), 0.9)
    assert (found.n_R, found.n_C) == (1 + multiplicity, 7)
    assert any("ill-conditioned split" in warning for warning in found.warnings)


@pytest.mark.parametrize(("alpha", "n_R"), [(0.97, 1), (0.75, 9), (0.55, 10)])
def test_a_split_far_from_a_defective_cluster_has_no_doubts(alpha: float, n_R: int) -> None:
    found = spectrum(ordered_schur(defective(8, 0)), alpha)
    assert found.n_R == n_R
    assert not any("ill-conditioned" in warning for warning in found.warnings)


@pytest.mark.parametrize("seed", range(3))
def test_eigenvalues_of_a_symmetric_matrix_are_firm(seed: int) -> None:
    A = random_matrix(30, seed)
    form = ordered_schur(A + A.T)
    np.testing.assert_allclose(eigenvalue_conditions(form.T), 1.0)
    assert form.moves.max() <= 1e-12


def test_condition_numbers_are_those_of_unit_eigenvectors() -> None:
    T = ordered_schur(random_matrix(20, 1)).T
    found: Any = scipy.linalg.eig(T, left=True, right=True)
    values, left, right = found
    expected = np.abs(np.sum(left.conj() * right, axis=0))
    places = np.argmin(np.abs(np.subtract.outer(ordered_schur(T).eigenvalues, values)), axis=1)
    np.testing.assert_allclose(eigenvalue_conditions(T), expected[places], rtol=1e-6)


# LAPACK without the interpreter's lock


@pytest.mark.parametrize("n", [1, 2, 3, 31, 130])
def test_the_schur_form_has_the_bits_of_scipys(n: int) -> None:
    A = random_matrix(n, n)
    for found, expected in zip(real_schur(A), scipy.linalg.schur(A, output="real"), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_other_threads_run_while_lapack_computes() -> None:
    """With the interpreter's lock held, the other one would wake up once or twice."""
    A, woken, ended = random_matrix(600, 0), [0], threading.Event()
    T, _ = real_schur(A)  # what is imported late is not what is asked about

    def wake() -> None:
        while not ended.wait(0.001):
            woken[0] += 1

    thread = threading.Thread(target=wake)
    thread.start()
    for compute in (lambda: real_schur(A), lambda: eigenvalue_conditions(T)):
        before = woken[0]
        compute()
        assert woken[0] - before >= 5
    ended.set()
    thread.join()
