"""The C library of the project, loaded when it is first asked for.

`load()` gives the library, or None where there is none, and `status()` says why in a sentence;
everything then works without it. The environment variable `TORSOR_NATIVE` is `off`, `plain` (the
kernels that need no AVX2) or `on`, the default: the best that the processor has.

Arguments are addresses and sizes. The library neither keeps nor frees what it is given.
"""

import ctypes
import functools
import os
from pathlib import Path

from serve.native.build import BuildError, build, build_cuda

CHOICES = ("on", "off", "plain")
POINTERS_AND_SIZES = {  # what each kernel takes: addresses, then sizes
    "ortho_step": (3, 2),
    "ortho_step_backward": (5, 2),
    "osm_scan": (7, 4),
    "osm_scan_backward": (10, 4),
}
REALS = ("f32", "f64")


class Library:
    """The loaded kernels of one instruction set, `level`."""

    def __init__(self, path: Path, plain: bool = False) -> None:
        self.path = path
        self._handle = ctypes.CDLL(str(path))
        self.level = "avx2" if self._handle.torsor_has_avx2() and not plain else "plain"
        self._kernels = {}
        for name, (pointers, sizes) in POINTERS_AND_SIZES.items():
            for real in REALS:
                kernel = getattr(self._handle, f"torsor_{name}_{real}_{self.level}")
                kernel.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_ssize_t] * sizes
                kernel.restype = ctypes.c_int
                self._kernels[name, real] = kernel

    def run(self, name: str, real: str, *arguments: int | None) -> None:
        """Call a kernel, such as ("ortho_step", "f32"); None is a matrix that isn't given."""
        code = self._kernels[name, real](*arguments)
        if code == 1:
            raise MemoryError(f"{name}: no memory for its workspace")
        if code == 2:
            raise IndexError(f"{name}: found a token that is not a row of the table")

    def constants(self) -> list[float]:
        """The polynomial's coefficients, its angle, and the most squarings."""
        numbers = (ctypes.c_double * 12)()
        self._handle.torsor_constants(numbers)
        return list(numbers)


def load() -> Library | None:
    """The library, built when it is first asked for; None where there is none."""
    return _attempt()[0]


def status() -> str:
    """One sentence on what `load` gives."""
    return _attempt()[1]


def load_cuda() -> Path | None:
    """The library for sessions on CUDA, built when it is first asked for; None where there is none.

    Ask only where a GPU is. Its kernels have been compiled and never run: see cuda.cu.
    """
    return _attempt_cuda()[0]


def status_cuda() -> str:
    """One sentence on what `load_cuda` gives."""
    return _attempt_cuda()[1]


def _choice() -> str:
    choice = os.environ.get("TORSOR_NATIVE") or "on"
    if choice not in CHOICES:
        raise ValueError(f"TORSOR_NATIVE: found {choice!r}, expected one of {', '.join(CHOICES)}")
    return choice


@functools.cache
def _attempt_cuda() -> tuple[Path | None, str]:
    if _choice() == "off":
        return None, "CUDA kernels are off: TORSOR_NATIVE=off"
    try:
        path = build_cuda()
        ctypes.CDLL(str(path))
    except (BuildError, OSError) as error:
        return None, f"no CUDA kernels: {error}"
    return path, f"CUDA kernels from {path}"


@functools.cache
def _attempt() -> tuple[Library | None, str]:
    choice = _choice()
    if choice == "off":
        return None, "native kernels are off: TORSOR_NATIVE=off"
    try:
        library = Library(build(), plain=choice == "plain")
    except (BuildError, OSError, AttributeError) as error:
        return None, f"no native kernels: {error}"
    return library, f"native kernels ({library.level}) from {library.path}"
