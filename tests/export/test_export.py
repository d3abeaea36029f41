"""From a trained model to a bundle: what the graph means, and what an export refuses."""

import dataclasses
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from devices import tolerance
from every_edit import edits_of, symmetries_of
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, parser
from safetensors.numpy import load_file

import serve.runtime.session
from export import bundle as export_room
from export.__main__ import main
from export.bundle import INITIAL, export_bundle, probe_angle, restore_model
from export.graph.matrix_exp import HEADROOM
from export.graph.osm_advance import unfold
from export.parity.text import (
    TOLERANCE,
    UNIFORM_STEPS,
    ParityError,
    Subject,
    advance_reference,
    largest_error,
    measure_parity,
)
from export.weights_file import set_weights
from serve.ablation.apply import apply_ablation
from serve.ablation.parse import parse_ablation
from serve.manifest.page import GRAPH_FILE, MANIFEST_FILE, WEIGHTS_FILE
from serve.manifest.read import read_manifest
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.runtime.session import Session
from serve.settings import SHIPPED
from train.checkpoint import Tensors, find_checkpoint, read_checkpoint, write_checkpoint
from train.data.text import load_text
from train.loop import train
from train.model import Model, State, Weights, family, family_names, predict
from train.presets import count_parameters
from train.run import save_run, start_run
from train.settings import Settings

TEXT_FAMILIES = [name for name in family_names() if "characters" in family(name).takes]

Array = NDArray[Any]
Arrays = dict[str, Array]

CPU = Device("cpu", 1)
CLOSE = 1e-5  # |a - b| / (1 + |b|)
PINNED_OPSET, PINNED_IR, PINNED_OPERATORS = 20, 10, {"torsor": 1}
STOCK = """
import json, sys
import numpy as np, onnx, onnxruntime
from onnx.reference import ReferenceEvaluator
graph, feeds, out = sys.argv[1:]
feeds = dict(np.load(feeds))
session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
reference = ReferenceEvaluator(onnx.load(graph))
names = [output.name for output in session.get_outputs()]
found = dict(zip(names, session.run(None, feeds), strict=True))
again = dict(zip(reference.output_names, reference.run(None, feeds), strict=True))
np.savez(out, **found, **{"reference." + name: value for name, value in again.items()})
print(json.dumps([m for m in sys.modules if m.split(".")[0] in ("train", "export", "serve")]))
"""


@dataclass(frozen=True)
class Exported:
    """A small trained model in all its forms."""

    family: str
    run: Path
    folder: Path
    model: Model
    weights: Weights
    bundle: Bundle

    @property
    def session(self) -> Session:
        return self.bundle.plain.session

    @property
    def V(self) -> int:
        return len(self.bundle.manifest.vocabulary)

    @property
    def every(self) -> int:
        return self.bundle.manifest.graph.correct_every

    @property
    def close(self) -> float:
        return tolerance(self.bundle.device, CLOSE)


@pytest.fixture(scope="module", params=TEXT_FAMILIES)
def small(
    request: pytest.FixtureRequest, exported: Callable[[str], Path], device: Device
) -> Exported:
    place = exported(request.param)
    checkpoint = find_checkpoint(place / "run")
    _, config, parameters, _ = read_checkpoint(checkpoint)
    model = restore_model(checkpoint, config, parameters)
    bundle = Bundle(place / "bundle", device)
    return Exported(request.param, place / "run", place / "bundle", model, model.weights(), bundle)


# What the families don't decide: the places of bundles, and what is refused.
two_families = pytest.mark.parametrize("small", ["osm-rnn", "tanh-rnn"], indirect=True)


@pytest.fixture
def built(small: Exported, monkeypatch: pytest.MonkeyPatch) -> onnx.ModelProto:
    """Exports take this graph, the bundle's own without its weights, instead of asking torch."""
    graph = onnx.load(small.folder / GRAPH_FILE, load_external_data=False)
    inner = [t for t in graph.graph.initializer if t.data_location != TensorProto.EXTERNAL]
    del graph.graph.initializer[:]
    graph.graph.initializer.extend(inner)
    monkeypatch.setattr(export_room, "build_advance", lambda *inputs: graph)
    return graph


def wander(small: Exported, B: int, rng: np.random.Generator) -> State:
    """States (B, ...) some characters away from the start, each a little off its group."""
    state = small.model.init_state(B)
    for x in torch.from_numpy(rng.integers(0, small.V, (5, B))):
        state = small.model.update(small.weights, state, x)
    return {
        name: value * torch.from_numpy(rng.uniform(0.999, 1.001, value.shape)).float()
        for name, value in state.items()
    }


