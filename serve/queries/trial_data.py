"""Trials that a caller brings, as JSON or as a safetensors file: checked before anything runs.

`serve.manifest.page` says what `inputs`, `targets` and `mask` are; a mask that is left out is 1
everywhere. Nothing is unpickled.

Letters: T time, N trials, X input size, Y output size.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from serve.manifest.page import INPUTS, TARGETS, TaskSpec
from serve.runtime.trials import Trials
from serve.wire.errors import RequestError, invalid
from serve.wire.limits import MAX_TRIAL_BYTES
from serve.wire.queries import UploadedTrials

Array = NDArray[Any]
Arrays = dict[str, Array]
PARTS = ("inputs", "targets", "mask")


def read_json_trials(task: TaskSpec, uploaded: UploadedTrials) -> Trials:
    """Trials in nested lists; `RequestError` names the part that isn't as the task wants it."""
    arrays = {
        "inputs": _array("trials.inputs", uploaded.inputs, INPUTS[task.inputs]),
        "targets": _array("trials.targets", uploaded.targets, TARGETS[task.targets]),
    }
    if uploaded.mask is not None:
        arrays["mask"] = _array("trials.mask", uploaded.mask, "float32")
    return check_upload(task, arrays, "trials")


def read_safetensors_trials(task: TaskSpec, content: bytes, field: str) -> Trials:
    """Trials in a safetensors file that came in this field of a request. `RequestError`s."""
    _check_size(field, len(content))
    try:
        arrays: Arrays = dict(load(content))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        sentence = f"found no safetensors file ({error!s:.80}), expected one of {', '.join(PARTS)}"
        raise invalid(field, sentence) from None
    if unknown := [name for name in arrays if name not in PARTS]:
        raise invalid(f"{field}.{unknown[0]:.60}", f"unknown tensor, expected {', '.join(PARTS)}")
    if missing := [name for name in PARTS[:2] if name not in arrays]:
        raise invalid(f"{field}.{missing[0]}", "missing, expected a tensor of that name")
    return check_upload(task, arrays, field)


def check_upload(task: TaskSpec, arrays: Arrays, field: str) -> Trials:
    """The trials, if their types, shapes and values are those of the task; else `RequestError`."""
    vectors, owed = task.inputs == "vectors", task.targets == "vectors"
    inputs = arrays["inputs"]
    _check_dtype(f"{field}.inputs", inputs, INPUTS[task.inputs])
    shape = ("T", "N", task.input_size) if vectors else ("T", "N")
    if inputs.ndim != len(shape) or 0 in inputs.shape or (inputs.shape[2:] != shape[2:]):
        _refuse_shape(f"{field}.inputs", inputs, shape)
    T, N = inputs.shape[:2]
    width = (task.output_size,) if owed else ()
    expected = {
        "targets": (TARGETS[task.targets], (1 if task.pooled else T, N, *width)),
        "mask": ("float32", (T, N)),
    }
    arrays = {"mask": np.ones((T, N), np.float32)} | arrays
    for name, (dtype, sizes) in expected.items():
        _check_dtype(f"{field}.{name}", arrays[name], dtype)
        if arrays[name].shape != sizes:
            _refuse_shape(f"{field}.{name}", arrays[name], sizes)
    _check_size(field, sum(array.nbytes for array in arrays.values()))
    _check_values(f"{field}.inputs", inputs, task.input_size)
    _check_values(f"{field}.targets", arrays["targets"], task.output_size)
    _check_mask(f"{field}.mask", arrays["mask"], task.pooled)
    return Trials(*(arrays[name] for name in PARTS))


def _array(field: str, value: Any, dtype: str) -> Array:
    """Nested lists of numbers; whole numbers where characters or classes are meant."""
    kinds, expected = ("i", "whole numbers") if dtype == "int64" else ("iuf", "numbers")
    try:
        found = np.asarray(value)
    except (ValueError, OverflowError):
        raise invalid(field, "found lists of unequal lengths, expected equal ones") from None
    if found.size and found.dtype.kind not in kinds:
        raise invalid(field, f"found other values than {expected}, expected lists of {expected}")
    with np.errstate(over="ignore"):
        kept = found.astype(dtype)
    if dtype == "float32" and (lost := np.isinf(kept) & np.isfinite(found)).any():
        largest = f"{np.finfo(np.float32).max:.4g}, the largest that float32 holds"
        raise invalid(field, f"found {found[lost][0]:.4g}, expected at most {largest}; scale it")
    return kept


def _check_dtype(field: str, array: Array, dtype: str) -> None:
    if str(array.dtype) != dtype:
        raise invalid(field, f"found {array.dtype}, expected {dtype}; save it as {dtype}")


def _refuse_shape(field: str, array: Array, expected: tuple[Any, ...]) -> None:
    sizes = ", ".join(map(str, expected))
    meant = " (T steps, N trials)" if "T" in expected else " (steps, trials: those of the inputs)"
    if expected[0] == 1:
        meant = " (one answer a trial)"
    remedy = "bring some of each, in this order"
    found = f"found shape {list(array.shape)}"
    raise invalid(field, f"{found}, expected [{sizes}]{meant}; {remedy}")


def _check_size(field: str, found: int) -> None:
    if found > MAX_TRIAL_BYTES:
        sentence = f"found {found} bytes, expected at most {MAX_TRIAL_BYTES} (max_trial_bytes)"
        raise RequestError("too_large", f"{field}: {sentence}; bring fewer trials", field)


def _check_values(field: str, array: Array, size: int) -> None:
    """Finite vectors; characters and classes below `size`."""
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise invalid(field, "found a value that is not finite, expected finite numbers")
    elif (wrong := array[(array < 0) | (array >= size)]).size:
        raise invalid(field, f"found {wrong[0]}, expected 0 to {size - 1}")


def _check_mask(field: str, mask: Array, pooled: bool) -> None:
    if (wrong := mask[~((mask >= 0) & (mask <= 1))]).size:
        raise invalid(field, f"found {wrong[0]}, expected 0 to 1")
    if not mask.any():
        raise invalid(field, "found 0 at every step, expected some step that counts")
    if pooled and not mask.any(axis=0).all():
        trial = int((~mask.any(axis=0)).argmax())
        found = f"found 0 at every step of trial {trial}"
        raise invalid(field, f"{found}, expected one that counts: its answer is a mean over them")
