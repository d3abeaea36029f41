"""The CUDA kernels' own code, compiled for the CPU: its arithmetic, for teams of any size."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from operator_feeds import Array, Arrays

from serve.native.build import includes

HOST_FORM = Path(__file__).parent.parent / "serve" / "native" / "cuda_host.cpp"
DeviceCode = Callable[..., Array]


def compile_host_form(made: Path, *flags: str) -> Path:
    """The device code for the CPU, by the ordinary C++ compiler; skips where there is none."""
    compiler = next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        pytest.skip("no C++ compiler was found")
    warnings = ("-Wall", "-Wextra", "-Werror")
    command = [compiler, "-std=c++17", "-O2", "-pthread", *warnings, *includes()]
    subprocess.run([*command, *flags, str(HOST_FORM), "-o", str(made)], check=True, timeout=300)
    return made


def load_host_form(library: Path) -> DeviceCode:
    """`run(operator, feeds, threads)`: what the device code gives on the CPU."""
    handle = ctypes.CDLL(str(library))

    def run(operator: str, feeds: Arrays, threads: int = 1) -> Array:
        given = [np.ascontiguousarray(a) for a in feeds.values()]
        first = given[0]
        real = "f64" if first.dtype == np.float64 else "f32"
        name = {"MixStep": f"mix_{real}", "SampleToken": "sample"}.get(operator, f"exp_{real}")
        sampled = operator == "SampleToken"
        out = np.full(len(first), -2) if sampled else np.full_like(first, 77)
        addresses = [ctypes.c_void_p(a.ctypes.data) for a in [*given, out]]
        if operator == "MatrixExp":
            addresses.insert(0, ctypes.c_void_p(None))
        sizes = [ctypes.c_ssize_t(len(first)), ctypes.c_ssize_t(first.shape[-1])]
        getattr(handle, name)(ctypes.c_int(threads), *addresses, *sizes)
        return out

    return run
