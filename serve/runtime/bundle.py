"""Bundles in memory: checked, with their weights and the sessions that run them."""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from serve.ablation.ablation import Ablation, ablation_hash, canonical
from serve.ablation.apply import apply_ablation, removed_json
from serve.lru_cache import LruCache
from serve.manifest.files import read_file, read_files
from serve.manifest.page import GRAPH_FILE, TRIALS_FILE, UNROLLED_FILE, WEIGHTS_FILE
from serve.manifest.read import read_manifest
from serve.manifest.values import BundleError
from serve.runtime.checks import check_graph, check_trials, check_weights
from serve.runtime.device import Device, DeviceError
from serve.runtime.kernel_check import kernel_difference
from serve.runtime.session import BODIES, Session, choose_device, session_bytes
from serve.runtime.trials import Trials

log = logging.getLogger("torsor")

Array = NDArray[Any]
Arrays = dict[str, Array]
ABLATED_BYTES = 256 << 20  # of ablated sessions, where nobody says another bound
NOTHING = {"mass": 0.0, "negligible": True, "removed": []}  # the report of an empty ablation


@dataclass(frozen=True, slots=True, eq=False)
class AblatedModel:
    """A model under an ablation: its session, and what the edits removed."""

    session: Session
    report: dict[str, Any] | None  # None: no ablation was asked for

    @property
    def hash(self) -> str:
        """Of the ablation; empty where it changes nothing."""
        report = self.report or {"edits": []}
        return str(report["hash"]) if report["edits"] else ""


Found = TypeVar("Found")
Loader = Callable[[Path, Device], Found]
CacheKey = tuple[object, str]  # whose, and the hash of the ablation


class Bundle:
    """A checked bundle, its weights and its sessions. Thread-safe."""

    def __init__(self, folder: Path, device: Device, checks_kernels: bool | None = None) -> None:
        """`checks_kernels`: whether kernels are compared with bodies first; None: on CUDA."""
        self.folder, self.device = folder, device
        self.manifest = read_manifest(folder)
        wanted = {GRAPH_FILE, WEIGHTS_FILE, UNROLLED_FILE} & set(self.manifest.files)
        self.files = read_files(folder, self.manifest, wanted)
        self.weights = _read_tensors(folder / WEIGHTS_FILE, self.files[WEIGHTS_FILE])
        check_weights(folder, self.manifest, self.weights)
        self.initial = {state.name: self.weights[state.initial] for state in self.states}
        self._without_kernels = ""  # why no session has kernels, where they were found wrong
        checks = device.kind == "cuda" if checks_kernels is None else checks_kernels
        self.plain = AblatedModel(self._checked_session() if checks else self._session({}), None)
        check_graph(folder, self.manifest, *self.plain.session.interface())
        self.num_made = 0  # sessions of ablated models
        # Served models share one: see `Models`.
        self.sessions = LruCache[CacheKey, AblatedModel](ABLATED_BYTES)
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
        path = self.folder / TRIALS_FILE
        arrays = _read_tensors(path, read_file(path, self.manifest.files[TRIALS_FILE]))
        check_trials(self.folder, self.manifest.task, arrays)
        return Trials(**arrays)

    def variant(self, ablation: Ablation) -> AblatedModel:
        """The model under an ablation; without edits it is the plain session itself.

        Raises `AblationError` where the edits don't fit the weights. Takes milliseconds, unless it
        is `known`: call it off the event loop.
        """
        if (found := self.known(ablation)) is not None:
            return found
        key = (self._owner, ablation_hash(ablation))
        return _named(self.sessions.get(key, lambda: self._make(ablation)), ablation)

    def _session(self, edited: Arrays, without_kernels: str = "") -> Session:
        why = without_kernels or self._without_kernels
        where = (self.files, self.manifest, self.device)
        return Session(*where, edited, initial=self.initial, without_kernels=why)

    def _checked_session(self) -> Session:
        """The plain session; without kernels, as all that follow, where these compute otherwise."""
        session = self._session({})
        if session.kernels == BODIES:
            return session
        bodies = self._session({}, BODIES)
        difference = kernel_difference(session.run, bodies.run, self.manifest, self.initial)
        if difference <= (tolerance := self.manifest.parity.tolerance):
            return session
        told = (
            f"the {session.kernels} kernels differ by {difference:.1e}, tolerance {tolerance:.0e}"
        )
        log.warning("%s: %s; the operators' bodies run instead", self.name, told)
        self._without_kernels = f"{BODIES}: {told}"
        return self._session({})

    def known(self, ablation: Ablation) -> AblatedModel | None:
        """The model under an ablation if it is at hand, without waiting for anything."""
        if not ablation.edits:
            return _named(AblatedModel(self.plain.session, dict(NOTHING)), ablation)
        found = self.sessions.find((self._owner, ablation_hash(ablation)))
        return None if found is None else _named(found, ablation)

    def forget(self) -> None:
        """Keep no ablated sessions; running streams keep theirs."""
        self.sessions.forget(lambda key: key[0] is self._owner)

    def _make(self, ablation: Ablation) -> tuple[AblatedModel, int]:
        applied = apply_ablation(ablation, self.weights, self.manifest)
        session = self._session(applied.weights)
        self.num_made += 1
        page = {**applied.mass, "removed": [removed_json(item) for item in applied.removed]}
        return AblatedModel(session, page), session_bytes(
            applied.weights, self.weights, page["removed"]
        )


