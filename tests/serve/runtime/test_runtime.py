"""Bundles in memory, their sessions, and the device they run on."""

import dataclasses
import gc
import json
import os
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from devices import CLOSE_ON_CUDA
from edited_models import layout
from numpy.typing import NDArray
from safetensors.numpy import load_file

from serve.ablation.ablation import Ablation, AblationError, Edit, ablation_hash
from serve.ablation.symmetry import act, draw
from serve.manifest.page import GRAPH_FILE, MANIFEST_FILE, WEIGHTS_FILE, Manifest
from serve.manifest.read import describe_file, read_manifest, write_manifest
from serve.manifest.values import BundleError
from serve.runtime import session as runtime
from serve.runtime.bundle import Bundle, load_bundles
from serve.runtime.checks import check_weights
from serve.runtime.device import Device, DeviceError, cuda_device_present
from serve.runtime.session import Session, choose_device
from serve.settings import SHIPPED

Array = NDArray[Any]
Arrays = dict[str, Array]
ForDevice = Callable[[Path], Path]

CPU = Device("cpu", 1)
SHIPS = sorted(path.parent.name for path in SHIPPED.glob("*/manifest.json"))

no_gpu = pytest.mark.skipif(cuda_device_present(), reason="there is a GPU here")
gpu = pytest.mark.skipif(not cuda_device_present(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def small(exported: Callable[[str], Path], for_device: ForDevice, device: Device) -> Bundle:
    return Bundle(for_device(exported("tanh-rnn") / "bundle"), device)


@pytest.fixture
def copy(small: Bundle, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return shutil.copytree(small.folder, tmp_path / "copy")


@pytest.fixture(scope="module", params=SHIPS)
def shipped(request: pytest.FixtureRequest, for_device: ForDevice, device: Device) -> Bundle:
    return Bundle(for_device(SHIPPED / request.param), device)


def make_feeds(bundle: Bundle, B: int, K: int, seed: int = 0) -> Arrays:
    """B fresh streams that draw K characters each, every third with a cut."""
    rng, V = np.random.default_rng([seed, B, K]), len(bundle.manifest.vocabulary)
    third = np.arange(B) % 3 == 0
    return {
        **{f"state.{name}": np.stack([value] * B) for name, value in bundle.initial.items()},
        "position": np.zeros(B, np.int64),
        "forced": np.full((K, B), -1, np.int64),
        "num_steps": np.full(B, K, np.int64),
        "uniform": (rng.integers(0, 1 << 23, (K, B)) / (1 << 23)).astype(np.float32),
        "temperature": np.ones(B, np.float32),
        "top_k": np.where(third, 5, 0),
        "top_p": np.where(third, 0.9, 1.0).astype(np.float32),
        "bias": np.zeros((B, V), np.float32),
    }


def column(feeds: Arrays, row: int) -> Arrays:
    """The inputs of one stream of a batch."""
    along_time = ("forced", "uniform")
    cut = slice(row, row + 1)
    return {k: v[:, cut] if k in along_time else v[cut] for k, v in feeds.items()}


def bits(outputs: Arrays) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in outputs.items()}


def row_bits(outputs: Arrays, row: int) -> dict[str, bytes]:
    return {
        name: (value[row] if name.startswith("next.") else value[:, row]).tobytes()
        for name, value in outputs.items()
    }


def chunked(bundle: Bundle, feeds: Arrays, size: int) -> dict[str, bytes]:
    """All steps in runs of `size`, states handed on."""
    parts, state = list[Arrays](), feeds
    for k in range(0, len(feeds["forced"]), size):
        cut = {name: feeds[name][k : k + size] for name in ("forced", "uniform")}
        numbers = {
            "position": feeds["position"] + k,
            "num_steps": np.full_like(feeds["position"], size),
        }
        parts.append(bundle.plain.session.run(state | cut | numbers))
        state = state | {f"state.{s.name}": parts[-1][f"next.{s.name}"] for s in bundle.states}
    whole = {k: np.concatenate([p[k] for p in parts]) for k in ("tokens", "logprob", "logits")}
    return bits(parts[-1] | whole)


def zero(target: str, name: str = "") -> Ablation:
    return Ablation(name=name, edits=(Edit(target=target, op="zero"),))


def reseal(folder: Path, **changes: Any) -> None:
    """A manifest with changes, whose file list is true of what lies there."""
    page = json.loads((folder / MANIFEST_FILE).read_text())
    for name in page["files"]:
        page["files"][name] = dataclasses.asdict(describe_file(folder / name))
    (folder / MANIFEST_FILE).write_text(json.dumps(page | changes))


# The models that ship


@pytest.mark.parametrize("B", [1, 2, 7, 16, 64])
def test_a_shipped_row_alone_has_the_bits_it_has_in_a_batch(shipped: Bundle, B: int) -> None:
    feeds = make_feeds(shipped, B, 16)
    together = shipped.plain.session.run(feeds)
    for row in range(0, B, 5):
        alone = shipped.plain.session.run(column(feeds, row))
        assert row_bits(alone, 0) == row_bits(together, row)


@pytest.mark.parametrize("B", [1, 6])
@pytest.mark.parametrize("size", [1, 4, 8])
def test_shipped_chunks_and_long_runs_have_the_same_bits(
    shipped: Bundle, B: int, size: int
) -> None:
    feeds = make_feeds(shipped, B, 16)
    assert chunked(shipped, feeds, size) == bits(shipped.plain.session.run(feeds))


def test_two_threads_have_the_bits_of_one(shipped: Bundle) -> None:
    one, two = (Session(shipped.files, shipped.manifest, Device("cpu", n), {}) for n in (1, 2))
    for B in (1, 5, 64):
        feeds = make_feeds(shipped, B, 8)
        assert bits(two.run(feeds)) == bits(one.run(feeds))


def test_every_shipped_target_can_be_ablated(shipped: Bundle) -> None:
    feeds = make_feeds(shipped, 2, 4)
    plain = shipped.plain.session.run(feeds)
    for target in shipped.manifest.targets:
        variant = shipped.variant(zero(target.name))
        assert variant.session is not shipped.plain.session
        assert bits(variant.session.run(feeds)) != bits(plain)


# Devices


@no_gpu
def test_a_wish_for_cuda_without_a_gpu_is_an_error_and_no_fallback() -> None:
    with pytest.raises(DeviceError, match="found no CUDA GPU"):
        choose_device("cuda", 1)
    with pytest.raises(DeviceError, match="found no CUDA GPU"):
        load_bundles([], "cuda", 1)


@no_gpu
def test_auto_without_a_gpu_is_the_cpu(small: Bundle) -> None:
    assert choose_device("auto", 3) == Device("cpu", 3)
    assert load_bundles([small.folder], "auto", 1)[small.name].device.kind == "cpu"


@pytest.mark.gpu
@gpu
def test_cuda_runs_where_there_is_a_gpu(small: Bundle) -> None:
    bundle = load_bundles([small.folder], "cuda", 1)[small.name]
    assert bundle.plain.session.provider == "CUDAExecutionProvider"
    feeds = make_feeds(small, 4, 8) | {"forced": np.ones((8, 4), np.int64)}
    on_cpu = Session(small.files, small.manifest, CPU, {})
    found, expected = bundle.plain.session.run(feeds), on_cpu.run(feeds)
    assert np.abs(found["logits"] - expected["logits"]).max() <= CLOSE_ON_CUDA


def test_the_cpu_is_the_cpu_with_as_many_threads_as_were_asked_for(small: Bundle) -> None:
    assert choose_device("cpu", 2) == Device("cpu", 2)
    assert Device("cpu", 2).provider == "CPUExecutionProvider"
    assert Device("cuda", 1).provider == "CUDAExecutionProvider"
    assert small.plain.session.provider == small.device.provider


@no_gpu
def test_a_gpu_whose_libraries_do_not_load_is_an_error_for_cuda_and_the_cpu_for_auto(
    small: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "cuda_device_present", lambda: True)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    with pytest.raises(DeviceError, match="found CPUExecutionProvider in use"):
        load_bundles([small.folder], "cuda", 1)
    assert load_bundles([small.folder], "auto", 1)[small.name].device == CPU


# What a bundle must be


def test_a_bundle_holds_what_its_files_say(small: Bundle) -> None:
    assert small.manifest == read_manifest(small.folder)
    assert small.name == "small-tanh-rnn"
    for state in small.states:
        assert small.initial[state.name].shape == state.shape
        assert small.initial[state.name].dtype == state.dtype


@pytest.mark.parametrize("name", [GRAPH_FILE, WEIGHTS_FILE])
def test_a_changed_file_is_refused_by_name(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[-1] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(BundleError, match=f"copy/{name}: sha256: found .*, expected "):
        Bundle(copy, CPU)


@pytest.mark.parametrize("name", [GRAPH_FILE, WEIGHTS_FILE])
def test_a_truncated_file_is_refused_by_name(copy: Path, name: str) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[:-1])
    sizes = f"found {len(content) - 1} bytes, expected {len(content)}"
    with pytest.raises(BundleError, match=f"copy/{name}: size: {sizes}"):
        Bundle(copy, CPU)


@pytest.mark.parametrize("name", [GRAPH_FILE, WEIGHTS_FILE, MANIFEST_FILE])
def test_a_missing_file_is_refused_by_name(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(BundleError, match=f"copy/{name}: missing"):
        Bundle(copy, CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 3}, f"{MANIFEST_FILE}: format: found 3, expected 2"),
        ({"format": 1}, "found 1, expected 2; .* or export the bundle again"),
        ({"colour": "blue"}, f"{MANIFEST_FILE}: colour: unknown key"),
        (
            {"num_parameters": "many"},
            f"{MANIFEST_FILE}: num_parameters: found 'many', expected int",
        ),
    ],
)
def test_a_newer_or_wrong_manifest_is_refused_by_key(
    copy: Path, changes: dict[str, Any], message: str
) -> None:
    reseal(copy, **changes)
    with pytest.raises(BundleError, match=message):
        Bundle(copy, CPU)


