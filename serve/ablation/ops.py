"""Ops: what each does to one target, and the matched random control of each.

Everything is float64. An op gives the target's new value; its control subtracts a random direction
of the same kind, scaled to the same Frobenius norm as what the op removes:

| op                       | kind of the random direction D, W' = W - ‖ΔW‖ D / ‖D‖               |
|--------------------------|--------------------------------------------------------------------|
| `schur`                  | Q N Q^T, N Gaussian on all couplings: the eigenvalues stay          |
| `rank`                   | U Σ V^T, U and V random, Σ the singular values that `rank` removes  |
| `project`                | (I - Π) W, Π onto a random subspace of the same dimension           |
| `zero`, `scale`,         | Gaussian on the same rows and columns                               |
| `freeze`, `identity`     |                                                                    |

Letters: W target, Q, T Schur form, n matrix size, r singular values or dimensions that stay.

Ordered Schur forms are kept, for all threads: many ablations edit one matrix, and a sweep edits it
again and again; its form is the costly part.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serve.ablation import schur
from serve.ablation.ablation import AblationError, Edit
from serve.ablation.norm import frobenius
from serve.ablation.schur import Floats, Schur
from serve.lru_cache import LruCache
from serve.manifest.values import Json
from serve.wire.responses import Spectrum

Generator = np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A target as an op sees it."""

    W: Floats
    basis: Floats | None = None  # (r, n): the tangents that the readout sees, orthonormal rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """A target's new value, and what the op has to say."""

    W: Floats
    spectrum: Spectrum | None = None  # of the target before; schur only
    detail: dict[str, Json] = field(default_factory=dict)


class Operation(NamedTuple):
    """(part, edit, field) -> outcome; and (part, edit, ΔW, generator) -> a direction like ΔW."""

    run: Callable[[Part, Edit, str], Outcome]
    direction: Callable[[Part, Edit, Floats, Generator], Floats]


def operate(part: Part, edit: Edit, where: str) -> Outcome:
    """The target after an edit that has one; `where` is the edit's field. `AblationError`."""
    if edit.like is None:
        return OPERATIONS[edit.op].run(part, edit, where)
    return _random(part, edit, where)


def ordered(W: Floats, where: str) -> Schur:
    """The ordered Schur form; `AblationError` where there is none."""
    try:
        return kept_schur(W)
    except ValueError as error:
        raise AblationError(where, f"no Schur form ({error})", "one", "leave it out") from None


def _random(part: Part, edit: Edit, where: str) -> Outcome:
    like, seed = edit.like, edit.seed
    assert like is not None and seed is not None
    removal = OPERATIONS[like.op].run(part, like, f"{where}.like")
    dW = part.W - removal.W
    if not np.isfinite(dW).all():
        raise AblationError(f"{where}.like", "a result that isn't finite", "one", "leave it out")
    if np.count_nonzero(dW) == 1:
        found, remedy = "a removal of a single number", "it has no control"
        raise AblationError(f"{where}.like", found, "one that has other directions", remedy)
    direction = OPERATIONS[like.op].direction(part, like, dW, np.random.default_rng(seed))
    size = frobenius(direction)
    if not size or not frobenius(dW):
        found = f"that {like.op} removes nothing of {like.target}"
        raise AblationError(f"{where}.like", found, "something to match", "leave it out")
    # `schur` may remove part of the couplings only, so the control's spectrum says what was there
    return Outcome(W=part.W - direction * (frobenius(dW) / size), spectrum=removal.spectrum)


def _schur(part: Part, edit: Edit, where: str) -> Outcome:
    assert edit.alpha is not None
    form = ordered(part.W, where)
    spectrum = schur.spectrum(form, edit.alpha)
    masks = schur.couplings(form, spectrum.n_R)
    empty = [f"{name} has no entries" for name in edit.zero if not masks[name].any()]
    if len(empty) == len(edit.zero):
        found = f"at n_R = {spectrum.n_R}, n_C = {spectrum.n_C}: {' and '.join(empty)}"
        remedy = "choose another alpha or coupling"
        raise AblationError(f"{where}.zero", found, "something to remove", remedy)
    dT = np.where(np.any([masks[name] for name in edit.zero], axis=0), form.T, 0.0)
    spectrum = dataclasses.replace(spectrum, warnings=(*spectrum.warnings, *empty))
    # W less the removed part, not Q T' Q^T: what isn't touched keeps its bits as far as possible
    return Outcome(W=part.W - form.Q @ dT @ form.Q.T, spectrum=spectrum)


