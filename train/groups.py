"""Matrix groups that a state can live on.

A group G ⊂ R^{d×d} with its algebra g, the inner product <X, Y> = tr(XᵀY) and an orthonormal basis
of g: coordinates u ∈ R^D are isometric with tangents. The first dimensions are batch dimensions.
Letters: d matrix size, D = dim g.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from train.matrix_exp import matrix_exp


class Group(ABC):
    """What every group offers; `d` is the matrix size, `dim` the dimension of its algebra."""

    d: int
    dim: int

    @abstractmethod
    def project(self, A: Tensor) -> Tensor:
        """The nearest element of g to an ambient matrix: (..., d, d) -> (..., d, d)."""

    @abstractmethod
    def coordinates(self, A: Tensor) -> Tensor:
        """Coordinates of `project(A)` in the orthonormal basis: (..., d, d) -> (..., D)."""

    @abstractmethod
    def tangent(self, u: Tensor) -> Tensor:
        """The element of g with coordinates u: (..., D) -> (..., d, d)."""

    @abstractmethod
    def exp(self, X: Tensor) -> Tensor:
        """g -> G: (..., d, d) -> (..., d, d)."""

    @abstractmethod
    def inverse(self, H: Tensor) -> Tensor:
        """The group's inverse: (..., d, d) -> (..., d, d)."""

    @abstractmethod
    def contains(self, H: Tensor, tolerance: float = 1e-4) -> tuple[bool, float]:
        """Whether all H are in G, and the largest error that was measured."""

    @abstractmethod
    def correct(self, H: Tensor) -> Tensor:
        """H moved closer to G, for H that rounding has moved off it; the identity map on G."""

    @abstractmethod
    def identity(self) -> Tensor:
        """The unit of G: (d, d)."""

    @abstractmethod
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Haar-distributed elements: (num_samples, d, d)."""


class SO(Group):
    """The special orthogonal group SO(d), D = d(d-1)/2; g are the skew-symmetric matrices."""

    def __init__(self, d: int) -> None:
        if d < 2:
            raise ValueError(f"SO(d): found d = {d}, expected at least 2")
        self.d, self.dim = d, d * (d - 1) // 2
        rows, columns = torch.triu_indices(d, d, offset=1)
        self._upper = rows * d + columns  # (D) places of the coordinates in a flat matrix
        self._lower = columns * d + rows
        self._unpack = self._unpack_index()

    def project(self, A: Tensor) -> Tensor:
        """(A - Aᵀ) / 2."""
        return (A - A.mT) / 2

    def coordinates(self, A: Tensor) -> Tensor:
        """u_ij = (A_ij - A_ji) / √2 for i < j."""
        flat = A.flatten(-2)
        upper = flat.index_select(-1, self._upper.to(A.device))
        lower = flat.index_select(-1, self._lower.to(A.device))
        return (upper - lower) * math.sqrt(0.5)

    def tangent(self, u: Tensor) -> Tensor:
        """S_ij = u_ij / √2 = -S_ji for i < j, 0 on the diagonal."""
        u = u * math.sqrt(0.5)
        signed = torch.cat([u, -u, torch.zeros_like(u[..., :1])], dim=-1)  # (..., 2D + 1)
        flat = signed.index_select(-1, self._unpack.to(u.device))
        return torch.unflatten(flat, -1, (self.d, self.d))

    def exp(self, X: Tensor) -> Tensor:
        """The matrix exponential of a skew-symmetric X."""
        return matrix_exp(X)

    def inverse(self, H: Tensor) -> Tensor:
        """Hᵀ."""
        return H.mT

    def contains(self, H: Tensor, tolerance: float = 1e-4) -> tuple[bool, float]:
        """max |HᵀH - I| against the tolerance, and det H > 0."""
        error = float((H.mT @ H - self.identity().to(H)).abs().max())
        return error <= tolerance and bool((torch.linalg.det(H) > 0).all()), error

    def correct(self, H: Tensor) -> Tensor:
        """One Newton-Schulz step, H (3I - HᵀH) / 2: squares the distance to G."""
        return 1.5 * H - 0.5 * H @ (H.mT @ H)

    def identity(self) -> Tensor:
        """I."""
        return torch.eye(self.d)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """QR of Gaussian matrices with R's diagonal made positive and det made 1."""
        gaussian = torch.randn(num_samples, self.d, self.d, generator=generator)
        Q, R = torch.linalg.qr(gaussian)
        Q = Q * torch.sign(torch.diagonal(R, dim1=-2, dim2=-1)).unsqueeze(-2)
        sign = torch.sign(torch.linalg.det(Q))
        return torch.cat([Q[..., :1] * sign[:, None, None], Q[..., 1:]], dim=-1)

    def _unpack_index(self) -> Tensor:
        index = torch.full((self.d * self.d,), 2 * self.dim)
        index[self._upper] = torch.arange(self.dim)
        index[self._lower] = torch.arange(self.dim) + self.dim
        return index