def test_a_graph_that_the_runtime_cannot_load_is_refused_by_name(copy: Path) -> None:
    (copy / GRAPH_FILE).write_bytes(b"no graph")
    reseal(copy)
    with pytest.raises(BundleError, match=f"{GRAPH_FILE}: the runtime can't load it"):
        Bundle(copy, CPU)


@pytest.mark.parametrize("content", [b"", b"short", struct.pack("<Q", 1 << 40) + b"{}"])
def test_weights_that_are_no_safetensors_file_are_refused_by_name(
    copy: Path, content: bytes
) -> None:
    (copy / WEIGHTS_FILE).write_bytes(content)
    reseal(copy)
    with pytest.raises(BundleError, match=f"{WEIGHTS_FILE}: not a safetensors file"):
        Bundle(copy, CPU)


@pytest.mark.parametrize("stray", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["recurrent", "readout.bias", "initial.h"])
def test_weights_that_are_not_finite_are_refused_by_name(
    copy: Path, name: str, stray: float
) -> None:
    weights = {key: value.copy() for key, value in load_file(copy / WEIGHTS_FILE).items()}
    weights[name].flat[-1] = stray
    (copy / WEIGHTS_FILE).write_bytes(layout(copy / WEIGHTS_FILE, weights))
    reseal(copy)
    found = f"found 1 of {weights[name].size} values NaN or infinite"
    with pytest.raises(BundleError, match=f"{WEIGHTS_FILE}: {name}: {found}"):
        Bundle(copy, CPU)


