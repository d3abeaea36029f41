"""Matrix exponentials, microseconds a call: our kernel, the body in the file, torch, scipy, JAX.

    python tests/bench/bench_matrix_exp.py [--quick] [--json FILE] [--device cuda]

One thread each, float32, skew-symmetric matrices of ‖S‖_F / √2 = 1 rad. Counted are CPU seconds,
which neighbours on a busy machine disturb less. In a round every form runs, so that what disturbs
one disturbs all; a form's figure is its best round. `native` is the kernel called on numpy arrays,
`torch_operator` the same one as training calls it. JAX runs where it is installed. The last line is
the largest error against float64, over norms up to 10.

On CUDA `native` is our kernel for it, in ONNX Runtime like the body, both on matrices that lie on
the device; `torch` is there too, `torch_operator` is not, scipy stays on the CPU, and all seconds
are by the clock.
"""

import argparse
import functools
import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from scipy.linalg import expm
from where import Where, add_option, chosen

from export.graph.operators import operator_functions
from serve.manifest.page import DOMAIN, OPSET, VERSION
from serve.native.library import load, load_cuda, status, status_cuda
from serve.native.onnx_runtime import onnxruntime
from train.groups import native

SIZES = (8, 16, 24, 32, 64)
BATCHES = (1, 64, 1024)
NORMS = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
LONG = 1e-3  # seconds of a measurement, at least
SQUARINGS = 3  # of the body: to 9.6 rad, as in a bundle of a trained model

Array = NDArray[Any]
Form = Callable[[], object]


def main() -> None:
    """Print the tables, and write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 40 s")
    parser.add_argument("--json", type=Path, help="write the figures as one flat object")
    add_option(parser)
    options = parser.parse_args()
    where = chosen(parser, options.device)
    torch.set_num_threads(1)
    is_there, told = (load(), status()) if where.kind == "cpu" else (load_cuda(), status_cuda())
    if is_there is None:
        raise SystemExit(f"bench_matrix_exp: {told}")
    print(where.line(told) + ("; scipy on the CPU" if where.kind == "cuda" else ""))
    print(f"{'d':>3} {'batch':>5} {'native':>9}  and how many times as long the others take")
    figures: dict[str, float] = {}
    for d in SIZES:
        for B in BATCHES:
            measure(d, B, 5 if options.quick else 40, figures, where)
    measure_errors(figures, where)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def measure(d: int, B: int, rounds: int, figures: dict[str, float], where: Where) -> None:
    """One row: B matrices of size d."""
    forms = make_forms(skew(B, d, math.sqrt(2.0)), where)
    once = {name: min(elapsed(form, 1, where) for _ in range(5)) for name, form in forms.items()}
    repeats = {name: max(1, round(LONG / max(seconds, 1e-7))) for name, seconds in once.items()}
    times = {name: math.inf for name in forms}
    for _ in range(rounds):
        for name, form in forms.items():
            times[name] = min(times[name], elapsed(form, repeats[name], where))
    ours = times.pop("native")
    for name, other in times.items():
        figures[f"matrix_exp.native_over_{name}.d{d}.b{B}"] = other / ours
    told = ", ".join(f"{name} {other / ours:.1f}" for name, other in times.items())
    print(f"{d:3} {B:5} {ours * 1e6:7.1f}us  {told}", flush=True)


def make_forms(S: Array, where: Where) -> dict[str, Form]:
    """The exponential of S in every form there is; the first call of each is made."""
    tensor = torch.from_numpy(S).to(where.kind)
    forms: dict[str, Form]
    if where.kind == "cpu":
        session = operator_session(where, None)
        forms = {
            "native": lambda: native_exp(S),
            "torch_operator": lambda: native.matrix_exp(tensor),
            "torch": lambda: torch.linalg.matrix_exp(tensor),
            "body": lambda: session.run(None, {"S": S}),
        }
    else:
        forms = {
            "native": bound_run(S, where, load_cuda()),
            "torch": lambda: torch.linalg.matrix_exp(tensor),
            "body": bound_run(S, where, None),
        }
    if len(S) <= 64:  # scipy takes them one by one
        forms["scipy"] = lambda: expm(S)
    if (jax_expm := find_jax()) is not None:
        forms["jax"] = lambda: jax_expm(S).block_until_ready()
    for form in forms.values():
        form()
    return forms


def native_exp(S: Array) -> Array:
    """The kernel on numpy arrays: (B, d, d)."""
    library, E = load(), np.empty_like(S)
    assert library is not None
    library.run("ortho_step", "f32", None, S.ctypes.data, E.ctypes.data, len(S), S.shape[-1])
    return E


def bound_run(S: Array, where: Where, library: Path | None) -> Form:
    """The operator in ONNX Runtime on matrices that lie on the device; gives E there."""
    session = operator_session(where, library)
    binding = session.io_binding()
    given = onnxruntime.OrtValue.ortvalue_from_numpy(S, where.kind, 0)
    binding.bind_ortvalue_input("S", given)
    binding.bind_output("E", where.kind)

    def run() -> object:
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    return run


@functools.cache
def operator_session(where: Where, library: Path | None) -> onnxruntime.InferenceSession:
    """ONNX Runtime with the kernels of a library, or stock: then the operator's body runs."""
    node = helper.make_node("MatrixExp", ["S"], ["E"], domain=DOMAIN)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", "d", "d"]) for n in "SE"]
    model = helper.make_model(
        helper.make_graph([node], "alone", values[:1], values[1:]),
        functions=operator_functions([node], SQUARINGS),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, VERSION)],
        ir_version=10,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if library is not None:
        options.register_custom_ops_library(str(library))
    return where.session(model.SerializeToString(), options)


