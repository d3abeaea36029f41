"""The algebras of the matrix groups in coordinates, and what g X g^-1 is there.

The inner product is <X, Y> = Re tr(X* Y), complex Z are kept as [[Re Z, -Im Z], [Im Z, Re Z]].

| algebra | orthonormal basis                                                                      |
|---------|----------------------------------------------------------------------------------------|
| `so`    | (E_ij - E_ji) / √2 for i < j, row by row                                               |
| `u`     | (E_ij - E_ji) / √2 for i < j, then i (E_ij + E_ji) / √2 for i < j, then i E_kk         |
| `su`    | that of `u` with i diag(1, ..., 1, -k, 0, ...) / √(k(k+1)) last, k = 1 ... d-1 ones    |

Letters: n size of the real matrices, d = n/2 of the complex ones, D dimension of the algebra.
"""

from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are first used: each costs a start 0.1 s
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ALGEBRAS = ("so", "u", "su")
ROOT = 0.5**0.5
PIECE = 256  # elements of a basis that are moved at once


def dimension(algebra: str, n: int) -> int:
    """D of an algebra of real n×n matrices."""
    return {"so": n * (n - 1) // 2, "u": n * n // 4, "su": n * n // 4 - 1}[algebra]


def adjoint(algebra: str, g: Floats) -> Floats:
    """The matrix (D, D) that takes the coordinates of X to those of g X gᵀ, g orthogonal (n, n)."""
    n, basis = len(g), _basis(algebra, len(g))  # (n², D)
    scale = 1.0 if algebra == "so" else 0.5  # Re tr(X* Y) over the sum of products
    columns = []
    for start in range(0, basis.shape[1], PIECE):
        X = basis[:, start : start + PIECE].toarray().T.reshape(-1, n, n)
        moved = (g @ X @ g.T).reshape(len(X), n * n)
        columns.append(scale * (basis.T @ moved.T))
    return np.concatenate(columns, axis=1)


def _basis(algebra: str, n: int) -> Any:
    """The basis as columns of a sparse matrix (n², D)."""
    if algebra == "so":
        return _pairs(n, -1.0).tocsc()
    d = n // 2
    k = np.arange(d)
    diagonal = scipy.sparse.csc_array((np.full(d, 1j), (k * (d + 1), k)), shape=(d * d, d))
    last = diagonal if algebra == "u" else scipy.sparse.csc_array(diagonal @ _traceless(d))
    return _real_form(scipy.sparse.hstack([_pairs(d, -1.0), 1j * _pairs(d, 1.0), last]).tocoo(), d)


def _pairs(n: int, sign: float) -> Any:
    """(E_ij + sign E_ji) / √2 for i < j: (n², n(n-1)/2)."""
    i, j = np.triu_indices(n, 1)
    k = np.arange(len(i))
    places = (np.concatenate([i * n + j, j * n + i]), np.concatenate([k, k]))
    values = np.repeat([ROOT, sign * ROOT], len(i))
    return scipy.sparse.coo_array((values, places), shape=(n * n, len(i)))


def _traceless(d: int) -> Floats:
    """Orthonormal columns of sum 0: (d, d-1)."""
    k = np.arange(1.0, d)
    columns = np.triu(np.ones((d, d - 1))) - np.diag(k, -1)[:, : d - 1]
    return columns / np.sqrt(k * (k + 1))


def _real_form(Z: Any, d: int) -> Any:
    """[[Re, -Im], [Im, Re]] of every column, a complex d×d matrix: (d², D) to (4d², D)."""
    n = 2 * d
    row, column = np.divmod(Z.row, d)
    parts = [(0, 0, Z.data.real), (d, d, Z.data.real), (d, 0, Z.data.imag), (0, d, -Z.data.imag)]
    places = np.concatenate([(row + down) * n + column + right for down, right, _ in parts])
    values = np.concatenate([value for _, _, value in parts])
    whole = (values, (places, np.tile(Z.col, len(parts))))
    return scipy.sparse.coo_array(whole, shape=(n * n, Z.shape[1])).tocsc()
