"""The option --device of the tests and the benches, as far as it can be tried without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import bench_advance
import bench_matrix_exp
import bench_serving
import bench_training
import numpy as np
import onnxruntime
import pytest
from scipy.linalg import expm
from where import Where, require, unrolled_copy

from serve.manifest.page import GRAPH_FILE, UNROLLED_FILE
from serve.manifest.read import read_manifest
from serve.native.library import load, status
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device, DeviceError, cuda_device_present
from serve.runtime.session import Session
from serve.settings import SHIPPED

ROOT = Path(__file__).parent.parent.parent
BENCHES = (bench_advance, bench_matrix_exp, bench_serving, bench_training)
NO_GPU = "device: found no CUDA GPU, expected one for --device cuda; use cpu"
CPU = Where("cpu")
no_gpu = pytest.mark.skipif(cuda_device_present(), reason="there is a GPU here")
needs_kernels = pytest.mark.skipif(load() is None, reason=status())


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@no_gpu
def test_tests_on_cuda_without_a_gpu_are_one_error_at_the_start() -> None:
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = run(
        "-m", "pytest", *options, "tests/serve/engine/test_state_table.py", "--device", "cuda"
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert (done.stdout + done.stderr).strip() == f"ERROR: {NO_GPU}"


@no_gpu
@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.__name__)
def test_a_bench_on_cuda_without_a_gpu_says_so_in_one_line(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{bench.__name__}.py", "--device", "cuda"])
    with pytest.raises(SystemExit) as caught:
        bench.main()
    assert caught.value.code == 2
    name, _, message = "".join(capsys.readouterr()).partition(": ")
    assert name == f"{bench.__name__}.py" and message == f"{NO_GPU}\n"


@no_gpu
def test_what_a_device_must_be_is_asked_of_a_real_model() -> None:
    require("cpu")
    with pytest.raises(DeviceError, match="found no CUDA GPU"):
        require("cuda")


@needs_kernels
def test_a_table_says_first_what_it_ran_on_and_its_figures_are_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, few in (("SIZES", (3,)), ("BATCHES", (2,)), ("NORMS", (1.0,))):
        monkeypatch.setattr(bench_matrix_exp, name, few)
    page = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["bench_matrix_exp.py", "--quick", "--json", str(page)])
    bench_matrix_exp.main()
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("on ") and ", 1 thread, CPU seconds; torch " in first
    assert first.endswith(f"onnxruntime {onnxruntime.__version__}; {status()}")
    figures = json.loads(page.read_text())
    others = {f"matrix_exp.native_over_{n}.d3.b2" for n in ("torch_operator", "torch", "body")}
    assert figures.keys() >= others | {"matrix_exp.max_abs_error"}
    assert all(type(value) is float and value > 0.0 for value in figures.values())


@needs_kernels
@pytest.mark.parametrize("native", [True, False], ids=["native", "body"])
def test_what_a_bench_runs_on_matrices_of_the_device_is_the_exponential(native: bool) -> None:
    S, library = bench_matrix_exp.skew(5, 8, 2.0), load()
    assert library is not None
    work = bench_matrix_exp.bound_run(S, CPU, library.path if native else None)
    found = work()
    assert isinstance(found, onnxruntime.OrtValue)
    np.testing.assert_allclose(found.numpy(), expm(S.astype(np.float64)), rtol=0, atol=1e-6)


def test_the_clock_of_the_cpu_counts_its_work() -> None:
    started = CPU.now()
    sum(range(300_000))
    assert CPU.now() > started


def test_a_copy_with_the_unrolled_form_is_a_good_bundle(tmp_path: Path) -> None:
    folder = SHIPPED / "tanh-rnn-shakespeare"
    place = unrolled_copy(folder, tmp_path / "copy")
    bundle = Bundle(place, Device("cpu", 1))
    assert bundle.name == read_manifest(folder).name
    assert set(bundle.manifest.files) == {*read_manifest(folder).files, UNROLLED_FILE}
    assert (place / GRAPH_FILE).read_bytes() == (folder / GRAPH_FILE).read_bytes()
    unrolled = Session(bundle.files, bundle.manifest, Device("cpu", 1), {}, unrolled=True)
    assert unrolled.interface() == bundle.plain.session.interface()