HARMS: dict[str, Callable[[Path], Any]] = {
    "other bytes": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "truncated": lambda path: os.truncate(path, 5),
    "empty": lambda path: os.truncate(path, 0),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_runs_are_the_bytes_that_were_hashed(copy: Path, harm: str) -> None:
    """Whatever happens to the files: plain and ablated, sessions made before and after."""
    bundle, untouched = Bundle(copy, CPU), Bundle(copy, CPU)
    ablation = zero(bundle.manifest.targets[0].name)
    feeds = make_feeds(bundle, B=3, K=8)
    expected = [untouched.plain.session.run(feeds), untouched.variant(ablation).session.run(feeds)]
    for name in (WEIGHTS_FILE, GRAPH_FILE):
        HARMS[harm](copy / name)
    found = [bundle.plain.session.run(feeds), bundle.variant(ablation).session.run(feeds)]
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            np.testing.assert_array_equal(one[name], value)


@pytest.mark.parametrize(("initial", "found"), [("nowhere", "None"), ("input", r"\(14, 12\)")])
def test_an_initial_state_that_is_not_there_is_refused_by_name(
    copy: Path, initial: str, found: str
) -> None:
    manifest = read_manifest(copy)
    (state,) = manifest.states
    write_manifest(copy, with_state(manifest, dataclasses.replace(state, initial=initial)))
    with pytest.raises(BundleError, match=f"{WEIGHTS_FILE}: {initial}: found shape {found}"):
        Bundle(copy, CPU)


def with_state(manifest: Manifest, state: Any) -> Manifest:
    return dataclasses.replace(manifest, states=(state,))


def test_an_initial_state_of_another_type_is_refused_by_name(copy: Path) -> None:
    weights = load_file(copy / WEIGHTS_FILE)
    wrong = {"initial.h": weights["initial.h"].astype(np.float64)}
    with pytest.raises(BundleError, match="initial.h: found float64, expected float32"):
        check_weights(copy, read_manifest(copy), weights | wrong)


SLICE = [[0, 13], [0, 12]]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("targets", 0, "weight"), "nowhere", r"targets\[0\].weight: found 'nowhere', expected"),
        (("targets", 0, "slice"), SLICE, r"targets\[0\].slice: found .*within \(12, 12\)"),
        (("targets", 0, "slice"), [[0, 12]], r"targets\[0\].slice: found"),
        (("targets", 0, "slice"), [[3, 3], [0, 12]], r"targets\[0\].slice: found"),
        (("targets", 0, "slice"), [[-1, 3], [0, 12]], r"targets\[0\].slice: found"),
        (("targets", 0, "shape"), [3, 12], r"targets\[0\].shape: found \(3, 12\), expected"),
        (("graph", "outputs"), [], r"graph.outputs\[0\]: found \[\], expected .*next.h"),
        (("graph", "inputs", 0, "name"), "state.x", r"graph.inputs\[0\]: found .*state.x"),
        (("graph", "inputs", 1, "dtype"), "float32", r"graph.inputs\[1\]: found .*float32"),
        (("graph", "inputs", 1, "shape"), ["B", "K"], r"graph.inputs\[1\]: found .*-1, -1"),
        (("graph", "inputs", 1, "shape"), [3], r"graph.inputs\[1\]: found .*\(3,\)"),
        (("states", 0, "name"), "x", "states: found .*state.x.*expected .*state.h.* as graph.inp"),
    ],
)
def test_a_manifest_that_is_not_true_of_weights_and_graph_is_refused_by_key(
    copy: Path, place: tuple[str | int, ...], value: Any, message: str
) -> None:
    page = inner = json.loads((copy / MANIFEST_FILE).read_text())
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    (copy / MANIFEST_FILE).write_text(json.dumps(page))
    with pytest.raises(BundleError, match=f"copy/{MANIFEST_FILE}: {message}"):
        Bundle(copy, CPU)


