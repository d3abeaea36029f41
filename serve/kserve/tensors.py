"""Tensors of the Open Inference Protocol as arrays, and back."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.wire.errors import invalid
from serve.wire.preview import shown

Array = NDArray[Any]
DATATYPES = {"float32": "FP32", "int64": "INT64"}  # NumPy's name: the protocol's
DTYPES = {"FP32": "<f4", "INT64": "<i8"}


def from_bytes(name: str, datatype: str, shape: Sequence[int], content: bytes) -> Array:
    """Little-endian elements in row-major order; `RequestError` if they don't fit."""
    dtype = _dtype(name, datatype)
    _check_count(name, shape, len(content) / dtype.itemsize)
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def from_numbers(name: str, datatype: str, shape: Sequence[int], numbers: Any) -> Array:
    """Numbers in row-major order, nested or flat; `RequestError` if they don't fit."""
    dtype = _dtype(name, datatype)
    try:
        with np.errstate(over="ignore"):  # what becomes infinite is refused by name later
            found = np.asarray(numbers)
            fits = not found.size or found.dtype.kind in ("i" if dtype.kind == "i" else "iuf")
            array = found.astype(dtype.newbyteorder("="), casting="unsafe" if fits else "no")
    except (ValueError, TypeError, OverflowError):
        expected = "whole numbers" if dtype.kind == "i" else "numbers"
        raise invalid(name, f"found other data, expected {expected} in one list") from None
    _check_count(name, shape, array.size)
    return array.reshape(shape)


def datatype_of(array: Array) -> str:
    """The protocol's name of an array's type."""
    return DATATYPES[str(array.dtype)]


def to_bytes(array: Array) -> bytes:
    """Little-endian elements in row-major order."""
    return array.astype(DTYPES[datatype_of(array)]).tobytes()


def _dtype(name: str, datatype: str) -> "np.dtype[Any]":
    if datatype not in DTYPES:
        raise invalid(name, f"found datatype {shown(datatype, 80)}, expected {' or '.join(DTYPES)}")
    return np.dtype(DTYPES[datatype])


def _check_count(name: str, shape: Sequence[int], found: float) -> None:
    if any(size < 0 for size in shape) or found != math.prod(shape):
        raise invalid(name, f"found {found:g} elements, expected shape {list(shape)!s:.80}")
