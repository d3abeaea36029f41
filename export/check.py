"""Check a bundle again: files, graph, parity, range. What `torsor export --check BUNDLE` runs.

| check     | what must hold                                                                       |
|-----------|--------------------------------------------------------------------------------------|
| `files`   | the manifest's page is sound, every file has its size and SHA-256                    |
| `graph`   | `onnx.checker` in full, versions as stated, every weight a named external initialiser|
| `spaces`  | subspaces that targets name are orthonormal, and those of the weights                |
| `range`   | the body of `MatrixExp` covers `HEADROOM` times the angle that the model turns by    |
| `parity`  | torch, the reference evaluator and ONNX Runtime agree within the stated tolerance    |
| `kernels` | so do torch and ONNX Runtime with the native kernels, where there are any            |
| `served`  | a server takes the bundle: weights, states, targets, symmetries, trials and graph    |
| `unrolled`| where there is that form: it is the graph's, and agrees with torch                   |

Torch computes with the weights of the bundle itself, so no checkpoint is needed.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from safetensors.torch import load_file

from export.bundle import probe_angle
from export.graph.matrix_exp import HEADROOM
from export.graph.unrolled import unroll
from export.parity.task import measure_task_case
from export.parity.text import Measure, ParityError, Subject, measure_parity
from export.parity.unrolled import measure_unrolled
from export.targets import check_subspaces
from export.trials import probe_task_angle
from serve.manifest.page import (
    GRAPH_FILE,
    TRIALS_FILE,
    UNROLLED_FILE,
    WEIGHTS_FILE,
    Manifest,
    ParityCase,
)
from serve.manifest.read import read_manifest
from serve.manifest.values import BundleError
from serve.native.library import Library, load, status
from serve.runtime.bundle import load_as_served
from train.model import family

SLACK = 1.0 + 1e-3  # of angles, which are sums in another order on another machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's outcome, in words."""

    check: str
    good: bool
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a check has found."""

    manifest: Manifest
    findings: tuple[Finding, ...]
    cases: tuple[ParityCase, ...]  # of the bodies
    kernel_cases: tuple[ParityCase, ...]  # of the native kernels; empty where there are none

    @property
    def good(self) -> bool:
        """Whether every check has passed."""
        return all(finding.good for finding in self.findings)


def check_bundle(folder: Path, quiet: bool = False) -> Report:
    """Check the bundle in a folder. `BundleError` where it can't even be read."""
    manifest = read_manifest(folder)
    load_as_served(folder)
    subject = read_model(folder, manifest)
    findings = [
        Finding(check="files", good=True, says=f"{len(manifest.files)} files as the manifest says"),
        _attempt("graph", lambda: _check_graph(folder, manifest, subject)),
        _attempt("spaces", lambda: _check_spaces(folder, manifest, subject)),
        _attempt("range", lambda: _check_range(folder, manifest, subject)),
    ]
    found, cases = _check_parity("parity", folder, manifest, subject, None, quiet)
    findings.append(found)
    kernel_cases: tuple[ParityCase, ...] = ()
    if (library := load()) is not None:
        found, kernel_cases = _check_parity("kernels", folder, manifest, subject, library, quiet)
        findings.append(found)
    else:
        findings.append(Finding(check="kernels", good=True, says=f"not checked: {status()}"))
    findings.append(Finding(check="served", good=True, says="loads as on a server"))
    if UNROLLED_FILE in manifest.files:
        findings.append(_attempt("unrolled", lambda: _check_unrolled(folder, manifest, subject)))
    return Report(
        manifest=manifest, findings=tuple(findings), cases=cases, kernel_cases=kernel_cases
    )


def _attempt(check: str, work: Callable[[], str]) -> Finding:
    try:
        return Finding(check=check, good=True, says=work())
    except (ValueError, DecodeError, onnx.checker.ValidationError) as error:
        return Finding(check=check, good=False, says=str(error))


