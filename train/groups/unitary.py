"""The complex groups U(d) and SU(d), kept as real 2d×2d matrices [[Re, -Im], [Im, Re]].

g are the skew-Hermitian matrices, D = d², for SU(d) those of trace 0, D = d² - 1. Basis of g:

    (E_ij - E_ji) / √2 for i < j,  i (E_ij + E_ji) / √2 for i < j,  then on the diagonal
    i E_kk for U(d),  i diag(1, ..., 1, -k, 0, ..., 0) / √(k(k+1)) for SU(d), k = 1 ... d-1 ones
"""

import math

import torch
from torch import Tensor

from train.groups.group import Group, checked_size, orthogonality_error
from train.groups.matrix_exp import matrix_exp, ortho_step


def real_form(Z: Tensor) -> Tensor:
    """[[Re Z, -Im Z], [Im Z, Re Z]] of a complex Z: (..., d, d) -> (..., 2d, 2d)."""
    return _blocks(torch.cat([Z.real, Z.imag], dim=-2))


def complex_form(A: Tensor) -> Tensor:
    """The complex matrix whose real form is nearest to A: (..., 2d, 2d) -> (..., d, d)."""
    real, imag = _columns(A).chunk(2, dim=-2)
    return torch.complex(real.contiguous(), imag.contiguous())


class _Unitary(Group):
    """What U(d) and SU(d) share: all but the diagonal of the algebra, and the determinant."""

    trace_scale = 0.5

    def __init__(self, d: int, least: int) -> None:
        self.d, self.size = checked_size(type(self).__name__, d, least), 2 * d
        self.ambient_dim = 2 * d * d
        self._num_off = d * (d - 1)  # coordinates off the diagonal
        self._places = self._place_indices()
        self._unpack = self._unpack_index()

    def ambient(self, a: Tensor) -> Tensor:
        """Any complex matrix in real form: d² real parts row by row, then d² imaginary parts."""
        return _blocks(torch.unflatten(a, -1, (self.size, self.d)))

    def project(self, A: Tensor) -> Tensor:
        """(Z - Z*) / 2 in real form, Z the complex matrix nearest to A; for SU(d) less tr / d."""
        return self.tangent(self.coordinates(A))

    def exp(self, X: Tensor) -> Tensor:
        """The matrix exponential of a skew-Hermitian X, in real form."""
        return matrix_exp(X)

    def move(self, H: Tensor, X: Tensor) -> Tensor:
        """H exp(X), in one kernel where there is one."""
        return ortho_step(H, X)

    def correct(self, H: Tensor) -> Tensor:
        """One Newton-Schulz step from the nearest complex matrix: squares the distance to U(d).

        It leaves the phase of det H as it is, since ONNX has no complex determinant. For SU(d) that
        phase is therefore kept to rounding only: it wanders with the root of the number of steps,
        in float32 to 2e-5 rad after 100,000 steps at d = 16.
        """
        C = _columns(H)
        H = _blocks(C)
        return _blocks(1.5 * C - 0.5 * H @ (H.mT @ C))

    def _entries(self, A: Tensor) -> Tensor:
        """Coordinates in u(d): (..., 2d, 2d) -> (..., d²)."""
        flat = A.flatten(-2)
        a, b, c, e = (flat.index_select(-1, places.to(A.device)) for places in self._places)
        v = (a - b + c - e) / 4
        return torch.cat(
            [v[..., : self._num_off] * math.sqrt(2.0), v[..., self._num_off :]], dim=-1
        )

    def _matrix(self, v: Tensor) -> Tensor:
        """The element of u(d) with these coordinates: (..., d²) -> (..., 2d, 2d)."""
        v = torch.cat([v[..., : self._num_off] * math.sqrt(0.5), v[..., self._num_off :]], dim=-1)
        signed = torch.cat([v, -v, torch.zeros_like(v[..., :1])], dim=-1)  # (..., 2d² + 1)
        flat = signed.index_select(-1, self._unpack.to(v.device))
        return torch.unflatten(flat, -1, (self.size, self.size))

    def _place_indices(self) -> list[Tensor]:
        """(4, d²): a basis element of u(d) is +, -, +, - at four places of a flat matrix."""
        d, n = self.d, self.size
        i, j = torch.triu_indices(d, d, offset=1, device="cpu")
        k = torch.arange(d, device="cpu")
        rows = [torch.cat([i, d + i, d + k]), torch.cat([j, i, k])]
        rows += [torch.cat([d + i, d + j, d + k]), torch.cat([d + j, j, k])]
        columns = [torch.cat([j, j, k]), torch.cat([i, d + j, d + k])]
        columns += [torch.cat([d + j, i, k]), torch.cat([d + i, d + i, d + k])]
        return [row * n + column for row, column in zip(rows, columns, strict=True)]

    def _unpack_index(self) -> Tensor:
        num = self.d * self.d
        index = torch.full((self.size**2,), 2 * num, device="cpu")
        for sign, places in enumerate(self._places):
            index[places] = torch.arange(num, device="cpu") + num * (sign % 2)
        return index