def test_a_slice_and_a_dropped_axis_of_length_one_are_fine_targets(copy: Path) -> None:
    page = json.loads((copy / MANIFEST_FILE).read_text())
    page["targets"][0] |= {"slice": [[2, 3], [0, 12]], "shape": [12], "ops": ["zero"]}
    reseal(copy, targets=page["targets"])
    assert Bundle(copy, CPU).variant(zero(page["targets"][0]["name"])).report is not None


def test_a_missing_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="nowhere: no such folder"):
        load_bundles([tmp_path / "nowhere"], "cpu", 1)


def test_two_bundles_of_one_name_are_refused(small: Bundle, copy: Path) -> None:
    with pytest.raises(BundleError, match="copy: name: 'small-tanh-rnn' is served already"):
        load_bundles([small.folder, copy], "cpu", 1)
    reseal(copy, name="another")
    assert list(load_bundles([small.folder, copy], "cpu", 1)) == ["small-tanh-rnn", "another"]


# Ablated sessions


def test_the_same_edits_share_a_session_under_any_name(small: Bundle) -> None:
    one, other = small.variant(zero("input", "one")), small.variant(zero("input", "other"))
    assert one.session is other.session
    assert one.report is not None and other.report is not None
    assert (one.report["name"], other.report["name"]) == ("one", "other")
    assert one.report["hash"] == other.report["hash"] == ablation_hash(zero("input"))
    assert one.report["removed"][0]["mass"] == 1.0
    assert small.variant(zero("readout")).session is not one.session


def test_the_session_of_no_edits_is_the_plain_one(small: Bundle) -> None:
    variant = small.variant(Ablation(name="nothing", edits=()))
    assert variant.session is small.plain.session
    assert variant.report is not None and variant.report["removed"] == []
    assert small.plain.report is None


def test_ablated_sessions_are_bounded_and_the_oldest_go_first(
    exported: Callable[[str], Path],
    for_device: ForDevice,
    device: Device,
) -> None:
    bundle = Bundle(for_device(exported("tanh-rnn") / "bundle"), device)
    recurrent = bundle.variant(zero("recurrent")).session
    bundle.sessions.max_bytes = bundle.sessions.num_bytes * 5 // 2  # two of them
    readout = bundle.variant(zero("readout")).session
    assert bundle.variant(zero("recurrent")).session is recurrent  # used again: readout is oldest
    first = bundle.variant(zero("input")).session
    assert bundle.variant(zero("recurrent")).session is recurrent
    assert bundle.variant(zero("input")).session is first
    again = bundle.variant(zero("readout")).session
    assert again is not readout
    feeds = make_feeds(bundle, 3, 5)
    assert bits(again.run(feeds)) == bits(readout.run(feeds))


