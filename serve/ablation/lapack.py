"""LAPACK without the interpreter's lock: the real Schur form, and how firm its eigenvalues are.

scipy's wrappers hold the lock as long as LAPACK computes, seconds for large matrices, and nothing
else of the process runs meanwhile. These call the very same library, whose functions scipy exports
for C (`scipy.linalg.cython_lapack`), through ctypes, which gives the lock back for each call.

Letters: n matrix size; A, T, Q (n, n), T with 1x1 and 2x2 blocks on its diagonal.
"""

import ctypes
import functools
from ctypes import byref, c_char, c_int
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are first used: see serve.ablation.algebra
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def real_schur(A: Floats) -> tuple[Floats, Floats]:
    """T and Q of A = Q T Q^T, Fortran order; the bits of `scipy.linalg.schur(A, output="real")`.

    Raises `ValueError` where the eigenvalue iteration doesn't converge.
    """
    n = len(A)
    T, Q = np.array(A, np.float64, order="F"), np.empty((n, n), order="F")
    real, imaginary = np.empty(n), np.empty(n)

    def call(work: Floats, size: int) -> int:
        info = c_int()
        _call(
            "dgees",
            *(c_char(b"V"), c_char(b"N"), None, c_int(n), T, c_int(n), c_int(), real, imaginary),
            *(Q, c_int(n), work, c_int(size), None, info),
        )
        return info.value

    size = np.empty(1)
    call(size, -1)
    if info := call(np.empty(int(size[0])), int(size[0])):
        assert info > 0, f"dgees: argument {-info} is wrong"
        raise ValueError("the eigenvalue iteration does not converge")
    return T, Q


def eigenvalue_conditions(T: Floats) -> Floats:
    """Reciprocal condition numbers s (n) of the eigenvalues of T: |y^T x| of unit eigenvectors.

    To first order, an eigenvalue moves by at most ‖E‖ / s under a change E of T. 1: as firm as
    those of a symmetric matrix; 0: a defective one. Source: LAPACK's dtrevc and dtrsna.
    """
    n = len(T)
    T, left, right = (np.array(part, np.float64, order="F") for part in (T, T, T))
    s, info, count = np.empty(n), c_int(), c_int()
    sizes = c_int(n), T, c_int(n), left, c_int(n), right, c_int(n)
    letters = c_char(b"B"), c_char(b"A")
    _call("dtrevc", *letters, None, *sizes, c_int(n), count, np.empty(3 * n), info)
    assert info.value == 0, f"dtrevc: argument {-info.value} is wrong"
    letters, unused = (c_char(b"E"), c_char(b"A")), np.empty(1)
    whole = np.empty(1, np.intc)
    ends = s, unused, c_int(n), count, unused, c_int(1), whole, info
    _call("dtrsna", *letters, None, *sizes, *ends)
    assert info.value == 0, f"dtrsna: argument {-info.value} is wrong"
    return s


def _call(name: str, *arguments: Any) -> None:
    """Call a function of LAPACK, which takes everything by its address."""
    _function(name)(*(_address(argument) for argument in arguments))


def _address(argument: Any) -> Any:
    if argument is None:
        return None
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data_as(ctypes.c_void_p)
    return byref(argument)


@functools.cache
def _function(name: str) -> Any:
    functions: Any = scipy.linalg.cython_lapack.__pyx_capi__  # the stubs know literal names only
    capsule = functions[name]
    of_name, of_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    of_name.restype, of_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    of_pointer.restype, of_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.CFUNCTYPE(None)(of_pointer(capsule, of_name(capsule)))
