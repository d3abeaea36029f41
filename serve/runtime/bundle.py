"""Bundles in memory and sessions that run them: the only file that knows ONNX Runtime.

An ablated model is one more session over the same graph: its edited weights replace external
initialisers when the session is made, before constant folding looks at them.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from serve.ablation.ablation import Ablation, ablation_hash, canonical
from serve.ablation.apply import apply_ablation, removed_json
from serve.lru_cache import Recent
from serve.manifest.read import (
    GRAPH_FILE,
    TRIALS_FILE,
    UNROLLED_FILE,
    WEIGHTS_FILE,
    BundleError,
    Manifest,
    TensorSpec,
    read_manifest,
)
from serve.native.library import load, load_cuda
from serve.runtime.checks import check_graph, check_trials, check_weights
from serve.runtime.device import Device as Device
from serve.runtime.device import DeviceError as DeviceError
from serve.runtime.device import cuda_device_present as cuda_device_present
from serve.runtime.session import session_bytes
from serve.runtime.trials import Trials

Array = NDArray[Any]
Arrays = dict[str, Array]
ALONG_STEPS = ("forced", "uniform", "inputs", "tokens", "logprob", "logits", "outputs")  # K first
DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64"}
ABLATED_BYTES = 256 << 20  # of ablated sessions, where nobody says another bound
NOTHING = {"mass": 0.0, "negligible": True, "removed": []}  # the report of an empty ablation
SILENT = 4  # onnxruntime's log level "fatal": a missing GPU is reported by us, once


class Session:
    """`advance` of one bundle with one set of weights, on one device."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        device: Device,
        edited: Arrays,
        unrolled: bool | None = None,
        initial: Arrays | None = None,
    ) -> None:
        """`edited` weights replace the bundle's; `unrolled` chooses the form without a loop.

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
        library, self.kernels = _kernels(device)
        if library is not None:
            options.register_custom_ops_library(str(library))
        taken = {name: a for name, a in edited.items() if name not in _beside_graph(manifest)}
        # The session keeps pointers into these arrays.
        self._kept = [onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in taken.values()]
        if taken:
            options.add_external_initializers(list(taken), self._kept)
        path = folder / (UNROLLED_FILE if unrolled else GRAPH_FILE)
        try:
            self._session = onnxruntime.InferenceSession(path, options, _providers(device))
        except Exception as error:  # the runtime raises bare Exceptions of many types
            raise BundleError(path, "", f"the runtime can't load it ({error})") from None
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


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """A model under an ablation: its session, and what the edits removed."""

    session: Session
    report: dict[str, Any] | None  # None: no ablation was asked for

    @property
    def hash(self) -> str:
        """Of the ablation; empty where it changes nothing."""
        report = self.report or {"edits": []}
        return str(report["hash"]) if report["edits"] else ""


Owned = tuple[object, str]  # whose, and the hash of the ablation


class Bundle:
    """A checked bundle, its weights and its sessions. Thread-safe."""

    def __init__(self, folder: Path, device: Device) -> None:
        self.folder, self.device = folder, device
        self.manifest = read_manifest(folder)
        self.weights = _read_tensors(folder / WEIGHTS_FILE)
        check_weights(folder, self.manifest, self.weights)
        self.initial = {state.name: self.weights[state.initial] for state in self.states}
        self.plain = Variant(self._session({}), None)
        check_graph(folder, self.manifest, *self.plain.session.interface())
        self.num_made = 0  # sessions of ablated models
        self.sessions = Recent[Owned, Variant](ABLATED_BYTES)  # a host's bundles share one
        self._owner = object()  # stands for us among the keys, and does not keep us alive

    @property
    def states(self) -> Any:
        """The state tensors of one stream."""
        return self.manifest.states

    @property
    def name(self) -> str:
        """The model's id."""
        return self.manifest.name

    @property
    def identity(self) -> str:
        """SHA-256 of graph and unedited weights: bundles that have the same share states."""
        files = self.manifest.files
        return f"{files[GRAPH_FILE].sha256}-{files[WEIGHTS_FILE].sha256}"

    @functools.cached_property
    def trials(self) -> Trials:
        """The trials of a task bundle, read when they are first asked for; `BundleError`."""
        assert self.manifest.task is not None, "bundles of text have no trials"
        arrays = _read_tensors(self.folder / TRIALS_FILE)
        check_trials(self.folder, self.manifest.task, arrays)
        return Trials(**arrays)

    def variant(self, ablation: Ablation) -> Variant:
        """The model under an ablation; without edits it is the plain session itself.

        Raises `AblationError` where the edits don't fit the weights. Takes milliseconds, unless it
        is `known`: call it off the event loop.
        """
        if (found := self.known(ablation)) is not None:
            return found
        key = (self._owner, ablation_hash(ablation))
        return _named(self.sessions.get(key, lambda: self._make(ablation)), ablation)

    def _session(self, edited: Arrays) -> Session:
        return Session(self.folder, self.manifest, self.device, edited, initial=self.initial)

    def known(self, ablation: Ablation) -> Variant | None:
        """The model under an ablation if it is at hand, without waiting for anything."""
        if not ablation.edits:
            return _named(Variant(self.plain.session, dict(NOTHING)), ablation)
        found = self.sessions.find((self._owner, ablation_hash(ablation)))
        return None if found is None else _named(found, ablation)

    def forget(self) -> None:
        """Keep no ablated sessions; running streams keep theirs."""
        self.sessions.forget(lambda key: key[0] is self._owner)

    def _make(self, ablation: Ablation) -> tuple[Variant, int]:
        applied = apply_ablation(ablation, self.weights, self.manifest)
        session = self._session(applied.weights)
        self.num_made += 1
        page = {**applied.mass, "removed": [removed_json(item) for item in applied.removed]}
        return Variant(session, page), session_bytes(applied.weights, self.weights, page["removed"])


