"""The ordered real Schur form W = Q T Q^T and its couplings (Draeger, arXiv 2606.18457, section 2).

- float64 throughout; T = B + N: B holds the 1x1 and 2x2 eigenvalue blocks, N the couplings.
- Every block is placed, by non-increasing eigenvalue modulus, not only the two sectors: the norms
  of N's parts depend on the order inside a sector.
- Moduli that differ by less than `TIE` are a tie. In a tie the larger real part stands first, then
  the larger imaginary part, so that the order doesn't hang on the LAPACK that computed it.
- A tie is never cut by the R/C split: a cluster of which one block belongs to R is in R as a whole.
- Nor is a cluster that only rounding spreads: eigenvalues that move by more than their distance
  under a change of W of the size of rounding, such as those of a defective matrix, tie too.

Letters: n matrix size; W, Q, T (n, n); R leading sector, C complement, n_R and n_C their rows.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are first used: see serve.ablation.algebra
from numpy.typing import NDArray

from serve.ablation.conditioning import modulus_moves
from serve.ablation.lapack import real_schur
from serve.ablation.norm import frobenius, rounding
from serve.wire.responses import Spectrum

Floats = NDArray[np.float64]

TIE = 1e-6  # relative; rounding an orthogonal matrix to float32 spreads its moduli by some 1e-7
BACKWARD_LIMIT = 1e-12  # above it the form is reported as inexact
COUPLINGS = ("RR", "C→R", "CC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One eigenvalue block of T."""

    start: int  # first row
    size: int  # 1: real eigenvalue, 2: complex pair
    eigenvalue: complex  # of a pair, the one with positive imaginary part

    @property
    def modulus(self) -> float:
        """|lambda|, the same for both eigenvalues of a pair."""
        return math.hypot(self.eigenvalue.real, self.eigenvalue.imag)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schur:
    """W = Q T Q^T, blocks by non-increasing modulus, and how far to trust it."""

    T: Floats  # (n, n), zero below its blocks
    Q: Floats  # (n, n), orthogonal
    blocks: tuple[Block, ...]
    norm: float  # ||W||_F
    backward_error: float  # ||W - Q T Q^T||_F / ||W||_F, 0 for the zero matrix
    orthogonality: float  # ||Q^T Q - I||_F
    moves: Floats  # (blocks,) by how much rounding may change each modulus
    warnings: tuple[str, ...]

    @property
    def eigenvalues(self) -> tuple[complex, ...]:
        """n eigenvalues in row order; of a pair, a + bi before a - bi."""
        pairs = ((b.eigenvalue, b.eigenvalue.conjugate())[: b.size] for b in self.blocks)
        return tuple(value for pair in pairs for value in pair)

    @property
    def rho(self) -> float:
        """The spectral radius max |lambda|."""
        return max(block.modulus for block in self.blocks)


def ordered_schur(W: NDArray[Any]) -> Schur:
    """W = Q T Q^T with the blocks of T ordered by non-increasing eigenvalue modulus.

    A swap that LAPACK refuses, because the two blocks are too close to be told apart, leaves them
    as they stand and is named in `warnings`. Raises `ValueError` for a matrix that isn't square,
    real and finite, and where the eigenvalue iteration doesn't converge.
    """
    A = _checked(W)  # (n, n)
    # An exact power of two: norms and rotations of huge or tiny entries neither over- nor underflow
    exponent = math.frexp(float(np.abs(A).max()))[1]
    A = np.ldexp(A, -exponent)
    T, Q = real_schur(A)
    refused = _sort(T, Q)
    blocks = _blocks(T)
    moduli = np.array([block.modulus for block in blocks])
    starts, tolerances = [block.start for block in blocks], _tolerances(blocks, frobenius(T))
    moves = np.ldexp(modulus_moves(T, starts, moduli, tolerances), exponent)
    error = frobenius(A - Q @ T @ Q.T) / (frobenius(A) or 1.0)
    with np.errstate(over="ignore"):  # looked at in the next line
        T, norm = np.ldexp(T, exponent), float(np.ldexp(frobenius(A), exponent))
    if not (np.isfinite(T).all() and math.isfinite(norm)):
        raise ValueError("the matrix's norm is beyond float64; scale its entries down")
    T.flags.writeable = Q.flags.writeable = False
    return Schur(
        T=T,
        Q=Q,
        blocks=(blocks := _blocks(T)),
        norm=norm,
        backward_error=error,
        orthogonality=frobenius(Q.T @ Q - np.eye(len(Q))),
        moves=moves,
        warnings=(*refused, *_doubts(blocks, norm, error)),
    )


