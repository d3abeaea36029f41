"""The commutative groups: d planes of R^2d that turn by an angle each, D = d.

On plane k, with axes p_k and q_k, g is θ [[0, -1], [1, 0]] and G is [[cos θ, -sin θ], [sin θ, cos
θ]]: no matrix product is needed, and exp is right for any angle.
"""

import math

import torch
from torch import Tensor

from train.groups.group import Group, checked_size, orthogonality_error
from train.groups.matrix_exp import exact


class _Planes(Group):
    """All but the choice of the axes."""

    algebra = None

    def __init__(self, d: int, p: Tensor, q: Tensor) -> None:
        self.d, self.size, self.dim, self.ambient_dim = d, 2 * d, d, 2 * d
        n = self.size
        # (d) each: places of a plane's [[a, -b], [b, a]] in a flat matrix
        self._pp, self._pq, self._qp, self._qq = p * n + p, p * n + q, q * n + p, q * n + q
        k = torch.arange(d, device="cpu")
        self._unpack = torch.full((n * n,), 3 * d, device="cpu")
        for places, part in ((self._pp, 0), (self._qq, 0), (self._qp, 1), (self._pq, 2)):
            self._unpack[places] = k + part * d
        self._length = math.sqrt(2.0 * self.trace_scale)  # of the tangent with angle 1

    def ambient(self, a: Tensor) -> Tensor:
        """[[a_k, -b_k], [b_k, a_k]] on plane k: d numbers a, then d numbers b."""
        return self._matrix(a[..., : self.d], a[..., self.d :])

    def project(self, A: Tensor) -> Tensor:
        """θ_k = (A_qp - A_pq) / 2 on plane k, 0 elsewhere."""
        angles = self._imag(A.flatten(-2))
        return self._matrix(torch.zeros_like(angles), angles)

    def coordinates(self, A: Tensor) -> Tensor:
        """u_k = θ_k times the length of the tangent with angle 1."""
        return self._imag(A.flatten(-2)) * self._length

    def tangent(self, u: Tensor) -> Tensor:
        """θ_k = u_k over the length of the tangent with angle 1."""
        angles = u * (1.0 / self._length)
        return self._matrix(torch.zeros_like(angles), angles)

    def exp(self, X: Tensor) -> Tensor:
        """[[cos θ, -sin θ], [sin θ, cos θ]] on each plane."""
        angles = self._imag(exact(X).flatten(-2))
        return self._matrix(torch.cos(angles), torch.sin(angles))

    def contains(self, H: Tensor, tolerance: float = 1e-4) -> tuple[bool, float]:
        """max |HᵀH - I| and the distance from [[a, -b], [b, a]] on the planes and 0 elsewhere."""
        flat = H.flatten(-2)
        off = (H - self._matrix(self._real(flat), self._imag(flat))).abs().max()
        error = float(torch.stack([orthogonality_error(H), off]).max())
        return error <= tolerance, error

    def correct(self, H: Tensor) -> Tensor:
        """A Newton-Schulz step on each plane, times (3 - a² - b²) / 2; 0 off the planes."""
        flat = H.flatten(-2)
        a, b = self._real(flat), self._imag(flat)
        factor = 1.5 - 0.5 * (a * a + b * b)
        return self._matrix(a * factor, b * factor)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Angles uniform in [0, 2π)."""
        angles = torch.rand(num_samples, self.d, generator=generator) * (2.0 * math.pi)
        return self._matrix(torch.cos(angles), torch.sin(angles))

    def _real(self, flat: Tensor) -> Tensor:
        pp = flat.index_select(-1, self._pp.to(flat.device))
        qq = flat.index_select(-1, self._qq.to(flat.device))
        return (pp + qq) / 2

    def _imag(self, flat: Tensor) -> Tensor:
        qp = flat.index_select(-1, self._qp.to(flat.device))
        pq = flat.index_select(-1, self._pq.to(flat.device))
        return (qp - pq) / 2

    def _matrix(self, a: Tensor, b: Tensor) -> Tensor:  # (..., d), (..., d) -> (..., n, n)
        parts = torch.cat([a, b, -b, torch.zeros_like(a[..., :1])], dim=-1)
        flat = parts.index_select(-1, self._unpack.to(a.device))
        return torch.unflatten(flat, -1, (self.size, self.size))


class Torus(_Planes):
    """The maximal torus of SO(2d): plane k has the axes 2k and 2k + 1; real, D = d.

    Basis of g: [[0, -1], [1, 0]] / √2 on plane k.
    """

    trace_scale, matrices = 1.0, "pairs"

    def __init__(self, d: int) -> None:
        p = 2 * torch.arange(checked_size("Torus", d, 1), device="cpu")
        super().__init__(d, p, p + 1)


class DiagonalTorus(_Planes):
    """The diagonal matrices of U(d), U(1)^d, in real form: plane k has the axes k and d + k; D = d.

    Basis of g: i E_kk, in real form [[0, -1], [1, 0]] on plane k.
    """

    trace_scale, matrices = 0.5, "halves"

    def __init__(self, d: int) -> None:
        p = torch.arange(checked_size("DiagonalTorus", d, 1), device="cpu")
        super().__init__(d, p, p + d)
