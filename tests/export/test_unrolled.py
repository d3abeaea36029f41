"""The form of `advance` without a loop: what a Scan does, step by step, and no Scan."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from devices import tolerance
from numpy.typing import NDArray

from export.__main__ import main
from export.check import read_model
from export.graph.unrolled import write_unrolled
from export.parity.text import TOLERANCE, UNIFORM_STEPS, ParityError, largest_error
from export.parity.unrolled import UNROLLED_SHAPES, measure_unrolled
from serve.manifest.files import BundleFiles
from serve.manifest.page import GRAPH_FILE, MANIFEST_FILE, UNROLLED_FILE
from serve.manifest.read import describe_file, read_manifest
from serve.runtime.bundle import Bundle
from serve.runtime.checks import check_graph
from serve.runtime.device import Device
from serve.runtime.session import Session

Arrays = dict[str, NDArray[Any]]

BUCKETS = (1, 4, 16, 64, 256)  # the batch sizes that a GPU would capture
CLOSE = 1e-6
FAMILIES = ("osm-rnn", "osm-former", "transformer")


@pytest.fixture(scope="module", params=FAMILIES)
def bundle(
    request: pytest.FixtureRequest,
    exported: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    device: Device,
) -> Bundle:
    """A small bundle with the unrolled form beside its graph."""
    place = tmp_path_factory.mktemp("unrolled") / "bundle"
    shutil.copytree(exported(request.param) / "bundle", place)
    assert write_unrolled(place)
    return Bundle(place, device)


def unrolled_session(bundle: Bundle, edited: Arrays) -> Session:
    """Of the form beside the graph, which the manifest of `bundle` doesn't list."""
    content = (bundle.folder / UNROLLED_FILE).read_bytes()
    files = BundleFiles(bundle.folder, {**bundle.files.contents, UNROLLED_FILE: content})
    return Session(files, bundle.manifest, bundle.device, edited, unrolled=True)


