"""Sessions: one graph with one set of weights on one device; the only file that knows ONNX Runtime.

An ablated model is one more session over the same graph: its edited weights replace external
initialisers when the session is made, before constant folding looks at them.

A session of an ablated model is taken to cost in memory

    2 MiB of the runtime's own + the edited weights + all weights twice + the page of the edits

All weights twice: as the runtime loads them, and as it packs them for its products.
tests/bench/session_memory.py measures what sessions really take: of the bundles that ship, about
1.1 MiB when they are made and up to 2.3 MiB once 256 streams have run on them, where the estimate
is 3.2 MiB. It is too low by up to a half only for windows of small models under that many streams.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.manifest.files import BundleFiles
from serve.manifest.page import GRAPH_FILE, UNROLLED_FILE, WEIGHTS_FILE, Manifest, TensorSpec
from serve.manifest.values import BundleError
from serve.native.library import load, load_cuda
from serve.native.onnx_runtime import onnxruntime
from serve.runtime.device import Device, DeviceError, cuda_device_present

Array = NDArray[Any]
Arrays = dict[str, Array]
ALONG_STEPS = ("forced", "uniform", "inputs", "tokens", "logprob", "logits", "outputs")  # K first
DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64"}
BODIES = "standard operators"  # what runs where there are no kernels
SILENT = 4  # onnxruntime's log level "fatal": a missing GPU is reported by us, once
RUNTIME_BYTES = 2 << 20  # graph, kernels and what the allocator can't give back
PAGE_FACTOR = 4  # bytes that Python takes for a character of JSON


class Session:
    """`advance` of one bundle with one set of weights, on one device."""

    def __init__(
        self,
        files: BundleFiles,
        manifest: Manifest,
        device: Device,
        edited: Arrays,
        unrolled: bool | None = None,
        initial: Arrays | None = None,
        without_kernels: str = "",
    ) -> None:
        """`edited` weights replace the bundle's; `unrolled` chooses the form without a loop.

        `without_kernels` says why the operators' bodies are to run where there are kernels.

        Left open, that form runs on CUDA where the bundle has it. Streams start from the bundle's
        `initial` states, or from edited ones: see `self.initial`.
        """
        self.initial = dict(initial or {})
        self.initial |= {s.name: edited[s.initial] for s in manifest.states if s.initial in edited}
        if unrolled is None:
            unrolled = device.kind == "cuda" and UNROLLED_FILE in manifest.files
        self._all_steps = manifest.graph.max_steps if unrolled else None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = device.num_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = SILENT
        options.enable_mem_pattern = False  # batch and steps change from run to run
        # An arena keeps what the largest run took: of hundreds of ablated sessions, that is most.
        options.enable_cpu_mem_arena = not edited
        # Spinning workers would take the core that the event loop needs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        library, self.kernels = (None, without_kernels) if without_kernels else _kernels(device)
        if library is not None:
            options.register_custom_ops_library(str(library))
        taken = {name: a for name, a in edited.items() if name not in _beside_graph(manifest)}
        # The session keeps pointers into these arrays.
        self._kept = [onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in taken.values()]
        if taken:
            options.add_external_initializers(list(taken), self._kept)
        weights = files[WEIGHTS_FILE]  # from memory: a mapped file may change under a running model
        options.add_external_initializers_from_files_in_memory(
            [WEIGHTS_FILE], [weights], [len(weights)]
        )
        name = UNROLLED_FILE if unrolled else GRAPH_FILE
        try:
            self._session = onnxruntime.InferenceSession(files[name], options, _providers(device))
        except Exception as error:  # the runtime raises bare Exceptions of many types
            told = f"the runtime can't load it ({error})"
            raise BundleError(files.folder / name, "", told) from None
        self.provider: str = self._session.get_providers()[0]
        if self.provider != device.provider:
            raise DeviceError(
                f"device: found {self.provider} in use, expected {device.provider}; "
                "the CUDA libraries don't load, install them or use --device cpu"
            )
        self._outputs = [output.name for output in manifest.graph.outputs]

    def interface(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """The inputs and the outputs that the graph really has."""
        inputs, outputs = (
            [_tensor_spec(value) for value in values]
            for values in (self._session.get_inputs(), self._session.get_outputs())
        )
        if self._all_steps is None:
            return inputs, outputs
        return [_any_steps(tensor) for tensor in inputs], [_any_steps(t) for t in outputs]

    def run(self, feeds: Arrays) -> Arrays:
        """All outputs of one run, by name; the interpreter lock is free meanwhile."""
        if self._all_steps is None:
            return self._run(feeds)
        return run_whole(self._run, feeds, self._all_steps)

    def _run(self, feeds: Arrays) -> Arrays:
        return dict(zip(self._outputs, self._session.run(self._outputs, feeds), strict=True))


def _beside_graph(manifest: Manifest) -> set[str | None]:
    """Tensors of weights.safetensors that no graph takes."""
    subspaces = {target.subspace for target in manifest.targets}
    return subspaces | {state.initial for state in manifest.states}


def _any_steps(tensor: TensorSpec) -> TensorSpec:
    """K as callers see it, who may ask for fewer steps than the graph takes: see `run_whole`."""
    shape = ("K", *tensor.shape[1:]) if tensor.name in ALONG_STEPS else tensor.shape
    return TensorSpec(name=tensor.name, dtype=tensor.dtype, shape=shape)


def run_whole(run: Callable[[Arrays], Arrays], feeds: Arrays, steps: int) -> Arrays:
    """A run of fewer than `steps` steps by a graph that always takes that many: the others rest."""
    along = [name for name in ALONG_STEPS if name in feeds]
    K = len(feeds[along[0]])
    filled = {n: np.pad(feeds[n], [(0, steps - K)] + [(0, 0)] * (feeds[n].ndim - 1)) for n in along}
    outputs = run(feeds | filled)
    return {n: v if n.startswith("next.") else v[:K] for n, v in outputs.items()}


def choose_device(wish: str, num_threads: int) -> Device:
    """The device for a wish of "auto", "cpu" or "cuda".

    "auto" takes CUDA where a GPU and its libraries really work, else the CPU. Raises `DeviceError`
    where "cuda" is wished for and doesn't work: there is no fallback from a wish.
    """
    onnxruntime.set_default_logger_severity(SILENT)
    if wish == "cpu" or (wish == "auto" and not cuda_device_present()):
        return Device("cpu", num_threads)
    if not cuda_device_present():
        raise DeviceError("device: found no CUDA GPU, expected one for --device cuda; use cpu")
    onnxruntime.preload_dlls()
    return Device("cuda", num_threads)


def _kernels(device: Device) -> tuple[Path | None, str]:
    """The library of kernels for a device, and what runs our operators there, in words.

    Kernels of one provider take the operator from all others, so CUDA has a library of its own.
    """
    if device.kind == "cuda":
        path = load_cuda()
        return path, "native (cuda)" if path else BODIES
    library = load()
    return (library.path, f"native ({library.level})") if library else (None, BODIES)


def _providers(device: Device) -> list[Any]:
    if device.kind == "cpu":
        return [device.provider]
    # TF32 rounds products to 10 bits, and a recurrence feeds the rounding back.
    return [(device.provider, {"use_tf32": "0"}), "CPUExecutionProvider"]


def _tensor_spec(value: Any) -> TensorSpec:
    shape = tuple("?" if size is None else size for size in value.shape)
    return TensorSpec(name=value.name, dtype=DTYPES.get(value.type, value.type), shape=shape)


def session_bytes(edited: Arrays, weights: Arrays, removed: Any) -> int:
    """The estimate, for edits that removed what the page `removed` says."""
    page = PAGE_FACTOR * len(json.dumps(removed))
    return RUNTIME_BYTES + _size(edited) + 2 * _size(weights) + page


def _size(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())
