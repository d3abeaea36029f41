"""From a model trained on a task to a bundle: what the graph means, and the trials beside it."""

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from devices import tolerance
from every_edit import edits_of, symmetries_of
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from safetensors.numpy import load_file
from trial_scores import run_trials, score_trials

from export import trials as task_trials
from export.__main__ import main
from export.bundle import export_bundle, restore_model
from export.parity.task import (
    MAX_TOLERANCE,
    advance_task_reference,
    draw_inputs,
    measure_task_case,
    random_inputs,
)
from export.parity.text import (
    SHAPES,
    TOLERANCE,
    ParityError,
    Shape,
    Subject,
    largest_error,
    measure_parity,
)
from export.trials import choose_trials, probed_trials
from serve.ablation.apply import apply_ablation
from serve.ablation.parse import parse_ablation
from serve.manifest.page import GRAPH_FILE, TRIALS_FILE, WEIGHTS_FILE
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.runtime.session import Session
from train.checkpoint import find_checkpoint, read_checkpoint, write_checkpoint
from train.model import Model, Weights, family_names
from train.models.tanh_rnn import TanhRnn, TanhRnnConfig
from train.settings import Settings
from train.tasks.task import Trials, make_task, task_names
from train.tasks.trial_task import TrialTask

Array = NDArray[Any]
Arrays = dict[str, Array]

PAIRS = [
    ("osm-rnn", "copy"),
    ("tanh-rnn", "flip-flop"),
    ("rotrnn", "sine"),
    ("lru", "integration"),
    ("lstm", "spoken-digits"),
    ("osm-former", "list-ops"),
    ("transformer", "mnist"),
    ("lightning", "adding"),
    ("sparse-xor", "sparse-xor"),
    ("osm-rnn", "list-ops"),
]
WHOLE = ("sparse-xor", "sparse-xor")
CLOSE = 1e-5  # |a - b| / (1 + |b|)
SCORE_CLOSE = 1e-4


@dataclass(frozen=True)
class Exported:
    """A small trained model in all its forms."""

    pair: tuple[str, str]
    run: Path
    folder: Path
    model: Model
    weights: Weights
    bundle: Bundle
    task: TrialTask

    @property
    def session(self) -> Session:
        return self.bundle.plain.session

    @property
    def every(self) -> int:
        return self.bundle.manifest.graph.correct_every

    @property
    def close(self) -> float:
        return tolerance(self.bundle.device, CLOSE)


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def small(
    request: pytest.FixtureRequest, exported_task: Callable[[str, str], Path], device: Device
) -> Exported:
    place = exported_task(*request.param)
    checkpoint = find_checkpoint(place / "run")
    _, config, parameters, _ = read_checkpoint(checkpoint)
    model = restore_model(checkpoint, config, parameters)
    task = make_task(Settings(**config["training"]), config["task"])
    assert isinstance(task, TrialTask)
    bundle = Bundle(place / "bundle", device)
    folders = place / "run", place / "bundle"
    return Exported(request.param, *folders, model, model.weights(), bundle, task)


