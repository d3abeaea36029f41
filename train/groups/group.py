"""The contract of matrix groups: what each offers to the models.

A group G of matrices, its algebra g with the inner product <X, Y> = Re tr(X* Y), and an
orthonormal basis of g: coordinates u ∈ R^D are isometric with tangents. All matrices are real and
n×n; a complex Z is kept as its real form [[Re Z, -Im Z], [Im Z, Re Z]], which turns products into
products, Z* into the transpose and skew-Hermitian into skew-symmetric. So every G here is a
subgroup of O(n). The first dimensions are batch dimensions.

Letters: d size of the group, n of its real matrices, D = dim g.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from train.groups.matrix_exp import exact


class Group(ABC):
    """A compact matrix group.

    | attribute     |                                                                         |
    |---------------|-------------------------------------------------------------------------|
    | `d`           | size as in the group's name                                             |
    | `size`        | n, the size of the real matrices: d or 2d                               |
    | `dim`         | D, the dimension of the algebra                                         |
    | `ambient_dim` | numbers in one ambient matrix                                           |
    | `trace_scale` | Re tr(X* Y) = trace_scale · sum_ij X_ij Y_ij; 1 if real, 1/2 if complex |
    | `matrices`    | what symmetries call the group                                          |
    | `algebra`     | what symmetries call its coordinates; None if it commutes               |
    """

    d: int
    size: int
    dim: int
    ambient_dim: int
    trace_scale: float
    matrices: str
    algebra: str | None

    @abstractmethod
    def ambient(self, a: Tensor) -> Tensor:
        """The free matrix with numbers a, linear: (..., ambient_dim) -> (..., n, n)."""

    @abstractmethod
    def project(self, A: Tensor) -> Tensor:
        """The nearest element of g to any real matrix: (..., n, n) -> (..., n, n)."""

    @abstractmethod
    def coordinates(self, A: Tensor) -> Tensor:
        """Coordinates of `project(A)` in the orthonormal basis: (..., n, n) -> (..., D)."""

    @abstractmethod
    def tangent(self, u: Tensor) -> Tensor:
        """The element of g with coordinates u: (..., D) -> (..., n, n)."""

    @abstractmethod
    def exp(self, X: Tensor) -> Tensor:
        """g -> G: (..., n, n) -> (..., n, n)."""

    def move(self, H: Tensor, X: Tensor) -> Tensor:
        """H exp(X): (..., n, n), (..., n, n) -> (..., n, n)."""
        if torch.onnx.is_in_onnx_export():
            return H @ self.exp(X)
        with torch.autocast(H.device.type, enabled=False):
            return exact(H) @ self.exp(X)

    @abstractmethod
    def contains(self, H: Tensor, tolerance: float = 1e-4) -> tuple[bool, float]:
        """Whether all H are in G, and the largest error that was measured."""

    @abstractmethod
    def correct(self, H: Tensor) -> Tensor:
        """H moved closer to G, for H that rounding has moved off it; the identity map on G."""

    @abstractmethod
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Haar-distributed elements: (num_samples, n, n)."""

    def inverse(self, H: Tensor) -> Tensor:
        """The group's inverse, Hᵀ: (..., n, n) -> (..., n, n)."""
        return H.mT

    def identity(self) -> Tensor:
        """I, the unit of G: (n, n)."""
        return torch.eye(self.size)

    def components(self, num: int) -> Tensor:
        """Fixed elements, one in each connected component in turn: (num, n, n).

        All I where G is connected. exp never leaves a component: what is to reach another one is
        multiplied by these.
        """
        return self.identity().repeat(num, 1, 1)


def checked_size(name: str, d: int, least: int) -> int:
    """The d that is given, or a `ValueError`."""
    if d < least:
        raise ValueError(f"{name}(d): found d = {d}, expected at least {least}")
    return d


def newton_schulz(H: Tensor) -> Tensor:
    """H (3I - HᵀH) / 2: squares the distance to the orthogonal matrices."""
    return 1.5 * H - 0.5 * H @ (H.mT @ H)


def orthogonality_error(H: Tensor) -> Tensor:
    """max |HᵀH - I| of the batch, one number."""
    return (H.mT @ H - torch.eye(H.shape[-1]).to(H)).abs().max()