def _named(kept: Variant, ablation: Ablation) -> Variant:
    """What is kept, with the name that this caller gave the ablation."""
    assert kept.report is not None
    page = {**canonical(ablation), "hash": ablation_hash(ablation)}
    return Variant(kept.session, page | kept.report)


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


def load_bundles(folders: list[Path], wish: str, num_threads: int) -> dict[str, Bundle]:
    """All bundles by name, on one device; "auto" goes to the CPU if CUDA turns out not to work."""
    device = choose_device(wish, num_threads)
    try:
        loaded = [Bundle(folder, device) for folder in folders]
    except DeviceError:
        if wish != "auto":
            raise
        loaded = [Bundle(folder, Device("cpu", num_threads)) for folder in folders]
    bundles: dict[str, Bundle] = {}
    for bundle in loaded:
        if bundle.name in bundles:
            raise BundleError(
                bundle.folder, "name", f"{bundle.name!r} is served already; rename it"
            )
        bundles[bundle.name] = bundle
    return bundles


def _kernels(device: Device) -> tuple[Path | None, str]:
    """The library of kernels for a device, and what runs our operators there, in words.

    Kernels of one provider take the operator from all others, so CUDA has a library of its own.
    """
    if device.kind == "cuda":
        path = load_cuda()
        return path, "native (cuda)" if path else "standard operators"
    library = load()
    return (library.path, f"native ({library.level})") if library else (None, "standard operators")


def _providers(device: Device) -> list[Any]:
    if device.kind == "cpu":
        return [device.provider]
    # TF32 rounds products to 10 bits, and a recurrence feeds the rounding back.
    return [(device.provider, {"use_tf32": "0"}), "CPUExecutionProvider"]


def _read_tensors(path: Path) -> Arrays:
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise BundleError(path, "", f"not a safetensors file ({error})") from None


def _tensor_spec(value: Any) -> TensorSpec:
    shape = tuple("?" if size is None else size for size in value.shape)
    return TensorSpec(name=value.name, dtype=DTYPES.get(value.type, value.type), shape=shape)