def cuda_exp(S: Array, where: Where) -> Array:
    """What our kernel on the device gives, back in memory."""
    E: Array = operator_session(where, load_cuda()).run(None, {"S": S})[0]
    return E


@functools.cache
def find_jax() -> Any:
    """A compiled `jax.scipy.linalg.expm` over a batch, or None."""
    try:
        jax = importlib.import_module("jax")
    except ImportError:
        return None
    return jax.jit(jax.vmap(jax.scipy.linalg.expm))


def measure_errors(figures: dict[str, float], where: Where) -> None:
    """max |E - exp(S)| over all sizes and norms."""
    worst = {"native": 0.0, "torch": 0.0, "scipy float32": 0.0}
    for d in SIZES:
        for norm in NORMS:
            S = skew(16, d, norm)
            exact = expm(S.astype(np.float64))
            tensor = torch.from_numpy(S).to(where.kind)
            found = {
                "native": native_exp(S) if where.kind == "cpu" else cuda_exp(S, where),
                "torch": torch.linalg.matrix_exp(tensor).cpu().numpy(),
                "scipy float32": expm(S),
            }
            for name, E in found.items():
                worst[name] = max(worst[name], float(np.abs(E - exact).max()))
    figures["matrix_exp.max_abs_error"] = worst["native"]
    told = ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
    print(f"largest error for ‖S‖_F from {NORMS[0]} to {NORMS[-1]:.0f}: {told}")


def skew(B: int, d: int, norm: float) -> Array:
    """Skew-symmetric matrices of that Frobenius norm: (B, d, d)."""
    A = np.random.default_rng([B, d]).standard_normal((B, d, d))
    S = A - A.swapaxes(1, 2)
    made: Array = (S / np.linalg.norm(S, axis=(1, 2), keepdims=True) * norm).astype(np.float32)
    return made


def elapsed(form: Form, repeats: int, where: Where) -> float:
    """Seconds of one call, in the mean over some."""
    started = where.now()
    for _ in range(repeats):
        form()
    return (where.now() - started) / repeats


if __name__ == "__main__":
    main()