class U(_Unitary):
    """The unitary group U(d): H*H = I; D = d².

    Basis of g: (E_ij - E_ji) / √2 and i (E_ij + E_ji) / √2 for i < j, row by row, then i E_kk.
    """

    matrices, algebra = "unitary", "u"

    def __init__(self, d: int) -> None:
        super().__init__(d, least=1)
        self.dim = d * d

    def coordinates(self, A: Tensor) -> Tensor:
        """√2 Re S_ij and √2 Im S_ij for i < j, then Im S_kk, where S is `project(A)`."""
        return self._entries(A)

    def tangent(self, u: Tensor) -> Tensor:
        """The sum of u times the basis, in real form."""
        return self._matrix(u)

    def contains(self, H: Tensor, tolerance: float = 1e-4) -> tuple[bool, float]:
        """max |HᵀH - I| and the distance from a real form, against the tolerance."""
        error = float(_unitary_error(H))
        return error <= tolerance, error

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """QR of complex Gaussian matrices with R's diagonal made positive."""
        return real_form(_haar(num_samples, self.d, generator)).to(torch.get_default_dtype())


class SU(_Unitary):
    """The special unitary group SU(d): H*H = I, det H = 1; D = d² - 1.

    Basis of g: (E_ij - E_ji) / √2 and i (E_ij + E_ji) / √2 for i < j, row by row, then
    i diag(1, ..., 1, -k, 0, ..., 0) / √(k(k+1)) with k ones, k = 1 ... d-1.
    """

    matrices, algebra = "special-unitary", "su"

    def __init__(self, d: int) -> None:
        super().__init__(d, least=2)
        self.dim = d * d - 1
        ones = torch.ones(d, d - 1, dtype=torch.float64, device="cpu")
        k = torch.arange(1, d, dtype=torch.float64, device="cpu")
        # (d, d-1) orthonormal columns, each of sum 0
        self._traceless = (ones.triu() - (k * ones).tril(-1).triu(-1)) / (k * (k + 1)).sqrt()

    def coordinates(self, A: Tensor) -> Tensor:
        """√2 Re S_ij and √2 Im S_ij for i < j, then those of diag Im S, where S is `project(A)`."""
        v = self._entries(A)
        diagonal = v[..., self._num_off :] @ self._traceless.to(v)
        return torch.cat([v[..., : self._num_off], diagonal], dim=-1)

    def tangent(self, u: Tensor) -> Tensor:
        """The sum of u times the basis, in real form."""
        diagonal = u[..., self._num_off :] @ self._traceless.mT.to(u)
        return self._matrix(torch.cat([u[..., : self._num_off], diagonal], dim=-1))

    def contains(self, H: Tensor, tolerance: float = 1e-4) -> tuple[bool, float]:
        """max |HᵀH - I|, the distance from a real form and |arg det H|, against the tolerance."""
        phases = torch.linalg.det(complex_form(H.double())).angle().abs()
        error = float(torch.stack([_unitary_error(H).double(), phases.max()]).max())
        return error <= tolerance, error

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Haar samples of U(d) with the first column turned so that det is 1."""
        Z = _haar(num_samples, self.d, generator)
        phase = torch.linalg.det(Z).conj()
        Z = torch.cat([Z[..., :1] * phase[:, None, None], Z[..., 1:]], dim=-1)
        return real_form(Z).to(torch.get_default_dtype())


def _blocks(C: Tensor) -> Tensor:
    """[Re; Im] -> [[Re, -Im], [Im, Re]]: (..., 2d, d) -> (..., 2d, 2d)."""
    real, imag = C.chunk(2, dim=-2)
    return torch.cat([C, torch.cat([-imag, real], dim=-2)], dim=-1)


def _columns(A: Tensor) -> Tensor:
    """[Re; Im] of the real form that is nearest to A: (..., 2d, 2d) -> (..., 2d, d)."""
    left, right = A.chunk(2, dim=-1)
    minus_imag, real = right.chunk(2, dim=-2)
    return (left + torch.cat([real, -minus_imag], dim=-2)) / 2


def _unitary_error(H: Tensor) -> Tensor:
    return torch.stack([orthogonality_error(H), (H - _blocks(_columns(H))).abs().max()]).max()


def _haar(num_samples: int, d: int, generator: torch.Generator | None) -> Tensor:
    gaussian = torch.randn(2, num_samples, d, d, generator=generator, dtype=torch.float64)
    Q, R = torch.linalg.qr(torch.complex(gaussian[0], gaussian[1]))
    H: Tensor = Q * torch.sgn(torch.diagonal(R, dim1=-2, dim2=-1)).unsqueeze(-2)
    return H