def split(schur: Schur, alpha: float) -> int:
    """n_R, the leading rows of R = {i : |lambda_i| >= alpha rho(W)}, whole blocks and whole ties.

    Raises `ValueError` unless 0 < alpha <= 1.
    """
    last = schur.blocks[int(np.flatnonzero(_in_R(schur, alpha))[-1])]
    return last.start + last.size


def spectrum(schur: Schur, alpha: float) -> Spectrum:
    """What `schur` and its split at alpha say of W.

    Warns where a tie kept blocks in R that the plain rule |lambda| >= alpha rho would not. Raises
    `ValueError` unless 0 < alpha <= 1.
    """
    n_R = split(schur, alpha)
    masks = couplings(schur, n_R)
    return Spectrum(
        alpha=alpha,
        n_R=n_R,
        n_C=len(schur.T) - n_R,
        rho=schur.rho,
        eigenvalues=schur.eigenvalues,
        block_sizes=tuple(block.size for block in schur.blocks),
        masses={x: frobenius(schur.T[mask]) / (schur.norm or 1.0) for x, mask in masks.items()},
        backward_error=schur.backward_error,
        warnings=(*schur.warnings, *_boundary(schur, alpha)),
    )


def couplings(schur: Schur, n_R: int) -> dict[str, NDArray[np.bool_]]:
    """Masks (n, n) of RR, C→R (the upper right part of T) and CC; disjoint, together N.

        N = [[RR, C→R], [0, CC]]    strictly above the eigenvalue blocks

    Raises `ValueError` if n_R would cut a block.
    """
    sizes = [block.size for block in schur.blocks]
    if n_R not in (0, *np.cumsum(sizes)):
        raise ValueError(f"found n_R = {n_R}, which cuts a block; expected a value of split()")
    of_row = np.repeat(np.arange(len(sizes)), sizes)
    N = of_row[:, None] < of_row[None, :]
    in_R = np.arange(len(of_row)) < n_R
    rows, columns = in_R[:, None], in_R[None, :]
    return {"RR": N & rows & columns, "C→R": N & rows & ~columns, "CC": N & ~rows & ~columns}


def _checked(W: NDArray[Any]) -> Floats:
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise ValueError(f"found shape {W.shape}, expected a square matrix (n, n) with n >= 1")
    if W.dtype.kind not in "fiu":
        raise ValueError(f"found dtype {W.dtype}, expected real numbers")
    A = np.array(W, np.float64)
    if not np.isfinite(A).all():
        raise ValueError("found NaN or infinite entries, expected finite numbers")
    return A


def _blocks(T: Floats) -> tuple[Block, ...]:
    starts = [int(start) for start in _starts(T)]
    ends = [*starts[1:], len(T)]
    return tuple(_block(T, a, b - a) for a, b in zip(starts, ends, strict=True))


def _starts(T: Floats) -> NDArray[np.intp]:
    return np.flatnonzero(np.concatenate(([True], np.diagonal(T, -1) == 0.0)))


def _block(T: Floats, start: int, size: int) -> Block:
    # LAPACK's standard form of a pair is [[a, b], [c, a]] with b c < 0
    a, imaginary = float(T[start, start]), 0.0
    if size == 2:
        b, c = float(T[start, start + 1]), float(T[start + 1, start])
        imaginary = math.sqrt(abs(b)) * math.sqrt(abs(c))
    return Block(start=start, size=size, eigenvalue=complex(a, imaginary))


def _tolerances(blocks: tuple[Block, ...], norm: float) -> Floats:
    rows = blocks[-1].start + blocks[-1].size
    # Eigenvalues as small as rounding error of the whole matrix: all of them tie
    return TIE * np.array([block.modulus for block in blocks]) + rounding(rows, norm)


def _refine(labels: NDArray[np.intp], values: Floats, tolerances: Floats) -> NDArray[np.intp]:
    # Cuts each cluster wherever its sorted values leave a gap; label 0 has the largest values
    order = np.lexsort((-values, labels))
    wider = np.maximum(tolerances[order][:-1], tolerances[order][1:])
    gap = -np.diff(values[order]) > wider
    cut = (np.diff(labels[order]) > 0) | gap
    refined = np.empty_like(labels)
    refined[order] = np.concatenate(([0], np.cumsum(cut)))
    return refined


def _clusters(blocks: tuple[Block, ...], norm: float) -> NDArray[np.intp]:
    moduli = np.array([block.modulus for block in blocks])
    return _refine(np.zeros(len(blocks), np.intp), moduli, _tolerances(blocks, norm))


