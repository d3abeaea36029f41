"""The real groups SO(d) and O(d): g are the skew-symmetric matrices, D = d(d-1)/2.

Basis of g: (E_ij - E_ji) / √2 for i < j, row by row.
"""

import math

import torch
from torch import Tensor

from train.groups.group import Group, checked_size, newton_schulz, orthogonality_error
from train.groups.matrix_exp import matrix_exp, ortho_step

HALF_ROOT = math.sqrt(0.5)


class _Orthogonal(Group):
    """What depends on the algebra alone."""

    trace_scale = 1.0
    algebra = "so"

    def __init__(self, d: int) -> None:
        self.d = self.size = checked_size(type(self).__name__, d, 2)
        self.dim, self.ambient_dim = d * (d - 1) // 2, d * d
        rows, columns = torch.triu_indices(d, d, offset=1, device="cpu")
        self.upper = rows * d + columns  # (D) places of the coordinates in a flat matrix
        self.lower = columns * d + rows
        self.unpack = self._unpack_index()

    def ambient(self, a: Tensor) -> Tensor:
        """Any real matrix, row by row."""
        return torch.unflatten(a, -1, (self.d, self.d))

    def project(self, A: Tensor) -> Tensor:
        """(A - Aᵀ) / 2."""
        return (A - A.mT) / 2

    def coordinates(self, A: Tensor) -> Tensor:
        """u_ij = (A_ij - A_ji) / √2 for i < j."""
        flat = A.flatten(-2)
        upper = flat.index_select(-1, self.upper.to(A.device))
        lower = flat.index_select(-1, self.lower.to(A.device))
        return (upper - lower) * HALF_ROOT

    def tangent(self, u: Tensor) -> Tensor:
        """S_ij = u_ij / √2 = -S_ji for i < j, 0 on the diagonal."""
        u = u * HALF_ROOT
        signed = torch.cat([u, -u, torch.zeros_like(u[..., :1])], dim=-1)  # (..., 2D + 1)
        flat = signed.index_select(-1, self.unpack.to(u.device))
        return torch.unflatten(flat, -1, (self.d, self.d))

    def exp(self, X: Tensor) -> Tensor:
        """The matrix exponential of a skew-symmetric X."""
        return matrix_exp(X)

    def move(self, H: Tensor, X: Tensor) -> Tensor:
        """H exp(X), in one kernel where there is one."""
        return ortho_step(H, X)

    def correct(self, H: Tensor) -> Tensor:
        """One Newton-Schulz step, H (3I - HᵀH) / 2: squares the distance to G."""
        return newton_schulz(H)

    def _unpack_index(self) -> Tensor:
        index = torch.full((self.d * self.d,), 2 * self.dim, device="cpu")
        index[self.upper] = torch.arange(self.dim, device="cpu")
        index[self.lower] = torch.arange(self.dim, device="cpu") + self.dim
        return index


class SO(_Orthogonal):
    """The special orthogonal group SO(d): HᵀH = I, det H = 1; D = d(d-1)/2.

    Basis of g: (E_ij - E_ji) / √2 for i < j, row by row.
    """

    matrices = "special-orthogonal"

    def contains(self, H: Tensor, tolerance: float = 1e-4) -> tuple[bool, float]:
        """max |HᵀH - I| against the tolerance, and det H > 0."""
        error = float(orthogonality_error(H))
        return error <= tolerance and bool((torch.linalg.det(H) > 0).all()), error

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """QR of Gaussian matrices with R's diagonal made positive and det made 1."""
        Q = _haar(num_samples, self.d, generator)
        sign = torch.sign(torch.linalg.det(Q))
        return torch.cat([Q[..., :1] * sign[:, None, None], Q[..., 1:]], dim=-1)


class O(_Orthogonal):  # noqa: E742 (the group's name)
    """The orthogonal group O(d): HᵀH = I; D = d(d-1)/2, and two components, det H = ±1.

    Basis of g: (E_ij - E_ji) / √2 for i < j, row by row.
    """

    matrices = "orthogonal"

    def contains(self, H: Tensor, tolerance: float = 1e-4) -> tuple[bool, float]:
        """max |HᵀH - I| against the tolerance."""
        error = float(orthogonality_error(H))
        return error <= tolerance, error

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """QR of Gaussian matrices with R's diagonal made positive."""
        return _haar(num_samples, self.d, generator)

    def components(self, num: int) -> Tensor:
        """I and the reflection diag(1, ..., 1, -1) in turn."""
        elements = self.identity().repeat(num, 1, 1)
        elements[1::2, -1, -1] = -1.0
        return elements


def _haar(num_samples: int, d: int, generator: torch.Generator | None) -> Tensor:
    Q, R = torch.linalg.qr(torch.randn(num_samples, d, d, generator=generator))
    H: Tensor = Q * torch.sign(torch.diagonal(R, dim1=-2, dim2=-1)).unsqueeze(-2)
    return H
