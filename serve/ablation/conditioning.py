"""Conditioning of eigenvalues: by how much rounding may move their moduli.

To first order an eigenvalue moves by at most ‖E‖ / s under a change E of T, with its condition
number 1/s. A cluster of m, as a defective matrix has, moves by the m-th root, so where the first
order is no longer small the moduli of T + E are looked at, for random E of the size of rounding.

Letters: n matrix size; T (n, n) a Schur form; ε machine epsilon.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serve.ablation.lapack import eigenvalue_conditions
from serve.ablation.norm import frobenius, rounding

Floats = NDArray[np.float64]

SAMPLES = 3  # random changes
SAFETY = 2.0  # above the largest move that was seen


def modulus_moves(T: Floats, starts: Sequence[int], moduli: Floats, tolerances: Floats) -> Floats:
    """By how much rounding may move the modulus of each block, whose first rows are `starts`.

    The blocks stand by non-increasing `moduli`. Moves up to `tolerances` are taken to be small.
    """
    size = rounding(len(T), frobenius(T))
    with np.errstate(divide="ignore", invalid="ignore"):
        moves = np.nan_to_num(size / eigenvalue_conditions(T)[starts], posinf=np.inf)
    loose = moves > tolerances
    if not loose.any():
        return moves
    seen = _sampled_moves(T, size)[starts]
    reach = 2.0 * SAFETY * float(seen[loose].max())
    near = np.abs(moduli[:, None] - moduli[None, loose]) <= reach  # (blocks, loose ones)
    largest = SAFETY * np.where(near, seen[loose], 0.0).max(axis=1)
    return np.asarray(np.where(loose, np.maximum(largest, size), moves), np.float64)


def _sampled_moves(T: Floats, size: float) -> Floats:
    """The largest changes seen of the i-th largest modulus (n), under changes of T of a size."""
    generator, before = np.random.default_rng(0), _sorted_moduli(T)
    moves = np.zeros(len(T))
    for _ in range(SAMPLES):
        E = generator.standard_normal(T.shape)
        moved = _sorted_moduli(T + E * (size / frobenius(E)))
        moves = np.maximum(moves, np.abs(moved - before))
    return moves


def _sorted_moduli(T: Floats) -> Floats:
    return np.asarray(np.sort(np.abs(np.linalg.eigvals(T)))[::-1], np.float64)
