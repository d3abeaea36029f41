"""The Frobenius norm of matrices, and the size of the rounding errors that go with it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def frobenius(A: NDArray[Any]) -> float:
    """||A||_F in float64, without overflow or underflow on the way."""
    scale = float(np.abs(A).max(initial=0.0))
    if scale == 0.0:
        return 0.0
    return scale * float(np.linalg.norm(np.asarray(A, np.float64) / scale))


def rounding(rows: int, norm: float) -> float:
    """n ε ‖T‖_F, the size of LAPACK's rounding error in a matrix of this norm."""
    return rows * float(np.finfo(np.float64).eps) * norm