def test_callers_at_the_same_time_share_one_session(
    exported: Callable[[str], Path], device: Device
) -> None:
    bundle = Bundle(exported("tanh-rnn") / "bundle", device)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: bundle.variant(zero("input")).session, range(16)))
    assert len({id(session) for session in found}) == 1


def test_an_ablation_that_does_not_fit_is_refused_and_not_kept(small: Bundle) -> None:
    for _ in range(2):
        with pytest.raises(AblationError, match="edits\\[0\\].target: found 'nowhere'"):
            small.variant(zero("nowhere"))
    assert small.variant(zero("input")).report is not None


@pytest.mark.parametrize("name", ["nowhere", "step_axis", "tokens", "num_steps"])
def test_an_edit_of_what_is_no_external_weight_fails_loudly(small: Bundle, name: str) -> None:
    with pytest.raises(BundleError, match=f"{GRAPH_FILE}: the runtime can't load it"):
        Session(small.files, small.manifest, CPU, {name: np.zeros(12, np.float32)})


def test_a_session_has_the_initial_states_that_it_was_given_or_that_were_edited(
    small: Bundle,
) -> None:
    assert list(small.plain.session.initial) == ["h"]
    assert small.plain.session.initial["h"] is small.initial["h"]
    ones = np.ones(12, np.float32)
    session = Session(small.files, small.manifest, CPU, {"initial.h": ones}, initial=small.initial)
    assert session.initial == {"h": ones}
    feeds = make_feeds(small, 4, 6)
    assert bits(session.run(feeds)) == bits(small.plain.session.run(feeds))


@pytest.mark.parametrize("family", ["osm-rnn", "osm-former"])
def test_a_symmetry_of_all_that_a_bundle_holds_leaves_its_logits_as_they_are(
    exported: Callable[[str], Path], family: str
) -> None:
    """The initial state and the subspace too, which the graph takes from nowhere."""
    bundle = Bundle(exported(family) / "bundle", CPU)
    assert bundle.manifest.symmetries
    for symmetry in bundle.manifest.symmetries:
        edited = act(symmetry, draw(symmetry, 0), bundle.weights)
        session = Session(bundle.files, bundle.manifest, CPU, edited, initial=bundle.initial)
        feeds = make_feeds(bundle, 4, 6)
        expected = bundle.plain.session.run(feeds)
        feeds["forced"] = expected["tokens"]
        feeds |= {f"state.{n}": np.stack([value] * 4) for n, value in session.initial.items()}
        found = session.run(feeds)
        np.testing.assert_allclose(found["logits"], expected["logits"], rtol=0.0, atol=2e-5)


@pytest.mark.parametrize(
    "value", [np.zeros((12, 11), np.float32), np.zeros(144, np.float32), np.zeros((12, 12))]
)
def test_an_edit_of_another_shape_or_type_fails_loudly(small: Bundle, value: Array) -> None:
    with pytest.raises(BundleError, match=f"{GRAPH_FILE}: the runtime can't load it"):
        Session(small.files, small.manifest, CPU, {"recurrent": value})


def test_a_session_keeps_its_edited_weights_alive(small: Bundle) -> None:
    feeds = make_feeds(small, 4, 6)
    edited = {"recurrent": small.weights["recurrent"] * np.float32(0.5)}
    session = Session(small.files, small.manifest, small.device, edited)
    before = bits(session.run(feeds))
    del edited
    gc.collect()
    junk = [np.full((12, 12), np.nan, np.float32) for _ in range(1000)]
    assert bits(session.run(feeds)) == before
    del junk


def test_runs_leave_their_inputs_and_each_other_alone(small: Bundle) -> None:
    feeds = make_feeds(small, 5, 6)
    kept = {name: value.copy() for name, value in feeds.items()}
    first = small.plain.session.run(feeds)
    expected = bits(first)
    assert bits(small.plain.session.run(feeds)) == expected
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: bits(small.plain.session.run(feeds)), range(20)))
    assert found == [expected] * 20
    assert bits(feeds) == bits(kept) and bits(first) == expected