def read_model(folder: Path, manifest: Manifest) -> Subject:
    """Torch's model of a bundle, with the bundle's own weights; `BundleError` if they don't fit."""
    try:
        kind = family(manifest.family)
        model = kind(kind.Config(**manifest.config)).requires_grad_(False).eval()
    except (TypeError, ValueError) as error:
        raise BundleError(folder, "config", f"{error}; use the torsor that wrote it") from None
    stored = load_file(folder / WEIGHTS_FILE)
    expected = {name: tuple(value.shape) for name, value in model.weights().items()}
    found = {name: tuple(stored[name].shape) for name in expected if name in stored}
    if found != expected:
        raise BundleError(folder / WEIGHTS_FILE, "", f"found {found}, expected {expected}")
    weights = {name: stored[name] for name in expected}
    return Subject(name="trained", model=model, weights=weights, graph=folder / GRAPH_FILE)


def _check_graph(folder: Path, manifest: Manifest, subject: Subject) -> str:
    path, spec = folder / GRAPH_FILE, manifest.graph
    onnx.checker.check_model(path, full_check=True)
    proto = onnx.load(path, load_external_data=False)
    versions = {opset.domain: opset.version for opset in proto.opset_import}
    found = (proto.ir_version, versions.pop("", 0), versions)
    if found != (expected := (spec.ir_version, spec.opset, spec.operators)):
        raise ValueError(f"versions: found {found}, expected {expected}")
    external = onnx.TensorProto.EXTERNAL
    outside = {t.name for t in proto.graph.initializer if t.data_location == external}
    if outside != set(subject.weights):
        raise ValueError(f"weights: found {outside}, expected {set(subject.weights)}")
    bodies = ", ".join(function.name for function in proto.functions) or "none"
    return f"opset {spec.opset}, IR {spec.ir_version}, bodies of ours: {bodies}"


def _check_spaces(folder: Path, manifest: Manifest, subject: Subject) -> str:
    stored = load_file(folder / WEIGHTS_FILE)
    return check_subspaces(manifest, subject.model, subject.weights, stored)


def _check_range(folder: Path, manifest: Manifest, subject: Subject) -> str:
    stated = manifest.graph.ranges.get("MatrixExp")
    if stated is None:
        return "no exponential"
    if manifest.task is None:
        angle = probe_angle(subject.model, subject.weights)
    else:
        inputs = load_file(folder / TRIALS_FILE)["inputs"]
        angle = probe_task_angle(subject.model, subject.weights, inputs)
    told = f"turns by up to {angle:.3g} rad, MatrixExp is right to {stated:.3g}"
    if HEADROOM * angle > stated * SLACK:
        raise ValueError(f"{told}, expected {HEADROOM:g} times as far")
    return told


def _check_unrolled(folder: Path, manifest: Manifest, subject: Subject) -> str:
    graph, found = (
        onnx.load(folder / name, load_external_data=False) for name in (GRAPH_FILE, UNROLLED_FILE)
    )
    expected = unroll(graph)
    if expected is None or _bytes_of(found) != _bytes_of(expected):
        raise ValueError(f"found other nodes than {GRAPH_FILE} has, unrolled; export it again")
    cases = measure_unrolled([subject], _measure_of(folder, manifest))
    torch_error, loop_error = (
        max(errors) for errors in zip(*((c.torch_error, c.loop_error) for c in cases), strict=True)
    )
    return f"largest difference to torch {torch_error:.1e}, to the loop {loop_error:.1e}"


def _bytes_of(model: onnx.ModelProto) -> bytes:
    return model.SerializeToString(deterministic=True)


def _measure_of(folder: Path, manifest: Manifest) -> Measure | None:
    if manifest.task is None:
        return None
    names = frozenset(tensor.name for tensor in manifest.graph.inputs)
    inputs = load_file(folder / TRIALS_FILE)["inputs"]
    return functools.partial(measure_task_case, inputs, names)


def _check_parity(
    check: str,
    folder: Path,
    manifest: Manifest,
    subject: Subject,
    library: Library | None,
    quiet: bool,
) -> tuple[Finding, tuple[ParityCase, ...]]:
    try:
        parity = measure_parity([subject], quiet, _measure_of(folder, manifest), library)
    except ParityError as error:
        return Finding(check=check, good=False, says=str(error)), ()
    says = f"largest difference to torch {parity.max_error:.1e}, tolerance {parity.tolerance:.0e}"
    return Finding(check=check, good=True, says=says), parity.cases
