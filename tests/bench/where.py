"""Where a bench runs: its option --device, the line that says so, and the clock that fits.

On the CPU the CPU seconds of this process count, which neighbours on a busy machine disturb least.
They say nothing about a GPU: on CUDA seconds by the clock count, from an idle GPU to an idle GPU.
ONNX Runtime is back when its outputs are there; arrays that it takes and gives travel meanwhile.
"""

import argparse
import dataclasses
import platform
import shutil
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from serve.manifest.page import UNROLLED_FILE
from serve.manifest.read import describe_file, read_manifest, write_manifest
from serve.native.onnx_runtime import onnxruntime
from serve.runtime.bundle import load_bundles
from serve.runtime.device import Device, DeviceError
from serve.settings import SHIPPED

KINDS = ("cpu", "cuda")
SMALL = "tanh-rnn-shakespeare"  # loads fast


@dataclass(frozen=True, slots=True)
class Where:
    """The device of a bench, by ONNX Runtime's and torch's name for its kind."""

    kind: str

    def line(self, kernels: str, num_threads: int = 1, clock: str = "") -> str:
        """What a table ran on, the first line above it; `clock` where it isn't this one."""
        clock = clock or ("CPU seconds" if self.kind == "cpu" else "seconds by the clock")
        threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
        versions = f"{torch_version()}, onnxruntime {onnxruntime.__version__}"
        return f"on {self._name()}, {threads}, {clock}; {versions}; {kernels}"

    def _name(self) -> str:
        if self.kind == "cpu":
            return processor()
        import torch  # the load of bench_serving.py wants no torch beside it

        return f"{torch.cuda.get_device_name()} beside {processor()}"

    def now(self) -> float:
        """Seconds of this clock, when the device has done all that it was given."""
        if self.kind == "cpu":
            return time.process_time()
        import torch

        torch.cuda.synchronize()
        return time.perf_counter()

    def session(self, graph: Any, options: Any) -> onnxruntime.InferenceSession:
        """A session there; TF32 is off, as on the server."""
        provider: Any = Device(self.kind, 1).provider
        if self.kind == "cuda":
            provider = (provider, {"use_tf32": "0"})
        return onnxruntime.InferenceSession(graph, options, providers=[provider])


def add_option(parser: argparse.ArgumentParser) -> None:
    """The option of all benches."""
    parser.add_argument("--device", choices=KINDS, default="cpu", help="(default: cpu)")


def chosen(parser: argparse.ArgumentParser, kind: str) -> Where:
    """The device of a bench; one line and exit code 2 where it doesn't work."""
    try:
        require(kind)
        if kind == "cuda":
            _require_torch()
    except DeviceError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    return Where(kind)


def require(kind: str) -> None:
    """`DeviceError` unless a model really runs there."""
    if kind != "cpu":
        load_bundles([SHIPPED / SMALL], kind, 1)


def _require_torch() -> None:
    import torch

    if not torch.cuda.is_available():
        found = f"found no CUDA GPU by {torch_version()}, expected one"
        raise DeviceError(f"device: {found}; install torch for CUDA, or use cpu")


def torch_version() -> str:
    """Which torch is installed, without the seconds that its import takes."""
    try:
        return f"torch {version('torch')}"
    except PackageNotFoundError:
        return "no torch"


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def unrolled_copy(folder: Path, place: Path) -> Path:
    """A copy of a bundle that has the form without a loop, which sessions on CUDA then run."""
    from export.graph.unrolled import write_unrolled  # imports torch

    shutil.copytree(folder, place)
    if write_unrolled(place):
        manifest = read_manifest(place)
        files = manifest.files | {UNROLLED_FILE: describe_file(place / UNROLLED_FILE)}
        write_manifest(place, dataclasses.replace(manifest, files=files))
    return place