def make_feeds(bundle: Bundle, B: int, K: int) -> Arrays:
    rng, V = np.random.default_rng([B, K]), len(bundle.manifest.vocabulary)
    return {
        **{f"state.{name}": np.stack([v] * B) for name, v in bundle.initial.items()},
        "position": np.zeros(B, np.int64),
        "forced": np.where(rng.random((K, B)) < 0.5, rng.integers(0, V, (K, B)), -1),
        "num_steps": rng.choice([0, K // 2, K], B),
        "uniform": (rng.integers(0, UNIFORM_STEPS, (K, B)) / UNIFORM_STEPS).astype(np.float32),
        "temperature": rng.choice([0.0, 1.0], B).astype(np.float32),
        "top_k": rng.choice([0, 3], B),
        "top_p": rng.choice([1.0, 0.7], B).astype(np.float32),
        "bias": np.zeros((B, V), np.float32),
    }


@pytest.mark.parametrize("K", [1, 9, 16])
def test_it_computes_what_the_loop_does(bundle: Bundle, K: int) -> None:
    unrolled = unrolled_session(bundle, {})
    close = tolerance(bundle.device, CLOSE)
    for B in BUCKETS:
        feeds = make_feeds(bundle, B, K)
        expected, found = bundle.plain.session.run(feeds), unrolled.run(feeds)
        np.testing.assert_array_equal(found["tokens"], expected["tokens"])
        assert {n: v.shape for n, v in found.items()} == {n: v.shape for n, v in expected.items()}
        assert largest_error(found, expected) <= close


def test_there_is_no_loop_and_no_branch_but_the_samplers(bundle: Bundle) -> None:
    graph = onnx.load(bundle.folder / UNROLLED_FILE, load_external_data=False).graph
    assert not {"Scan", "Loop", "If"} & {node.op_type for node in graph.node}


def test_a_server_finds_in_it_what_the_manifest_says(bundle: Bundle) -> None:
    unrolled = unrolled_session(bundle, {})
    check_graph(bundle.folder, bundle.manifest, *unrolled.interface())


def test_edits_reach_it_too(bundle: Bundle) -> None:
    target = bundle.manifest.targets[0]
    edited = {target.weight: np.zeros_like(bundle.weights[target.weight])}
    feeds = make_feeds(bundle, 4, 16)
    loop = Session(bundle.files, bundle.manifest, bundle.device, edited, unrolled=False)
    unrolled = unrolled_session(bundle, edited)
    expected = loop.run(feeds)
    close = tolerance(bundle.device, CLOSE)
    assert largest_error(unrolled.run(feeds), expected) <= close
    assert largest_error(bundle.plain.session.run(feeds), expected) > close


@pytest.fixture(scope="module", params=["tanh-rnn", "osm-rnn"])
def made(
    request: pytest.FixtureRequest,
    exported: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A bundle that the command made with the unrolled form; plain/ beside it lacks it."""
    out = tmp_path_factory.mktemp("made") / "bundle"
    whole = exported(request.param)
    assert main([str(whole / "run"), "--out", str(out), "--cuda", "--quiet"]) == 0
    out.with_name("plain").symlink_to(whole / "bundle")
    return out


def test_the_command_adds_it_and_the_manifest_lists_it(made: Path) -> None:
    assert UNROLLED_FILE in read_manifest(made).files
    plain = made.with_name("plain")
    assert (made / GRAPH_FILE).read_bytes() == (plain / GRAPH_FILE).read_bytes()


def test_the_parity_report_has_it(made: Path) -> None:
    parity = read_manifest(made).parity
    found = [(case.weights, case.batch, case.start > 0) for case in parity.unrolled]
    sizes = [(shape.batch, shape.under_way) for shape in UNROLLED_SHAPES]
    assert found == [(name, *size) for name in ("trained", "random") for size in sizes]
    errors = [e for case in parity.unrolled for e in (case.torch_error, case.loop_error)]
    assert 0.0 < max(errors) <= parity.max_error <= parity.tolerance
    assert read_manifest(made.with_name("plain")).parity.unrolled == ()


def test_a_check_finds_it_good_and_another_one_bad(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = shutil.copytree(made, tmp_path / "bundle")
    assert main(["--check", str(bundle), "--quiet"]) == 0
    assert "ok   unrolled" in capsys.readouterr().out
    other = onnx.load(bundle / UNROLLED_FILE, load_external_data=False)
    next(n for n in other.graph.node if n.op_type == "LogSoftmax").op_type = "Softmax"
    (bundle / UNROLLED_FILE).write_bytes(other.SerializeToString())
    page = json.loads((bundle / MANIFEST_FILE).read_bytes())
    page["files"][UNROLLED_FILE] = dataclasses.asdict(describe_file(bundle / UNROLLED_FILE))
    (bundle / MANIFEST_FILE).write_text(json.dumps(page))
    assert main(["--check", str(bundle), "--quiet"]) == 1
    assert "BAD  unrolled found other nodes" in capsys.readouterr().out


@pytest.mark.parametrize("bundle", ["osm-rnn"], indirect=True)  # it hangs on no family
def test_parity_finds_an_unrolled_form_that_computes_something_else(
    bundle: Bundle, tmp_path: Path
) -> None:
    place = shutil.copytree(bundle.folder, tmp_path / "bundle")
    subject = read_model(place, bundle.manifest)
    cases = measure_unrolled([subject])
    assert max(max(case.torch_error, case.loop_error) for case in cases) < TOLERANCE / 5
    assert [case.start > 0 for case in cases] == [False, True]
    other = onnx.load(place / UNROLLED_FILE, load_external_data=False)
    last = max(i for i, n in enumerate(other.graph.node) if n.op_type == "SampleToken")
    state = next(n for n in other.graph.node[last:] if n.op_type == "Where")  # rows that rest move
    state.input[2] = state.input[1]
    (place / UNROLLED_FILE).write_bytes(other.SerializeToString())
    with pytest.raises(ParityError, match="of the unrolled form: trained weights, batch 3"):
        measure_unrolled([subject])
