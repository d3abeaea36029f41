"""`torsor export --check`: a whole bundle passes, and each kind of harm is named."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from export.__main__ import main
from export.graph.matrix_exp import POLYNOMIAL
from serve.ablation.symmetry import act, draw
from serve.manifest.page import GRAPH_FILE, WEIGHTS_FILE
from serve.manifest.read import describe_file, read_manifest, write_manifest
from serve.native.library import load
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from train.__main__ import main as train

CHECKS = ["files", "graph", "spaces", "range", "parity", "kernels", "served"]


@pytest.fixture
def bundle(exported: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a small bundle, to be harmed."""
    return shutil.copytree(exported("osm-rnn") / "bundle", tmp_path / "bundle")


def check(bundle: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, bool]]:
    """The exit code, and which checks were good."""
    capsys.readouterr()
    code = main(["--check", str(bundle), "--quiet", "--json"])
    page = json.loads(capsys.readouterr().out)
    assert page["good"] == (code == 0)
    return code, {name: finding["good"] for name, finding in page["checks"].items()}


def restate(bundle: Path, **changes: object) -> None:
    """Write the manifest again, of the files as they are now."""
    page = json.loads((bundle / "manifest.json").read_bytes())
    for name in page["files"]:
        page["files"][name] = dataclasses.asdict(describe_file(bundle / name))
    (bundle / "manifest.json").write_text(json.dumps(page))
    write_manifest(bundle, dataclasses.replace(read_manifest(bundle), **changes))  # type: ignore[arg-type]


def test_a_whole_bundle_passes_every_check(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(bundle, capsys) == (0, dict.fromkeys(CHECKS, True))
    assert main(["--check", str(bundle), "--quiet"]) == 0
    told = capsys.readouterr().out
    assert told.count("ok ") == len(CHECKS)
    assert "reference" in told


def test_weights_that_the_graph_doesnt_compute_with_are_found(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = load_file(bundle / WEIGHTS_FILE)["mixing"]
    content = (bundle / WEIGHTS_FILE).read_bytes()
    moved = (before + np.float32(0.01)).astype(np.float32)
    (bundle / WEIGHTS_FILE).write_bytes(content.replace(before.tobytes(), moved.tobytes()))
    restate(bundle)
    assert check(bundle, capsys)[0] == 0  # both sides have the new weights: that is an edit
    graph = (bundle / GRAPH_FILE).read_bytes()
    coefficient = np.float64(POLYNOMIAL["d1"])
    assert coefficient.tobytes() in graph
    wrong = (coefficient * 0.9).tobytes()
    (bundle / GRAPH_FILE).write_bytes(graph.replace(coefficient.tobytes(), wrong))
    restate(bundle)
    code, good = check(bundle, capsys)
    assert code == 1
    assert not good["parity"]
    # Kernels don't ask the body for its polynomial
    assert good["kernels"] or load() is None


def test_a_range_that_the_model_leaves_is_found(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = read_manifest(bundle).graph
    restate(bundle, graph=dataclasses.replace(spec, ranges={"MatrixExp": 1e-3}))
    code, good = check(bundle, capsys)
    assert (code, good["range"], good["parity"]) == (1, False, True)


def test_a_changed_file_and_no_bundle_are_errors_that_say_so(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (bundle / WEIGHTS_FILE).open("ab") as stream:
        stream.write(b"x")
    assert main(["--check", str(bundle)]) == 1
    assert "truncated?" in capsys.readouterr().err
    assert main(["--check", str(tmp_path / "none")]) == 1
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["runs/x"],
        ["--check", "b", "--out", "c"],
        ["runs/x", "--check", "b"],
        ["--check", "b", "--cuda"],
    ],
)
def test_the_command_takes_a_run_and_a_place_or_a_bundle(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "--check" in capsys.readouterr().err


def test_a_text_of_one_character_makes_a_bundle_that_serves(tmp_path: Path) -> None:
    """Its model has subspaces without directions, so tensors without entries."""
    (tmp_path / "text.txt").write_text("a" * 4000)
    sizes = ("--d", "3", "--layers", "1", "--heads", "1", "--iterations", "2", "--window", "8")
    where = ("--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "run"), "--quiet")
    assert train(["osm-former", *sizes, *where]) == 0
    bundle = tmp_path / "bundle"
    assert main([str(tmp_path / "run"), "--out", str(bundle), "--quiet"]) == 0
    assert main(["--check", str(bundle), "--quiet"]) == 0
    loaded = Bundle(bundle, Device("cpu", 1))
    assert any(0 in weight.shape for weight in loaded.weights.values())
    for symmetry in loaded.manifest.symmetries:
        act(symmetry, draw(symmetry, 0), loaded.weights)


@pytest.mark.parametrize("junk", [b"", b"junk", bytes(64), b"\xff" * 1000])
@pytest.mark.parametrize("name", [GRAPH_FILE, WEIGHTS_FILE])
def test_junk_with_fitting_hashes_is_refused_in_one_line(
    bundle: Path, capsys: pytest.CaptureFixture[str], name: str, junk: bytes
) -> None:
    (bundle / name).write_bytes(junk)
    restate(bundle)
    assert main(["--check", str(bundle), "--quiet"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"torsor export: {bundle / name}: ") and told.count("\n") == 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("name", [GRAPH_FILE, WEIGHTS_FILE])
def test_a_truncated_file_with_a_fitting_hash_is_refused_in_one_line(
    bundle: Path, capsys: pytest.CaptureFixture[str], name: str, share: float
) -> None:
    content = (bundle / name).read_bytes()
    (bundle / name).write_bytes(content[: int(share * len(content))])
    restate(bundle)
    assert main(["--check", str(bundle), "--quiet"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("torsor export: ") and told.count("\n") == 1