def _ranks(blocks: tuple[Block, ...], norm: float) -> list[int]:
    tolerances = _tolerances(blocks, norm)
    labels = _clusters(blocks, norm)
    labels = _refine(labels, np.array([b.eigenvalue.real for b in blocks]), tolerances)
    labels = _refine(labels, np.array([b.eigenvalue.imag for b in blocks]), tolerances)
    ranks = np.empty_like(labels)
    ranks[np.argsort(labels, kind="stable")] = np.arange(len(labels))
    return [int(rank) for rank in ranks]


def _sort(T: Floats, Q: Floats) -> list[str]:
    refused: list[str] = []
    while not _selection_sort(T, Q, refused):
        pass  # once more for each pair that fell apart, so at most n / 2 times
    return refused


def _selection_sort(T: Floats, Q: Floats, refused: list[str]) -> bool:
    blocks = _blocks(T)
    ranks, sizes = _ranks(blocks, frobenius(T)), [block.size for block in blocks]
    place = 0
    while place < len(sizes):
        at = min(range(place, len(sizes)), key=ranks.__getitem__)
        while at > place and _lift(T, Q, at, ranks, sizes, refused):
            at -= 1
        if at == place:
            place += 1
        if len(_starts(T)) != len(sizes):
            return False  # a pair fell into two real eigenvalues
    return True


def _lift(
    T: Floats, Q: Floats, at: int, ranks: list[int], sizes: list[int], refused: list[str]
) -> bool:
    # One neighbour at a time: dtrexc stops part of the way at a refusal, and its Python form
    # doesn't return where. Rows count from 1. T and Q are changed in place.
    above = sum(sizes[: at - 1])
    below = above + sizes[at - 1]
    info = scipy.linalg.lapack.dtrexc(T, Q, below + 1, above + 1, overwrite_a=1, overwrite_q=1)[2]
    assert info in (0, 1), f"dtrexc: argument {-info} is wrong"
    if info == 1:
        ranks[at - 1] = ranks[at]  # the upper block goes on first, the lower one follows it
        refused.append(f"refused swap: blocks at rows {above} and {below} are too close")
        return False
    ranks[at - 1], ranks[at] = ranks[at], ranks[at - 1]
    sizes[at - 1], sizes[at] = sizes[at], sizes[at - 1]
    moved = ((above, sizes[at - 1]), (above + sizes[at - 1], sizes[at]))
    return all(size == 1 or T[start + 1, start] != 0.0 for start, size in moved)


def _in_R(schur: Schur, alpha: float) -> NDArray[np.bool_]:
    if not 0.0 < alpha <= 1.0:
        raise ValueError(f"found alpha = {alpha}, expected 0 < alpha <= 1")
    moduli = np.array([block.modulus for block in schur.blocks])
    tolerances = np.maximum(_tolerances(schur.blocks, schur.norm), schur.moves)
    clusters = _refine(np.zeros(len(moduli), np.intp), moduli, tolerances)
    lowest = int(clusters[moduli + tolerances >= alpha * schur.rho].max())
    return np.less_equal(clusters, lowest)


def _boundary(schur: Schur, alpha: float) -> list[str]:
    threshold, in_R = alpha * schur.rho, _in_R(schur, alpha)
    moduli = np.array([block.modulus for block in schur.blocks])
    across = np.abs(moduli - threshold) <= schur.moves
    loose = schur.moves[across & (schur.moves > _tolerances(schur.blocks, schur.norm))]
    if len(loose):
        return [
            f"ill-conditioned split: rounding moves the moduli of {len(loose)} blocks by up to "
            f"{loose.max():.3g}, across alpha * rho = {threshold:.9g}; the cluster is kept in R"
        ]
    below = moduli[in_R & (moduli < threshold)]
    if not len(below):
        return []
    return [
        f"tie at the R/C boundary: {len(below)} blocks with moduli from {min(below):.9g} are below "
        f"alpha * rho = {threshold:.9g}, but tie with it or with blocks above; kept in R"
    ]


def _doubts(blocks: tuple[Block, ...], norm: float, error: float) -> list[str]:
    doubts = []
    if (np.diff(_clusters(blocks, norm)) < 0).any():
        doubts.append("order: eigenvalues moved while their blocks were ordered (defective?)")
    if error > BACKWARD_LIMIT:
        doubts.append(f"inexact: backward error {error:.3g} is above {BACKWARD_LIMIT:g}")
    return doubts