def _any_coupling(part: Part, edit: Edit, dW: Floats, generator: Generator) -> Floats:
    del edit, dW
    form = kept_schur(part.W)
    masks = schur.couplings(form, len(form.T))  # all of them are RR then
    N = np.where(masks["RR"], generator.standard_normal(form.T.shape), 0.0)
    return form.Q @ N @ form.Q.T


def _zero(part: Part, edit: Edit, where: str) -> Outcome:
    del where
    return _scaled(part, edit, 0.0)


def _scale(part: Part, edit: Edit, where: str) -> Outcome:
    del where
    assert edit.factor is not None
    return _scaled(part, edit, edit.factor)


def _scaled(part: Part, edit: Edit, factor: float) -> Outcome:
    W = part.W.copy()
    W[_place(edit)] *= factor
    return Outcome(W=W)


def _identity(part: Part, edit: Edit, where: str) -> Outcome:
    del edit, where
    return Outcome(W=np.eye(len(part.W)))


def _rank(part: Part, edit: Edit, where: str) -> Outcome:
    U, values, V = _singular(part.W, where)
    kept = edit.keep
    detail = {"keep": kept, "singular_values": values.tolist()}
    return Outcome(W=part.W - (U[:, kept:] * values[kept:]) @ V[kept:], detail=detail)


def _random_singular(part: Part, edit: Edit, dW: Floats, generator: Generator) -> Floats:
    del dW
    values = np.linalg.svd(part.W, compute_uv=False)[edit.keep :]
    rows, columns = (_frame(size, len(values), generator) for size in part.W.shape)
    return (rows * values) @ columns.T


def _project(part: Part, edit: Edit, where: str) -> Outcome:
    visible = _basis(part, where)
    seen = visible.T @ (visible @ part.W)
    dim, of = len(visible), len(part.W)
    kept = dim if edit.subspace == "readout-visible" else of - dim
    W = seen if edit.subspace == "readout-visible" else part.W - seen
    return Outcome(W=W, detail={"subspace": edit.subspace, "kept_dimension": kept, "of": of})


def _random_subspace(part: Part, edit: Edit, dW: Floats, generator: Generator) -> Floats:
    del dW
    visible = _basis(part, "like")
    frame = _frame(len(part.W), len(visible), generator)
    seen = frame @ (frame.T @ part.W)
    return part.W - seen if edit.subspace == "readout-visible" else seen


def _gaussian(part: Part, edit: Edit, dW: Floats, generator: Generator) -> Floats:
    del dW
    D = np.zeros_like(part.W)
    D[_place(edit)] = generator.standard_normal(D[_place(edit)].shape)
    return D


def _place(edit: Edit) -> tuple[slice, ...]:
    if edit.columns is not None:
        return slice(*(edit.rows or (None,))), slice(*edit.columns)
    return () if edit.rows is None else (slice(*edit.rows),)


def _singular(W: Floats, where: str) -> tuple[Floats, Floats, Floats]:
    try:
        U, values, V = np.linalg.svd(W, full_matrices=False)
    except np.linalg.LinAlgError as error:
        found = f"no singular values ({error})"
        raise AblationError(where, found, "some", "leave it out") from None
    return U, values, V


def _frame(size: int, count: int, generator: Generator) -> Floats:
    """Orthonormal columns, uniformly distributed: (size, count)."""
    Q, R = np.linalg.qr(generator.standard_normal((size, count)))
    frame: Floats = Q * np.sign(np.diag(R))
    return frame


def _basis(part: Part, where: str) -> Floats:
    if part.basis is None:
        expected, remedy = "a bundle that says what the readout sees", "export the bundle again"
        raise AblationError(where, "no basis of tangents", expected, remedy)
    return part.basis


OPERATIONS: dict[str, Operation] = {
    "schur": Operation(_schur, _any_coupling),
    "zero": Operation(_zero, _gaussian),
    "scale": Operation(_scale, _gaussian),
    "identity": Operation(_identity, _gaussian),
    "rank": Operation(_rank, _random_singular),
    "project": Operation(_project, _random_subspace),
    "freeze": Operation(_zero, _gaussian),
}


MAX_BYTES = 64 << 20  # of T and Q

forms = LruCache[bytes, Schur](MAX_BYTES)  # of this process


def kept_schur(W: NDArray[Any]) -> Schur:
    """W = Q T Q^T as `schur.ordered_schur` gives it, and raising what it raises."""

    def make() -> tuple[Schur, int]:
        form = schur.ordered_schur(W)
        return form, form.T.nbytes + form.Q.nbytes

    return forms.get(_digest(W), make)


def _digest(W: NDArray[Any]) -> bytes:
    kind = f"{W.dtype.str} {W.shape} ".encode()
    return hashlib.blake2b(kind + W.tobytes(), digest_size=16).digest()  # in C order
