"""The library with the CUDA kernels: that it compiles, what it needs, who asks for it.

NOTHING HERE RUNS THOSE KERNELS: there was no GPU. ONNX Runtime takes the library on the CPU, whose
kernels it holds as well. `test_cuda_kernels.py` tests the arithmetic.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from operator_feeds import evaluate, matrix_feeds, needs_kernels, token_feeds

import serve.runtime.session as runtime
from serve.native.build import BuildError, build_cuda
from serve.native.library import load, status
from serve.runtime.device import Device

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture(scope="session")
def library() -> Path:
    """The library with the CUDA kernels; skips where nvcc isn't."""
    try:
        return build_cuda()
    except BuildError as error:
        pytest.skip(str(error))


def test_the_library_compiles_and_is_used_again(library: Path) -> None:
    before = library.stat().st_mtime_ns
    assert build_cuda() == library
    assert library.stat().st_mtime_ns == before
    assert library.name == "torsor_cuda.so"


def test_it_loads_without_a_gpu_and_shows_only_our_own_names(library: Path) -> None:
    ctypes.CDLL(str(library))
    if not shutil.which("nm") or not shutil.which("readelf"):
        pytest.skip("needs nm and readelf")
    listing = subprocess.check_output(["nm", "-D", "--defined-only", library], text=True)
    names = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    assert "RegisterCustomOps" in names
    assert [name for name in names if not name.startswith(("RegisterCustomOps", "torsor_"))] == []
    needed = subprocess.check_output(["readelf", "-d", library], text=True)
    assert "libcuda" not in needed  # neither the driver nor a CUDA runtime of some version


@needs_kernels
def test_onnx_runtime_takes_it(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU: it holds those kernels too, and that the others stand beside them is no error."""
    native = load()
    for operator in ("MatrixExp", "OrthoStep", "MixStep", "SampleToken"):
        feeds = token_feeds(9, 7) if operator == "SampleToken" else matrix_feeds(operator, 5, 8)
        assert native is not None, status()
        expected = evaluate("native", operator, feeds)
        with monkeypatch.context() as patch:
            patch.setattr(native, "path", library)
            np.testing.assert_array_equal(evaluate("native", operator, feeds), expected)


@needs_kernels
def test_it_leaves_a_whole_advance_to_the_gpu(library: Path) -> None:
    """A kernel on the CPU would draw the run there; the operator's body stays on the device."""
    native = load()
    assert native is not None and b"OsmAdvance" in native.path.read_bytes()
    assert b"OsmAdvance" not in library.read_bytes()


@pytest.mark.parametrize("path", [Path("torsor_cuda.so"), None])
def test_a_session_says_which_kernels_it_has(
    monkeypatch: pytest.MonkeyPatch, path: Path | None
) -> None:
    monkeypatch.setattr(runtime, "load_cuda", lambda: path)
    found, said = runtime._kernels(Device("cuda", 1))
    assert (found, said) == (path, "native (cuda)" if path else "standard operators")


def test_a_session_on_the_cpu_never_asks_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "load_cuda", lambda: pytest.fail("asked for CUDA"))
    native = load()
    found, _ = runtime._kernels(Device("cpu", 1))
    assert found == (native.path if native else None)


SAY = "from serve.native.library import load_cuda, status_cuda as s; print(load_cuda(), s())"


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"NVCC": "false"}, "no CUDA kernels: false failed with code 1"),
        ({"NVCC": "no-such-nvcc"}, "no CUDA kernels: the compiler can't be run"),
        ({"TORSOR_NATIVE": "off"}, "CUDA kernels are off: TORSOR_NATIVE=off"),
    ],
)
def test_without_a_library_the_reason_is_said(
    environment: dict[str, str], reason: str, tmp_path: Path
) -> None:
    whole = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TORSOR_NATIVE": "", **environment}
    said = subprocess.check_output([sys.executable, "-c", SAY], cwd=ROOT, env=whole, text=True)
    assert said.startswith("None " + reason) and said.count("\n") == 1