def one_of(*pairs: tuple[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("small", pairs, indirect=True, ids="-".join)


def make_feeds(small: Exported, B: int, K: int, seed: int) -> Arrays:
    """Inputs of `advance` of every kind: states on the way, positions, lengths."""
    rng = np.random.default_rng([seed, B, K])
    state = small.model.init_state(B)
    for x in random_inputs(small.model, small.task.held_out("test").inputs, B, 5, rng):
        state = small.model.update(small.weights, state, x)
    inputs = random_inputs(small.model, small.task.held_out("test").inputs, B, K, rng)
    return {
        **{f"state.{s.name}": state[s.name].numpy() for s in small.bundle.states},
        "position": rng.integers(0, 4, B) * 16 + rng.choice([0, 0, 1, 7, 15], B),
        "inputs": inputs.numpy(),
        "num_steps": rng.choice([0, K // 2, K, K], B),
    }


def rows(feeds: Arrays, start: int, stop: int) -> Arrays:
    """The inputs of some streams of a batch."""
    return {k: v[:, start:stop] if k == "inputs" else v[start:stop] for k, v in feeds.items()}


def row_outputs(outputs: Arrays, row: int) -> dict[str, bytes]:
    """The bits of one stream's outputs; `next.*` is (B, ...), `outputs` (K, B, Y)."""
    return {
        name: (value[row] if name.startswith("next.") else value[:, row]).tobytes()
        for name, value in outputs.items()
    }


def bits(outputs: Arrays) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in outputs.items()}


def torch_outputs(small: Exported, feeds: Arrays, edited: Arrays | None = None) -> Arrays:
    changed = {name: torch.from_numpy(value) for name, value in (edited or {}).items()}
    return advance_task_reference(small.model, small.weights | changed, feeds)


def stream_through(small: Exported, feeds: Arrays, start: int, size: int) -> dict[str, bytes]:
    """All K steps of `feeds` in runs of at most `size`, never across a correction."""
    K, B = feeds["inputs"].shape[:2]
    parts, state, k = list[Arrays](), feeds, 0
    while k < K:
        steps = min(size, K - k)
        if small.every:
            steps = min(steps, small.every - (start + k) % small.every)
        numbers = {"position": np.full(B, start + k), "num_steps": np.full(B, steps)}
        cut = {"inputs": feeds["inputs"][k : k + steps]}
        parts.append(small.session.run(state | cut | numbers))
        new = {f"state.{s.name}": parts[-1][f"next.{s.name}"] for s in small.bundle.states}
        state, k = state | new, k + steps
    return bits(parts[-1] | {"outputs": np.concatenate([part["outputs"] for part in parts])})


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_family_and_every_task_is_exported_here() -> None:
    assert {family for family, _ in PAIRS} == set(family_names())
    assert {task for _, task in PAIRS} == set(task_names()) - {"text"}


# The files


def test_the_graph_passes_the_full_check_and_stock_runtimes_run_it(small: Exported) -> None:
    path = small.folder / GRAPH_FILE
    onnx.checker.check_model(path, full_check=True)
    feeds = make_feeds(small, 5, 9, 0)
    expected = small.session.run(feeds)
    stock: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    reference: Any = ReferenceEvaluator(onnx.load(path))
    found, again = (
        dict(zip(expected, room.run(list(expected), feeds), strict=True))
        for room in (stock, reference)
    )
    assert largest_error(found, expected) <= small.close  # the bodies; ours may run kernels
    assert largest_error(again, expected) <= small.close


def test_weights_are_named_external_initialisers(small: Exported) -> None:
    graph = onnx.load(small.folder / GRAPH_FILE, load_external_data=False).graph
    outside = [t for t in graph.initializer if t.data_location == TensorProto.EXTERNAL]
    assert {tensor.name for tensor in outside} == set(small.weights)
    stored = load_file(small.folder / WEIGHTS_FILE)
    assert {t.name: tuple(t.dims) for t in outside} == {
        t.name: stored[t.name].shape for t in outside
    }
    initial = {f"initial.{state.name}" for state in small.bundle.states}
    subspaces = {target.subspace for target in small.bundle.manifest.targets} - {None}
    assert set(stored) == set(small.weights) | initial | subspaces


def test_only_what_reads_a_state_has_one_and_a_loop(small: Exported) -> None:
    graph = onnx.load(small.folder / GRAPH_FILE, load_external_data=False).graph
    has_loop = any(node.op_type == "Scan" for node in graph.node)
    assert has_loop == bool(small.bundle.states) == (small.pair != WHOLE)
    given = {value.name for value in graph.input}
    assert given >= {"position", "inputs", "num_steps"}


def test_the_manifest_says_what_the_task_is(small: Exported) -> None:
    spec, task = small.bundle.manifest.task, small.task
    assert spec is not None
    assert (spec.name, spec.options) == (task.name, dataclasses.asdict(task.config))
    assert (spec.input_size, spec.output_size) == (task.input_size, task.output_size)
    assert (spec.inputs, spec.targets, spec.pooled) == (task.takes, task.targets, task.pooled)
    N = task.held_out("test").inputs.shape[1]
    assert (spec.trials.count, spec.trials.of, spec.trials.seed) == (N, N, 1_000_033)
    assert small.bundle.manifest.vocabulary == ()


def test_the_trials_are_the_tasks_test_part(small: Exported) -> None:
    expected = {k: v.numpy() for k, v in small.task.held_out("test")._asdict().items()}
    assert bits(load_file(small.folder / TRIALS_FILE)) == bits(expected)
    assert bits(small.bundle.trials._asdict()) == bits(expected)


@one_of(("tanh-rnn", "flip-flop"), WHOLE)
def test_exporting_twice_gives_the_same_bytes(small: Exported, tmp_path: Path) -> None:
    export_bundle(small.run, tmp_path / "again", small.bundle.name, quiet=True)
    assert file_bytes(tmp_path / "again") == file_bytes(small.folder)


def test_many_trials_are_a_choice_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.arange(50.0).view(1, 50, 1).expand(4, 50, 1)
    part = Trials(numbers, numbers[:1, :, 0].long(), numbers[..., 0])
    assert choose_trials(part) is choose_trials(part, 50) is part
    assert choose_trials(part, 3).inputs.shape == (4, 3, 1)
    monkeypatch.setattr(task_trials, "MAX_BYTES", 7 * (16 + 8 + 16) + 39)
    found, again = choose_trials(part), choose_trials(part)
    assert found.inputs.shape == (4, 7, 1) and found.targets.shape == (1, 7)
    chosen = found.targets[0].tolist()
    assert chosen == sorted(set(chosen)) == again.targets[0].tolist() != list(range(7))
    assert torch.equal(found.inputs[2, :, 0], found.mask[3])
    monkeypatch.setattr(task_trials, "MAX_BYTES", 1)
    assert choose_trials(part).inputs.shape[1] == 1


# What `advance` means


@hypothesis_settings(max_examples=8)
@given(B=st.integers(1, 9), K=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_advance_equals_the_loop_of_torch_steps(small: Exported, B: int, K: int, seed: int) -> None:
    feeds = make_feeds(small, B, K, seed)
    found, resting = small.session.run(feeds), np.arange(K)[:, None] >= feeds["num_steps"]
    expected = torch_outputs(small, feeds)
    assert set(found) <= set(expected)
    assert largest_error(found, {name: expected[name] for name in found}) <= small.close
    assert (found["outputs"][resting] == 0.0).all()
    for state in small.bundle.states:
        rested = feeds["num_steps"] == 0
        kept, before = found[f"next.{state.name}"], feeds[f"state.{state.name}"]
        assert kept[rested].tobytes() == before[rested].tobytes()


def test_advance_equals_the_scan_that_training_uses(small: Exported) -> None:
    xs = small.task.held_out("test").inputs[:, :4]
    _, ys = small.model.scan(small.weights, small.model.init_state(4), xs)
    found = run_trials(small.session.run, small.bundle.manifest, small.bundle.initial, xs.numpy())
    assert largest_error({"y": found}, {"y": ys.numpy()}) <= SCORE_CLOSE


@hypothesis_settings(max_examples=6)
@given(start=st.integers(0, 40), size=st.integers(2, 16), seed=st.integers(0, 2**32))
def test_one_step_runs_and_chunks_and_long_runs_have_the_same_bits(
    small: Exported, start: int, size: int, seed: int
) -> None:
    feeds = make_feeds(small, 3, 35, seed)
    longest = stream_through(small, feeds, start, 35)
    assert stream_through(small, feeds, start, 1) == longest
    assert stream_through(small, feeds, start, size) == longest


@hypothesis_settings(max_examples=8)
@given(B=st.integers(1, 40), K=st.integers(1, 8), seed=st.integers(0, 2**32))
def test_a_row_alone_has_the_bits_it_has_in_any_batch(
    small: Exported, B: int, K: int, seed: int
) -> None:
    feeds = make_feeds(small, B, K, seed)
    together = small.session.run(feeds)
    for row in range(B):
        alone = small.session.run(rows(feeds, row, row + 1))
        assert row_outputs(alone, 0) == row_outputs(together, row)


@one_of(("osm-rnn", "copy"), ("tanh-rnn", "flip-flop"), WHOLE)
def test_a_row_that_is_not_finite_leaves_its_mates_untouched(small: Exported) -> None:
    feeds = make_feeds(small, 5, 6, 4)
    plain = small.session.run(feeds)
    broken = feeds | {"inputs": feeds["inputs"].copy()}
    broken["inputs"][0, 2] = np.nan
    found = small.session.run(broken)
    assert all(row_outputs(found, row) == row_outputs(plain, row) for row in (0, 1, 3, 4))


def test_a_correction_is_applied_where_it_is_due_and_nowhere_else(small: Exported) -> None:
    feeds = make_feeds(small, 4, 3, 5) | {"num_steps": np.array([3, 3, 0, 3])}
    feeds |= {
        f"state.{s.name}": feeds[f"state.{s.name}"] * np.float32(1.001) for s in small.bundle.states
    }
    feeds |= {"position": np.array([0, 16, 16, 17])}
    never = small.session.run(feeds | {"position": np.ones(4, np.int64)})
    found = small.session.run(feeds)
    same = [row_outputs(found, row) == row_outputs(never, row) for row in range(4)]
    assert same == ([False, False, True, True] if small.every == 16 else [True] * 4)


# Ablations are edits of effective weights by name


def test_every_edit_of_every_target_changes_outputs_as_it_does_in_torch(small: Exported) -> None:
    feeds = make_feeds(small, 5, 10, 7)
    plain = {"outputs": small.session.run(feeds)["outputs"]}
    assert len(edits := edits_of(small.bundle.manifest)) > 4
    for edit in edits:
        ablation = parse_ablation({"edits": [edit]}, small.bundle.manifest)
        found = small.bundle.variant(ablation).session.run(feeds)
        applied = apply_ablation(ablation, small.bundle.weights, small.bundle.manifest)
        expected = torch_outputs(small, feeds, applied.weights)
        assert largest_error(found, {name: expected[name] for name in found}) <= small.close, edit
        assert largest_error(found, plain) > small.close, edit


def test_every_symmetry_moves_weights_and_no_output(small: Exported) -> None:
    manifest, feeds = small.bundle.manifest, make_feeds(small, 5, 10, 7)
    initial = {f"state.{n}": np.stack([v] * 5) for n, v in small.bundle.initial.items()}
    feeds |= initial
    plain = {"outputs": small.session.run(feeds)["outputs"]}
    for edit in symmetries_of(manifest):
        ablation = parse_ablation({"edits": [edit]}, manifest)
        applied = apply_ablation(ablation, small.bundle.weights, manifest)
        assert applied.removed[0].mass > 0.05, edit
        session = small.bundle.variant(ablation).session
        moved = {f"state.{n}": np.stack([v] * 5) for n, v in session.initial.items()}
        found = session.run(feeds | moved)
        assert largest_error({"outputs": found["outputs"]}, plain) <= small.close, edit


def test_the_empty_ablation_is_the_plain_session_and_unchanged_weights_its_bits(
    small: Exported,
) -> None:
    feeds = make_feeds(small, 5, 10, 9)
    empty = parse_ablation({"name": "nothing", "edits": []}, small.bundle.manifest)
    assert small.bundle.variant(empty).session is small.session
    same = {name: small.bundle.weights[name].copy() for name in small.weights}
    twin = Session(small.bundle.files, small.bundle.manifest, small.bundle.device, same)
    assert bits(twin.run(feeds)) == bits(small.session.run(feeds))


# Trials, scores and parity


def test_the_trials_score_what_training_recorded(small: Exported) -> None:
    manifest, trials = small.bundle.manifest, small.bundle.trials
    assert manifest.task is not None
    outputs = run_trials(small.session.run, manifest, small.bundle.initial, trials.inputs)
    scores = score_trials(manifest.task, outputs, trials)
    assert set(scores) == {"loss", "accuracy" if small.task.targets == "classes" else "fvu"}
    recorded = {name: manifest.training[f"test_{name}"] for name in scores}
    assert scores == pytest.approx(recorded, rel=SCORE_CLOSE, abs=SCORE_CLOSE)


def test_the_record_of_training_has_every_score_and_says_how(small: Exported) -> None:
    training = small.bundle.manifest.training
    lines = (small.run / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    scores = {name: x for name, x in last.items() if name.startswith(("valid_", "test_"))}
    assert {name: training[name] for name in scores} == scores
    assert f"test_{small.task.headline}" in scores
    assert ("mean of a trial's outputs" in training["protocol"]) == small.task.pooled
    assert training["score"] == type(small.task).__doc__
    assert training["data"]["name"] == training["settings"]["task"] == small.task.name


def test_parity_is_within_a_fifth_of_its_tolerance(small: Exported) -> None:
    stated = small.bundle.manifest.parity
    assert {case.weights for case in stated.cases} == {"trained", "random"}
    sizes = [(case.batch, case.num_steps, case.start > 0) for case in stated.cases]
    assert sizes == [(s.batch, s.num_steps, s.under_way) for s in SHAPES] * 2
    errors = [e for case in stated.cases for e in (case.reference_error, case.runtime_error)]
    assert 0.0 < stated.max_error == max(errors) < TOLERANCE / 5


@one_of(("tanh-rnn", "flip-flop"), WHOLE)
def test_other_weights_than_torchs_are_a_parity_error(small: Exported, tmp_path: Path) -> None:
    folder = shutil.copytree(small.folder, tmp_path / "copy")
    name = "attention" if small.pair == WHOLE else "recurrent"
    others = {**small.weights, name: small.weights[name] * 1.01}
    names = frozenset(tensor.name for tensor in small.bundle.manifest.graph.inputs)
    measure = functools.partial(measure_task_case, small.task.held_out("test").inputs, names)
    subject = Subject(name="trained", model=small.model, weights=others, graph=folder / GRAPH_FILE)
    with pytest.raises(
        ParityError, match="trained weights, batch 1, [0-9]+ steps from position 0 differ"
    ):
        measure_parity([subject], True, measure)


def test_parity_sees_all_of_a_trial_and_more(small: Exported) -> None:
    inputs = small.task.held_out("test").inputs
    K, B = min(len(inputs), 16), 32
    drawn = draw_inputs(small.model, inputs, B, K, np.random.default_rng(0))
    assert drawn.dtype == inputs.dtype and drawn.shape == (K, B, *inputs.shape[2:])
    windows = {
        inputs[start : start + K, trial].numpy().tobytes()
        for start in range(len(inputs) - K + 1)
        for trial in range(inputs.shape[1])
    }
    found = [drawn[:, row].numpy().tobytes() in windows for row in range(B)]
    assert all(found[row] for row in range(B) if row % 4 != 3)
    longer = draw_inputs(small.model, inputs, B, len(inputs) + 1, np.random.default_rng(0))
    assert longer.shape[0] == len(inputs) + 1 and longer.float().std() > 0.0


def test_the_largest_inputs_are_probed() -> None:
    inputs = torch.rand(5, 400, 3)
    inputs[4, 123, 1] = 50.0
    chosen = probed_trials(inputs)
    assert 123 in chosen and {0, 399} <= set(chosen.tolist()) and len(chosen) <= 64
    assert len(probed_trials(torch.zeros(5, 400, dtype=torch.int64))) == 32
    assert probed_trials(inputs[:, :3]).tolist() == [0, 1, 2]


def chaos(spread: float) -> tuple[Subject, Arrays]:
    """A tanh RNN that multiplies differences, its inputs, and what torch answers."""
    config = TanhRnnConfig(input_size=3, output_size=2, n=24)
    model = TanhRnn(config, torch.Generator().manual_seed(0)).requires_grad_(False)
    weights = model.weights() | {"recurrent": model.recurrent * spread}
    return Subject(name="trained", model=model, weights=weights, graph=Path()), {
        "inputs": np.random.default_rng(0).standard_normal((16, 9, 3)).astype(np.float32)
    }


@pytest.mark.parametrize(
    ("spread", "least", "most"), [(0.9, TOLERANCE, TOLERANCE), (4.0, 2 * TOLERANCE, MAX_TOLERANCE)]
)
def test_what_float32_itself_cannot_say_decides_what_is_allowed(
    spread: float, least: float, most: float
) -> None:
    subject, feeds = chaos(spread)
    inputs = torch.from_numpy(feeds["inputs"])
    names, shape = frozenset({"state.h", "position", "inputs", "num_steps"}), Shape(9, 16)

    def off_by(error: float) -> Callable[[Arrays], Arrays]:
        def evaluate(feeds: Arrays) -> Arrays:
            found = advance_task_reference(subject.model, subject.weights, feeds)
            return {name: value + np.float32(error) for name, value in found.items()}

        return evaluate

    right = measure_task_case(inputs, names, subject, off_by(0.0), off_by(0.0), shape)
    case, tolerance = measure_task_case(inputs, names, subject, off_by(0.0), off_by(0.1), shape)
    assert right[1] == TOLERANCE and right[0].runtime_error == 0.0
    assert least <= tolerance <= most < case.runtime_error
    for broken in (np.nan, np.inf):
        found = measure_task_case(inputs, names, subject, off_by(0.0), off_by(broken), shape)
        assert found[0].runtime_error == np.inf and np.isfinite(found[1])


# What an export refuses


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that the command ends with, behind its name."""
    assert main([*map(str, arguments), "--quiet"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    return printed.err.removeprefix("torsor export: ")


@one_of(("tanh-rnn", "flip-flop"))
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config, _: config["data"].update(sha256="00"), "data sha256: found '00'"),
        (lambda config, _: config["task"].update(length=21), "data sha256: found "),
        (lambda config, _: config["task"].update(length=0), "length: found 0"),
        (lambda _, parameters: [p.fill_(torch.nan) for p in parameters.values()], "not finite"),
    ],
)
def test_a_checkpoint_that_is_not_of_its_task_is_said_in_one_line(
    small: Exported,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any], dict[str, Any]], object],
    words: str,
) -> None:
    iteration, config, parameters, trainer = read_checkpoint(find_checkpoint(small.run))
    change(config, parameters)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    write_checkpoint(tmp_path / "run", iteration, config, parameters, trainer)
    assert words in complaint(capsys, tmp_path / "run", "--out", tmp_path / "out")
    assert [place.name for place in tmp_path.iterdir()] == ["run"]
