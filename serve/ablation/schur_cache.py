"""Ordered Schur forms that are kept: the same matrix is decomposed once. Thread-safe.

Many ablations edit one matrix, and a sweep edits it again and again; its form is the costly part.
"""

import hashlib
from typing import Any

from numpy.typing import NDArray

from serve.ablation import schur
from serve.ablation.schur import Schur
from serve.lru_cache import Recent

MAX_BYTES = 64 << 20  # of T and Q

forms = Recent[bytes, Schur](MAX_BYTES)  # of this process


def ordered_schur(W: NDArray[Any]) -> Schur:
    """W = Q T Q^T as `schur.ordered_schur` gives it, and raising what it raises."""

    def make() -> tuple[Schur, int]:
        form = schur.ordered_schur(W)
        return form, form.T.nbytes + form.Q.nbytes

    return forms.get(_digest(W), make)


def _digest(W: NDArray[Any]) -> bytes:
    kind = f"{W.dtype.str} {W.shape} ".encode()
    return hashlib.blake2b(kind + W.tobytes(), digest_size=16).digest()  # in C order