def _named(kept: AblatedModel, ablation: Ablation) -> AblatedModel:
    """What is kept, with the name that this caller gave the ablation."""
    assert kept.report is not None
    page = {**canonical(ablation), "hash": ablation_hash(ablation)}
    return AblatedModel(kept.session, page | kept.report)


def load_as_served(folder: Path) -> None:
    """Load a bundle as a server does, its trials too; `BundleError` where a server would refuse."""
    bundle = Bundle(folder, Device("cpu", 1))
    if bundle.manifest.task is not None:
        assert len(bundle.trials.inputs)


def load_bundles(folders: list[Path], wish: str, num_threads: int) -> dict[str, Bundle]:
    """All bundles by name, on one device; "auto" goes to the CPU if CUDA turns out not to work."""
    return _by_name(_load_all(folders, wish, num_threads, Bundle))


def load_whole_bundles(
    folders: list[Path], wish: str, num_threads: int
) -> tuple[dict[str, Bundle], dict[str, str]]:
    """Those bundles that can be loaded; and why others can't, by the names of their folders.

    Raises `BundleError` where none can.
    """
    broken = dict[str, BundleError]()

    def load_whole(folder: Path, device: Device) -> Bundle | None:
        try:
            return Bundle(folder, device)
        except BundleError as error:
            broken[folder.name] = error
            return None

    loaded = _load_all(folders, wish, num_threads, load_whole)
    whole = [bundle for bundle in loaded if bundle is not None]
    for error in broken.values():
        if not whole:
            raise error
        log.error("torsor serve: %s; the other models are served without it", error)
    return _by_name(whole), {name: error.brief for name, error in broken.items()}


def _load_all(folders: list[Path], wish: str, num_threads: int, load: Loader[Found]) -> list[Found]:
    device = choose_device(wish, num_threads)
    try:
        return [load(folder, device) for folder in folders]
    except DeviceError:
        if wish != "auto":
            raise
        return [load(folder, Device("cpu", num_threads)) for folder in folders]


def _by_name(loaded: list[Bundle]) -> dict[str, Bundle]:
    bundles: dict[str, Bundle] = {}
    for bundle in loaded:
        if bundle.name in bundles:
            raise BundleError(
                bundle.folder, "name", f"{bundle.name!r} is served already; rename it"
            )
        bundles[bundle.name] = bundle
    return bundles


def _read_tensors(path: Path, content: bytes) -> Arrays:
    try:
        return dict(load(content))
    except SafetensorError as error:
        raise BundleError(path, "", f"not a safetensors file ({error})") from None