def make_feeds(small: Exported, B: int, K: int, seed: int) -> Arrays:
    """Inputs of `advance` of every kind: positions, lengths, forced or not, all settings."""
    rng = np.random.default_rng([seed, B, K])
    normal = rng.normal(0.0, 1.0, (B, small.V))
    position = rng.integers(0, 4, B) * 16 + rng.choice([0, 0, 1, 7, 15], B)
    left = small.every - position % small.every if small.every else K
    return {
        **{f"state.{name}": value.numpy() for name, value in wander(small, B, rng).items()},
        "position": position,
        "forced": np.where(rng.random((K, B)) < 0.5, rng.integers(0, small.V, (K, B)), -1),
        "num_steps": np.minimum(rng.choice([0, K // 2, K, K], B), left),
        "uniform": (rng.integers(0, UNIFORM_STEPS, (K, B)) / UNIFORM_STEPS).astype(np.float32),
        "temperature": rng.choice([0.0, 0.7, 1.0, 1.3], B).astype(np.float32),
        "top_k": rng.choice([0, 0, 1, 3], B),
        "top_p": rng.choice([1.0, 1.0, 0.5, 0.9], B).astype(np.float32),
        "bias": np.where(rng.random((B, 1)) < 0.5, 0.0, normal).astype(np.float32),
    }


def rows(feeds: Arrays, start: int, stop: int) -> Arrays:
    """The inputs of some streams of a batch."""
    columns = ("forced", "uniform")
    return {k: v[:, start:stop] if k in columns else v[start:stop] for k, v in feeds.items()}


def row_outputs(outputs: Arrays, row: int) -> dict[str, bytes]:
    """The bits of one stream's outputs; `next.*` is (B, ...), all else (K, B, ...)."""
    return {
        name: (value[row] if name.startswith("next.") else value[:, row]).tobytes()
        for name, value in outputs.items()
    }


def bits(outputs: Arrays) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in outputs.items()}


def replayed(feeds: Arrays, outputs: Arrays) -> Arrays:
    """The same run with every character forced; a row that rests reads nothing."""
    return feeds | {"forced": np.maximum(outputs["tokens"], 0)}


def torch_outputs(small: Exported, feeds: Arrays, edited: Arrays | None = None) -> Arrays:
    changed = {name: torch.from_numpy(value) for name, value in (edited or {}).items()}
    return advance_reference(small.model, small.weights | changed, feeds)


def stream_through(
    small: Exported, feeds: Arrays, positions: Array, wish: Callable[[int], int]
) -> dict[str, bytes]:
    """All K steps of `feeds`, cut into runs of at most `wish(k)`, never across a correction."""
    K, state, k = len(feeds["forced"]), feeds, 0
    parts = list[Arrays]()
    while k < K:
        steps = min(wish(k), K - k)
        if small.every:
            steps = min(steps, small.every - int((positions + k).max()) % small.every)
        cut = {"forced": feeds["forced"][k : k + steps], "uniform": feeds["uniform"][k : k + steps]}
        numbers = {"position": positions + k, "num_steps": np.full(len(positions), steps)}
        parts.append(small.session.run(state | cut | numbers))
        new = {f"state.{s.name}": parts[-1][f"next.{s.name}"] for s in small.bundle.states}
        state, k = state | new, k + steps
    along_time = ("tokens", "logprob", "logits")
    whole = {name: np.concatenate([part[name] for part in parts]) for name in along_time}
    return bits(parts[-1] | whole)


# The file


def test_the_graph_passes_the_full_check(small: Exported) -> None:
    onnx.checker.check_model(small.folder / GRAPH_FILE, full_check=True)


def test_versions_are_those_of_the_manifest_and_those_that_are_pinned(small: Exported) -> None:
    graph, spec = onnx.load(small.folder / GRAPH_FILE), small.bundle.manifest.graph
    assert graph.ir_version == spec.ir_version == PINNED_IR
    versions = {opset.domain: opset.version for opset in graph.opset_import}
    assert versions.pop("") == spec.opset == PINNED_OPSET
    assert versions == spec.operators
    assert spec.operators == PINNED_OPERATORS
    assert {f.domain for f in graph.functions} == set(spec.operators)
    inner = {(o.domain, o.version) for f in graph.functions for o in f.opset_import}
    assert inner <= {("", PINNED_OPSET), *PINNED_OPERATORS.items()}


def test_every_operator_of_ours_has_its_body_and_its_range(small: Exported) -> None:
    graph, spec = onnx.load(small.folder / GRAPH_FILE), small.bundle.manifest.graph
    unfold(graph)
    scan = next(node for node in graph.graph.node if node.op_type == "Scan")
    inner = [*graph.graph.node, *scan.attribute[0].g.node]
    inner += [node for function in graph.functions for node in function.node]
    ours = {node.op_type for node in inner if node.domain}
    assert ours == {function.name for function in graph.functions}
    assert set(spec.ranges) == ours & {"MatrixExp"}
    if spec.ranges:
        angle = probe_angle(small.model, small.weights)
        assert spec.ranges["MatrixExp"] >= HEADROOM * angle > 0.0


def test_inputs_and_outputs_are_those_of_the_manifest(small: Exported) -> None:
    graph, spec = onnx.load(small.folder / GRAPH_FILE).graph, small.bundle.manifest.graph
    for values, specs in ((graph.input, spec.inputs), (graph.output, spec.outputs)):
        kinds = [value.type.tensor_type for value in values]
        found = [
            (
                value.name,
                helper.tensor_dtype_to_np_dtype(kind.elem_type).name,
                tuple(d.dim_param or d.dim_value for d in kind.shape.dim),
            )
            for value, kind in zip(values, kinds, strict=True)
        ]
        assert found == [(s.name, s.dtype, s.shape) for s in specs]


def test_the_weights_file_is_aligned_and_says_what_torch_says(small: Exported) -> None:
    path = small.folder / WEIGHTS_FILE
    (header,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert (8 + header) % 64 == 0
    expected = small.weights | {
        INITIAL + name: value[0] for name, value in small.model.init_state(1).items()
    }
    subspaces = {target.subspace for target in small.bundle.manifest.targets} - {None}
    stored = {name: value for name, value in load_file(path).items() if name not in subspaces}
    assert bits(stored) == bits({k: v.numpy() for k, v in expected.items()})


def test_the_graph_points_at_the_very_bytes_of_its_weights(small: Exported) -> None:
    graph = onnx.load(small.folder / GRAPH_FILE, load_external_data=False).graph
    content, stored = (
        (small.folder / WEIGHTS_FILE).read_bytes(),
        load_file(small.folder / WEIGHTS_FILE),
    )
    found = {}
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            place = {entry.key: entry.value for entry in tensor.external_data}
            start, length = int(place["offset"]), int(place["length"])
            assert place["location"] == WEIGHTS_FILE
            assert tuple(tensor.dims) == stored[tensor.name].shape
            found[tensor.name] = content[start : start + length]
    assert found == bits({name: stored[name] for name in small.weights})


def bodies(small: Exported, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The session of a machine without a C compiler."""
    monkeypatch.setattr(serve.runtime.session, "load", lambda: None)
    session = Session(small.bundle.files, small.bundle.manifest, CPU, {})
    assert session.kernels == "standard operators"
    return session


def test_native_kernels_and_bodies_write_the_same_text(
    small: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = make_feeds(small, 3, 200, 1) | {
        "num_steps": np.full(3, 16),
        "temperature": np.zeros(3, np.float32),
        "forced": np.full((16, 3), -1),
        "uniform": np.zeros((16, 3), np.float32),
        "position": np.zeros(3, np.int64),
    }
    outputs = []
    native = Session(small.bundle.files, small.bundle.manifest, CPU, {})
    for session in (native, bodies(small, monkeypatch)):
        found, state, position = list[Arrays](), Arrays(), 0
        while position < 200:
            run = session.run(feeds | state | {"position": np.full(3, position)})
            state = {f"state.{s.name}": run[f"next.{s.name}"] for s in small.bundle.states}
            found.append(run)
            position += 16
        outputs.append({n: np.concatenate([run[n] for run in found]) for n in ("tokens", "logits")})
    np.testing.assert_array_equal(outputs[0]["tokens"], outputs[1]["tokens"])
    assert largest_error(outputs[0], outputs[1]) <= CLOSE


def test_stock_runtimes_run_it_where_none_of_our_code_is(
    small: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = make_feeds(small, 5, 9, 0)
    expected = bodies(small, monkeypatch).run(feeds)
    assert largest_error(small.session.run(replayed(feeds, expected)), expected) <= small.close
    np.savez(tmp_path / "feeds.npz", **replayed(feeds, expected))  # type: ignore[arg-type]
    arguments = [small.folder / GRAPH_FILE, tmp_path / "feeds.npz", tmp_path / "out.npz"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", STOCK, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == []
    with np.load(tmp_path / "out.npz") as found:
        assert {name: found[name].tobytes() for name in expected} == bits(expected)
        reference = {name: found[f"reference.{name}"] for name in expected}
    assert largest_error(reference, expected) <= CLOSE


@two_families
@pytest.mark.slow
def test_exporting_twice_gives_the_same_bytes(small: Exported, tmp_path: Path) -> None:
    export_bundle(small.run, tmp_path / "again", small.bundle.name, quiet=True)
    assert file_bytes(tmp_path / "again") == file_bytes(small.folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family_name", "sizes"),
    [("osm-rnn", {"d": 3, "mixing": "none"}), ("tanh-rnn", {"bias": "none"})],
)
def test_families_without_their_optional_weights_export_too(
    exported: Callable[[str], Path], tmp_path: Path, family_name: str, sizes: dict[str, Any]
) -> None:
    text = exported("tanh-rnn") / "text.txt"
    train_settings = Settings(data=str(text), iterations=2, window=8, batch=2)
    train(start_run(tmp_path / "run", family_name, sizes, train_settings), quiet=True)
    manifest = export_bundle(tmp_path / "run", tmp_path / "bundle", quiet=True)
    stored = load_file(tmp_path / "bundle" / WEIGHTS_FILE)
    assert {target.weight for target in manifest.targets} <= set(stored)
    assert not {"mixing", "recurrent.bias"} & set(stored)
    assert Bundle(tmp_path / "bundle", CPU).name == "bundle"


CUT = "characters in order: 90 % training, 5 % validation, 5 % test"
PUBLISHED = "characters in order, cut as published: its files for training, validation and test"


@pytest.mark.parametrize(
    ("name", "symbols", "split"),
    [
        ("python-docs", "characters", CUT),
        ("python-docs", "bytes", CUT.replace("characters", "bytes")),
        ("ptb", "characters", PUBLISHED),
    ],
)
def test_the_manifest_says_how_the_text_was_cut_and_into_what(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, symbols: str, split: str
) -> None:
    if name == "ptb":
        request.getfixturevalue("data_dir")
    assert (load_text(name, symbols).parts is None) == ("%" in split)
    settings = Settings(data=name, symbols=symbols)
    save_run(start_run(tmp_path / "run", "tanh-rnn", {"n": 2}, settings))
    training = export_bundle(tmp_path / "run", tmp_path / "bundle", quiet=True).training
    symbol = symbols.removesuffix("s")
    assert training["split"] == split
    assert training["protocol"].startswith(f"mean -log2 p over every {symbol} of the split, ")


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# What `advance` means


@pytest.mark.parametrize("path", sorted(SHIPPED.rglob(MANIFEST_FILE)), ids=lambda p: p.parent.name)
def test_a_model_that_ships_can_be_built_again(path: Path) -> None:
    manifest = read_manifest(path.parent)
    assert count_parameters(manifest.family, manifest.config) == manifest.num_parameters


def test_a_bundle_is_hardly_larger_than_its_weights() -> None:
    sizes = {n: f.size for n, f in read_manifest(SHIPPED / "osm-rnn-shakespeare").files.items()}
    manifest = (SHIPPED / "osm-rnn-shakespeare" / MANIFEST_FILE).stat().st_size
    assert sum(sizes.values()) + manifest <= 1.2 * sizes[WEIGHTS_FILE]


def test_the_reference_is_what_the_model_predicts(small: Exported) -> None:
    feeds = make_feeds(small, 4, 6, 1) | {"position": np.ones(4, np.int64)}
    feeds |= {"num_steps": np.full(4, 6), "forced": np.abs(feeds["forced"])}
    state = {k[6:]: torch.from_numpy(v) for k, v in feeds.items() if k.startswith("state.")}
    xs = torch.from_numpy(feeds["forced"])
    state, logits = predict(small.model, small.weights, state, xs)
    expected = {"logits": logits[:-1].numpy()} | {f"next.{k}": v.numpy() for k, v in state.items()}
    assert largest_error(torch_outputs(small, feeds), expected) <= CLOSE


@hypothesis_settings(max_examples=25)
@given(B=st.integers(1, 9), K=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_advance_equals_the_loop_of_torch_steps(small: Exported, B: int, K: int, seed: int) -> None:
    feeds = make_feeds(small, B, K, seed)
    found = small.session.run(feeds)
    active = np.arange(K)[:, None] < feeds["num_steps"]
    forced = feeds["forced"]
    assert largest_error(found, torch_outputs(small, replayed(feeds, found))) <= small.close
    assert (found["tokens"][~active] == -1).all()
    assert (found["tokens"][active & (forced >= 0)] == forced[active & (forced >= 0)]).all()


@hypothesis_settings(max_examples=20)
@given(
    start=st.integers(0, 40),
    cuts=st.lists(st.integers(1, 16), min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
)
def test_one_step_runs_and_chunks_and_long_runs_have_the_same_bits(
    small: Exported, start: int, cuts: list[int], seed: int
) -> None:
    B, K = 3, 40
    feeds, positions = make_feeds(small, B, K, seed), np.full(B, start, np.int64)
    longest = stream_through(small, feeds, positions, lambda k: K)
    assert stream_through(small, feeds, positions, lambda k: 1) == longest
    assert stream_through(small, feeds, positions, lambda k: cuts[k % len(cuts)]) == longest


@hypothesis_settings(max_examples=25)
@given(B=st.integers(1, 40), K=st.integers(1, 8), seed=st.integers(0, 2**32))
def test_a_row_alone_has_the_bits_it_has_in_any_batch(
    small: Exported, B: int, K: int, seed: int
) -> None:
    feeds = make_feeds(small, B, K, seed)
    together = small.session.run(feeds)
    for row in range(B):
        alone = small.session.run(rows(feeds, row, row + 1))
        assert row_outputs(alone, 0) == row_outputs(together, row)


@pytest.mark.parametrize("ask", [{"top_k": 2}, {"top_p": 0.3}, {"temperature": 0.0}])
def test_a_batch_mate_that_asks_for_a_cut_changes_no_bit(
    small: Exported, ask: dict[str, float]
) -> None:
    feeds = make_feeds(small, 6, 12, 3)
    feeds |= {"top_k": np.zeros(6, np.int64)}
    feeds |= {"top_p": np.ones(6, np.float32), "temperature": np.ones(6, np.float32)}
    before = small.session.run(feeds)
    for name, value in ask.items():
        feeds[name] = feeds[name].copy()
        feeds[name][2] = value
    after = small.session.run(feeds)
    assert all(row_outputs(after, row) == row_outputs(before, row) for row in (0, 1, 3, 4, 5))


def test_a_correction_is_applied_where_it_is_due_and_nowhere_else(small: Exported) -> None:
    feeds = make_feeds(small, 4, 3, 5) | {"num_steps": np.array([3, 3, 0, 3])}
    feeds |= {"position": np.array([0, 16, 16, 17]), "forced": np.full((3, 4), 1)}
    never = small.session.run(feeds | {"position": np.ones(4, np.int64)})
    found = small.session.run(feeds)
    same = [row_outputs(found, row) == row_outputs(never, row) for row in range(4)]
    if small.model.correct_every or not small.every:
        assert same == ([False, False, True, True] if small.every == 16 else [True] * 4)
    else:  # in another place of its block a position adds in another order
        assert same[2:] == [True, True] and largest_error(found, never) <= small.close


# Ablations are edits of effective weights by name


def test_every_edit_of_every_target_is_the_same_edit_in_torch(small: Exported) -> None:
    feeds = make_feeds(small, 5, 10, 7)
    feeds = replayed(feeds, small.session.run(feeds))
    plain = {"logits": small.session.run(feeds)["logits"]}
    assert len(edits := edits_of(small.bundle.manifest)) > 4
    for edit in edits:
        ablation = parse_ablation({"edits": [edit]}, small.bundle.manifest)
        found = small.bundle.variant(ablation).session.run(feeds)
        applied = apply_ablation(ablation, small.bundle.weights, small.bundle.manifest)
        expected = torch_outputs(small, feeds, applied.weights)
        assert largest_error(found, expected) <= small.close, edit
        assert largest_error(found, plain) > 10 * CLOSE, edit


def test_any_edit_of_any_weight_is_the_same_edit_in_torch(small: Exported) -> None:
    rng, feeds = np.random.default_rng(0), make_feeds(small, 5, 10, 8)
    feeds = replayed(feeds, small.session.run(feeds))
    plain = {"logits": small.session.run(feeds)["logits"]}
    for name in small.weights:
        value = small.bundle.weights[name]
        edited = {name: np.asarray(value + rng.normal(0.0, 0.1, value.shape), np.float32)}
        found = Session(small.bundle.files, small.bundle.manifest, small.bundle.device, edited).run(
            feeds
        )
        assert largest_error(found, torch_outputs(small, feeds, edited)) <= small.close, name
        assert largest_error(found, plain) > 10 * CLOSE, name


def test_every_symmetry_moves_weights_and_no_output(small: Exported) -> None:
    manifest, feeds = small.bundle.manifest, make_feeds(small, 5, 10, 7)
    initial = {f"state.{n}": np.stack([v] * 5) for n, v in small.bundle.initial.items()}
    feeds = replayed(feeds | initial, small.session.run(feeds | initial))
    plain = {"logits": small.session.run(feeds)["logits"]}
    for edit in symmetries_of(manifest):
        ablation = parse_ablation({"edits": [edit]}, manifest)
        applied = apply_ablation(ablation, small.bundle.weights, manifest)
        assert applied.removed[0].mass > 0.05, edit
        session = small.bundle.variant(ablation).session
        moved = {f"state.{n}": np.stack([v] * 5) for n, v in session.initial.items()}
        found = session.run(feeds | moved)
        assert largest_error({"logits": found["logits"]}, plain) <= small.close, edit


def test_the_empty_ablation_is_the_plain_session_and_unchanged_weights_its_bits(
    small: Exported,
) -> None:
    feeds = make_feeds(small, 5, 10, 9)
    empty = parse_ablation({"name": "nothing", "edits": []}, small.bundle.manifest)
    assert small.bundle.variant(empty).session is small.session
    same = {name: small.bundle.weights[name].copy() for name in small.weights}
    twin = Session(small.bundle.files, small.bundle.manifest, small.bundle.device, same)
    assert bits(twin.run(feeds)) == bits(small.session.run(feeds))


def test_a_row_that_leaves_the_bodys_range_is_nan_and_its_mates_are_untouched(
    exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve.runtime.session, "load", lambda: None)  # kernels have no range
    bundle = Bundle(exported("osm-rnn") / "bundle", CPU)
    wide = bundle.weights["input"].copy()
    wide[3] *= 1e4
    feeds: Arrays = {f"state.{name}": np.stack([v] * 3) for name, v in bundle.initial.items()}
    V, ones = len(bundle.manifest.vocabulary), np.ones(3, np.float32)
    feeds |= {"position": np.zeros(3, np.int64), "num_steps": np.full(3, 4)}
    feeds |= {"forced": np.array([[1, 1, 1], [1, 3, 2], [5, 5, 5], [6, 6, 6]])}
    feeds |= {"uniform": np.zeros((4, 3), np.float32), "bias": np.zeros((3, V), np.float32)}
    feeds |= {"temperature": ones, "top_k": np.zeros(3, np.int64), "top_p": ones}
    plain = bundle.plain.session.run(feeds)
    found = Session(bundle.files, bundle.manifest, CPU, {"input": wide}).run(feeds)
    assert np.isnan(found["next.H"][1]).all()
    assert np.isnan(found["logprob"][2:, 1]).all()
    assert np.isfinite(found["logprob"][:2]).all()
    assert all(row_outputs(found, row) == row_outputs(plain, row) for row in (0, 2))


# What an export refuses


def subject(small: Exported, folder: Path) -> Subject:
    return Subject(
        name="trained", model=small.model, weights=small.weights, graph=folder / GRAPH_FILE
    )


def test_parity_of_a_whole_bundle_is_within_a_fifth_of_its_tolerance(small: Exported) -> None:
    parity = measure_parity([subject(small, small.folder)], quiet=True)
    stated = small.bundle.manifest.parity
    assert stated.tolerance == parity.tolerance == TOLERANCE
    assert parity.cases == tuple(case for case in stated.cases if case.weights == "trained")
    assert {case.weights for case in stated.cases} == {"trained", "random"}
    errors = [e for case in stated.cases for e in (case.reference_error, case.runtime_error)]
    assert stated.max_error == max(errors) < TOLERANCE / 5


@two_families
def test_other_weights_than_torchs_are_a_parity_error(small: Exported, tmp_path: Path) -> None:
    folder = shutil.copytree(small.folder, tmp_path / "copy")
    content = bytearray((folder / WEIGHTS_FILE).read_bytes())
    graph = onnx.load(folder / GRAPH_FILE, load_external_data=False).graph
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            place = {entry.key: entry.value for entry in tensor.external_data}
            start, length = int(place["offset"]), int(place["length"])
            values = np.frombuffer(content[start : start + length], "<f4") * np.float32(1.01)
            content[start : start + length] = values.tobytes()
    (folder / WEIGHTS_FILE).write_bytes(content)
    with pytest.raises(
        ParityError, match="trained weights, batch 1, 1 steps from position 0 differ"
    ):
        measure_parity([subject(small, folder)], quiet=True)


def corrupt(graph: onnx.ModelProto) -> None:
    """Probabilities where log-probabilities should be: the graph stays valid."""
    nodes = [*graph.graph.node, *(node for f in graph.functions for node in f.node)]
    next(node for node in nodes if node.op_type == "LogSoftmax").op_type = "Softmax"


@two_families
def test_another_graph_is_a_parity_error(
    small: Exported, tmp_path: Path, built: onnx.ModelProto
) -> None:
    del built
    folder = shutil.copytree(small.folder, tmp_path / "copy")
    graph = onnx.load(folder / GRAPH_FILE, load_external_data=False)
    corrupt(graph)
    (folder / GRAPH_FILE).write_bytes(graph.SerializeToString())
    with pytest.raises(ParityError, match=f"expected at most {TOLERANCE:.0e}"):
        measure_parity([subject(small, folder)], quiet=True)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that the command ends with, behind its name."""
    assert main([*map(str, arguments), "--quiet"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("torsor export: ") and printed.err.count("\n") == 1
    return printed.err.removeprefix("torsor export: ")


@two_families
def test_a_failed_export_leaves_everything_as_it_was(
    small: Exported,
    tmp_path: Path,
    built: onnx.ModelProto,
    capsys: pytest.CaptureFixture[str],
) -> None:
    corrupt(built)
    out = shutil.copytree(small.folder, tmp_path / "out")
    before = file_bytes(out)
    assert "no bundle was written" in complaint(capsys, small.run, "--out", out)
    assert file_bytes(out) == before
    assert "differ from torch" in complaint(capsys, small.run, "--out", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@two_families
def test_an_interrupted_export_leaves_everything_as_it_was(
    small: Exported, tmp_path: Path, built: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    del built

    def interrupt(*inputs: object) -> None:
        raise KeyboardInterrupt

    out = shutil.copytree(small.folder, tmp_path / "out")
    monkeypatch.setattr(export_room, "measure_parity", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_bundle(small.run, out, quiet=True)
    assert file_bytes(out) == file_bytes(small.folder)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@two_families
def test_a_bundle_that_cannot_be_replaced_stays(
    small: Exported,
    tmp_path: Path,
    built: onnx.ModelProto,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del built
    out, rename = shutil.copytree(small.folder, tmp_path / "out"), os.rename

    def refuse(source: Path, target: Path) -> None:
        if source.name.endswith(".part") and target == out:
            raise PermissionError("not allowed")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    assert "not allowed" in complaint(capsys, small.run, "--out", out)
    assert file_bytes(out) == file_bytes(small.folder)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@two_families
def test_an_export_takes_the_place_of_the_bundle_that_was_there(
    small: Exported,
    tmp_path: Path,
    built: onnx.ModelProto,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del built
    out = shutil.copytree(small.folder, tmp_path / "out")
    assert main([str(small.run), "--out", str(out), "--quiet", "--json"]) == 0
    summary, manifest = json.loads(capsys.readouterr().out), read_manifest(out)
    assert summary["name"] == manifest.name == "out"
    assert summary["parity_max_error"] == manifest.parity.max_error
    assert dataclasses.replace(manifest, name=small.bundle.name) == small.bundle.manifest
    assert sorted(file_bytes(out)) == sorted((GRAPH_FILE, WEIGHTS_FILE, MANIFEST_FILE))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@two_families
def test_a_folder_that_is_no_bundle_is_never_replaced(
    small: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(small.run, tmp_path / "run")
    assert "is no bundle" in complaint(capsys, run, "--out", run)
    assert find_checkpoint(run).is_dir()
    (tmp_path / "file").write_text("")
    assert "is no bundle" in complaint(capsys, run, "--out", tmp_path / "file")


@two_families
@pytest.mark.parametrize("page", ['{"name": "app", "icons": []}', "[]", "{", '{"format": 1}'])
def test_a_folder_with_the_manifest_of_something_else_is_never_replaced(
    small: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str], page: str
) -> None:
    (tmp_path / MANIFEST_FILE).write_text(page)
    assert "a manifest.json of something else" in complaint(capsys, small.run, "--out", tmp_path)
    assert file_bytes(tmp_path) == {MANIFEST_FILE: page.encode()}


@two_families
def test_a_bundle_with_something_beside_it_is_never_replaced(
    small: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(small.folder, tmp_path / "out")
    (out / "notes.txt").write_text("mine")
    said = complaint(capsys, small.run, "--out", out)
    assert "is no bundle: found 'notes.txt'" in said and "choose another --out" in said
    (out / "notes.txt").unlink()
    (out / GRAPH_FILE).unlink()
    (out / GRAPH_FILE).mkdir()
    assert f"found '{GRAPH_FILE}'" in complaint(capsys, small.run, "--out", out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@two_families
def test_what_comes_into_the_folder_during_an_export_stays(
    small: Exported, tmp_path: Path, built: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    del built
    out = shutil.copytree(small.folder, tmp_path / "out")

    def meanwhile(*arguments: Any) -> Any:
        (out / "notes.txt").write_text("mine")
        return measure_parity(*arguments)

    monkeypatch.setattr(export_room, "measure_parity", meanwhile)
    with pytest.raises(ValueError, match="is no bundle: found 'notes.txt'"):
        export_bundle(small.run, out, quiet=True)
    assert file_bytes(out) == file_bytes(small.folder) | {"notes.txt": b"mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@two_families
def test_a_link_stays_and_the_folder_behind_it_is_replaced(
    small: Exported, tmp_path: Path, built: onnx.ModelProto
) -> None:
    del built
    store, link = tmp_path / "store" / "v1", tmp_path / "link"
    shutil.copytree(small.folder, store)
    link.symlink_to(store)
    assert export_bundle(small.run, link, quiet=True).name == "link"
    assert link.readlink() == store and read_manifest(store).name == "link"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "store"]
    assert [path.name for path in store.parent.iterdir()] == ["v1"]


@two_families
def test_the_folder_one_is_in_is_never_replaced(
    small: Exported,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for out in (".", "..", tmp_path / "here"):
        said = complaint(capsys, small.run, "--out", out, "--name", "x")
        assert "found the folder you are in" in said and "choose another --out" in said
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "a" * 101])
def test_a_name_that_no_model_can_have_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    nowhere, out = tmp_path / "nowhere", tmp_path / "out"
    said = complaint(capsys, nowhere, "--out", out, "--name", name)
    assert said.startswith(f"name: found {name!r}, expected 1 to 100") and "--name" in said
    assert complaint(capsys, nowhere, "--out", tmp_path / "a b").startswith("name: found 'a b'")


def test_a_missing_checkpoint_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, nowhere = tmp_path / "out", tmp_path / "nowhere"
    assert complaint(capsys, nowhere, "--out", out).startswith(f"{nowhere}: no such folder")
    assert "holds no whole checkpoint" in complaint(capsys, tmp_path, "--out", out)
    assert not out.exists()


@two_families
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("parameters.safetensors", lambda content: content[:-7]),
        ("config.json", lambda content: content.replace(b'"seed": 0', b'"seed": 1')),
        ("metrics.jsonl", lambda content: content + b"{}\n"),
        ("trainer.json", lambda content: content[:-1]),
    ],
)
def test_a_damaged_checkpoint_is_said_in_one_line(
    small: Exported,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    change: Callable[[bytes], bytes],
) -> None:
    run = shutil.copytree(small.run, tmp_path / "run")
    path = find_checkpoint(run) / name
    content = path.read_bytes()
    assert change(content) != content
    path.write_bytes(change(content))
    assert complaint(capsys, run, "--out", tmp_path / "out").startswith(f"{path}: ")
    assert [place.name for place in tmp_path.iterdir()] == ["run"]


Change = Callable[[dict[str, Any], Tensors], object]


@two_families
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config, _: config.update(family="gru"), "family: found 'gru'"),
        (lambda config, _: config["config"].update(colour=1), "colour"),
        (lambda config, _: config["config"].update(vocabulary_size=99), "expected"),
        (lambda config, _: config.pop("family"), "family"),
        (lambda _, parameters: parameters.popitem(), "expected"),
        (lambda _, parameters: [p.fill_(torch.nan) for p in parameters.values()], "not finite"),
    ],
)
def test_a_checkpoint_that_makes_no_model_is_said_in_one_line(
    small: Exported,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Change,
    words: str,
) -> None:
    iteration, config, parameters, trainer = read_checkpoint(find_checkpoint(small.run))
    change(config, parameters)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    write_checkpoint(tmp_path / "run", iteration, config, parameters, trainer)
    assert words in complaint(capsys, tmp_path / "run", "--out", tmp_path / "out")
    assert [place.name for place in tmp_path.iterdir()] == ["run"]


# Weights as external data

PLAIN = """<ir_version: 10, opset_import: ["" : 20]>
agraph (float[2] x) => (float[2] y) {
   one = Constant <value_float: float = 1.0> ()
   inner = Add (x, w)
   y = If (due) <then_branch = then () => (float[2] a) { a = Add (inner, one) },
                 else_branch = other () => (float[2] b) { b = Identity (inner) }>
}"""


def model_with(weight: str) -> onnx.ModelProto:
    """A small graph that reads a value of this name."""
    model: onnx.ModelProto = parser.parse_model(PLAIN)
    model.graph.node[1].input[1] = weight
    return model


@pytest.mark.parametrize("name", ["w", "layers.0.weight"])
def test_a_weight_that_is_used_becomes_external(name: str) -> None:
    model = model_with(name)
    set_weights(model, {name: np.ones(2, np.float32)}, "elsewhere", {name: 128})
    (tensor,) = model.graph.initializer
    place = {entry.key: entry.value for entry in tensor.external_data}
    assert place == {"location": "elsewhere", "offset": "128", "length": "8"}
    assert tensor.name == name and tensor.data_location == TensorProto.EXTERNAL


def test_a_weight_that_is_not_used_is_refused() -> None:
    model = model_with("w")
    with pytest.raises(ValueError, match="'v' is not used by the exported step"):
        set_weights(model, {"v": np.ones(2, np.float32)}, "elsewhere", {"v": 0})


@pytest.mark.parametrize("name", ["x", "one", "inner", "due", "k"])
def test_a_weight_that_is_called_like_a_value_of_the_graph_is_refused(name: str) -> None:
    model = model_with("w")
    model.graph.initializer.append(helper.make_tensor("due", TensorProto.BOOL, [], [True]))
    value = helper.make_tensor_value_info("k", TensorProto.FLOAT, [2])
    model.graph.node[-1].attribute[0].g.input.append(value)
    model.graph.node.append(helper.make_node("Identity", ["k"], ["unused"]))
    with pytest.raises(ValueError, match=f"'{name}' is called like a value of the graph"):
        set_weights(model, {name: np.ones(2, np.float32)}, "elsewhere", {name: 0})
