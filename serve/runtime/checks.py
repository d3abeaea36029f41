"""Checks of a bundle: its manifest against the weights and the graph as they really are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.ablation.symmetry import symmetry_problems
from serve.manifest.page import (
    INPUTS,
    MANIFEST_FILE,
    TARGETS,
    TRIALS_FILE,
    WEIGHTS_FILE,
    Manifest,
    StateSpec,
    Symmetry,
    Target,
    TaskSpec,
    TensorSpec,
)
from serve.manifest.values import BundleError

Arrays = Mapping[str, NDArray[Any]]
FREE = -1  # any size
ORTHONORMAL = 1e-5  # largest |B Bᵀ - I| of a subspace's basis B


def check_weights(folder: Path, manifest: Manifest, weights: Arrays) -> None:
    """`BundleError` where the manifest says of states, targets or symmetries what isn't so.

    So it is where a value of any tensor isn't finite.
    """
    _check_finite(folder / WEIGHTS_FILE, weights)
    for state in manifest.states:
        _check_initial(folder / WEIGHTS_FILE, state, weights)
    for i, target in enumerate(manifest.targets):
        _check_target(folder / MANIFEST_FILE, f"targets[{i}]", target, weights)
    for i, symmetry in enumerate(manifest.symmetries):
        _check_symmetry(folder / MANIFEST_FILE, f"symmetries[{i}]", symmetry, weights)


def check_graph(
    folder: Path, manifest: Manifest, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> None:
    """`BundleError` where the manifest's graph or states differ from the graph that was loaded."""
    path, graph = folder / MANIFEST_FILE, manifest.graph
    _check_tensors(path, "graph.inputs", graph.inputs, inputs)
    _check_tensors(path, "graph.outputs", graph.outputs, outputs)
    for key, prefix, tensors in (("inputs", "state.", inputs), ("outputs", "next.", outputs)):
        expected = {f"{prefix}{s.name}": (FREE, *s.shape) for s in manifest.states}
        found = {t.name: _sizes(t) for t in tensors if t.name.startswith(prefix)}
        if found != expected:
            raise BundleError(path, "states", f"found {expected}, expected {found} as graph.{key}")


def check_trials(folder: Path, task: TaskSpec, arrays: Arrays) -> None:
    """`BundleError` where trials.safetensors isn't as the manifest's task says."""
    path, N = folder / TRIALS_FILE, task.trials.count
    T = len(arrays["inputs"]) if "inputs" in arrays and arrays["inputs"].ndim else 0
    X = () if task.inputs == "characters" else (task.input_size,)
    Y = () if task.targets == "classes" else (task.output_size,)
    expected = {
        "inputs": (INPUTS[task.inputs], (T, N, *X)),
        "targets": (TARGETS[task.targets], (1 if task.pooled else T, N, *Y)),
        "mask": ("float32", (T, N)),
    }
    found = {name: (str(value.dtype), value.shape) for name, value in arrays.items()}
    if found != expected or not T:
        raise BundleError(path, "", f"found {found}, expected {expected} with some steps")
    _check_finite(path, arrays)
    for name, kind, size in (
        ("inputs", task.inputs, task.input_size),
        ("targets", task.targets, task.output_size),
    ):
        least, most = arrays[name].min(), arrays[name].max()
        if kind != "vectors" and not 0 <= least <= most < size:
            raise BundleError(path, name, f"found {least} to {most}, expected 0 to {size - 1}")


def _check_finite(path: Path, arrays: Arrays) -> None:
    for name, value in arrays.items():
        if value.dtype.kind != "f" or np.isfinite(value).all():
            continue
        strays = f"{np.count_nonzero(~np.isfinite(value))} of {value.size} values"
        problem = f"found {strays} NaN or infinite, expected finite numbers"
        raise BundleError(path, name, f"{problem}; export it again from a checkpoint that has them")


def _check_initial(path: Path, state: StateSpec, weights: Arrays) -> None:
    value = weights.get(state.initial)
    shape = None if value is None else value.shape
    if value is None or shape != state.shape:
        raise BundleError(path, state.initial, f"found shape {shape}, expected {state.shape}")
    if str(value.dtype) != state.dtype:
        raise BundleError(path, state.initial, f"found {value.dtype}, expected {state.dtype}")


def _check_target(path: Path, key: str, target: Target, weights: Arrays) -> None:
    value = weights.get(target.weight)
    if value is None:
        expected = f"expected a tensor of {WEIGHTS_FILE}"
        raise BundleError(path, f"{key}.weight", f"found {target.weight!r}, {expected}")
    if str(value.dtype) != "float32":
        raise BundleError(path, f"{key}.weight", f"found {value.dtype}, expected float32")
    bounds = target.slice or tuple((0, size) for size in value.shape)
    fits = len(bounds) == value.ndim and all(
        0 <= start < stop <= size for (start, stop), size in zip(bounds, value.shape, strict=True)
    )
    if not fits:
        expected = f"expected (start, stop) per axis within {value.shape}"
        raise BundleError(path, f"{key}.slice", f"found {target.slice}, {expected}")
    shape = tuple(stop - start for start, stop in bounds)
    # Axes of length 1 may be dropped: one head of (heads, d, d) is a (d, d) target
    if [n for n in target.shape if n != 1] != [n for n in shape if n != 1]:
        raise BundleError(path, f"{key}.shape", f"found {target.shape}, expected {shape}")
    if target.subspace is not None:
        _check_subspace(path, f"{key}.subspace", target, weights.get(target.subspace))


def _check_subspace(path: Path, key: str, target: Target, B: NDArray[Any] | None) -> None:
    if B is None or str(B.dtype) != "float32" or B.ndim != 2 or B.shape[1:] != target.shape[:1]:
        found = "nothing" if B is None else f"{B.dtype} {B.shape}"
        expected = f"float32 (r, {target.shape[0] if target.shape else 1})"
        raise BundleError(path, key, f"{target.subspace!r:.80}: found {found}, expected {expected}")
    wide = B.astype(np.float64)
    error = float(np.abs(wide @ wide.T - np.eye(len(B))).max(initial=0.0))
    if not error <= ORTHONORMAL:
        told = f"found rows that are orthonormal to {error:.1e}, expected to {ORTHONORMAL:.0e}"
        raise BundleError(path, key, f"{target.subspace!r:.80}: {told}; export the bundle again")


def _check_symmetry(path: Path, key: str, symmetry: Symmetry, weights: Arrays) -> None:
    shapes = {n: value.shape for n, value in weights.items() if str(value.dtype) == "float32"}
    for place, problem in symmetry_problems(symmetry, shapes):
        raise BundleError(path, f"{key}.{place}", problem)


def _check_tensors(
    path: Path, key: str, stated: Sequence[TensorSpec], real: Sequence[TensorSpec]
) -> None:
    found = [(tensor.name, tensor.dtype, _sizes(tensor)) for tensor in stated]
    expected = [(tensor.name, tensor.dtype, _sizes(tensor)) for tensor in real]
    for i in range(max(len(found), len(expected))):
        one, other = found[i : i + 1], expected[i : i + 1]
        if one != other:
            raise BundleError(path, f"{key}[{i}]", f"found {one}, expected {other} as in the graph")


def _sizes(tensor: TensorSpec) -> tuple[int, ...]:
    return tuple(FREE if isinstance(size, str) else size for size in tensor.shape)
