"""The training loop, its checkpoints and its command line; what evaluation measures."""

import dataclasses
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import fitted
from torch import Tensor

from train.__main__ import INTERRUPTED, main
from train.checkpoint import (
    FILES,
    KEEP,
    CheckpointError,
    checkpoints,
    find_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from train.command_line import default_rate
from train.evaluate import bits_per_character, log_probabilities, write_text
from train.loop import train, train_iteration
from train.model import Model, State, Target, Weights, family, family_names
from train.models.osm_rnn import OsmRnn, OsmRnnConfig
from train.run import Run, resume_run, save_run, start_run
from train.schedule import END_RATE, MOMENTUM, START_RATE, one_cycle
from train.settings import Settings
from train.tasks.task import task_names
from train.tasks.text import Text

ROOT = Path(__file__).parent.parent.parent
SMALL = {"osm-rnn": {"d": 4}, "tanh-rnn": {"n": 12}}
BUDGET = 5_000  # parameters of the families that aren't named
LONG_RUN = ("--iterations", "240", "--checkpoint-every", "40", "--valid-every", "80")
DEADLINE_S = 120.0

Start = Callable[..., Run]

TEXT_FAMILIES = [name for name in family_names() if "characters" in family(name).takes]
every_family = pytest.mark.parametrize("name", TEXT_FAMILIES)


def small_sizes(name: str, num_symbols: int) -> dict[str, Any]:
    """The sizes of a small model of any family."""
    ends = {"input_size": num_symbols, "output_size": num_symbols}
    fields = {field.name for field in dataclasses.fields(family(name).Config)}
    ends |= {key: size for key, size in (("layers", 1), ("context", 4)) if key in fields}
    whole = {**ends, **SMALL[name]} if name in SMALL else fitted(name, ends, BUDGET)
    return {key: value for key, value in whole.items() if not key.endswith("put_size")}


@pytest.fixture
def start(text_file: Path, tmp_path: Path) -> Start:
    """Starts a small run in a folder of its own."""

    def start_small(name: str = "tanh-rnn", folder: str = "run", **settings: Any) -> Run:
        chosen = {"data": str(text_file), "iterations": 30, "window": 8, "batch": 4, **settings}
        return start_run(tmp_path / folder, name, small_sizes(name, 14), Settings(**chosen))

    return start_small


def options(text_file: Path, out: Path, *more: str) -> list[str]:
    """The command line of a small run."""
    sizes = ["--data", str(text_file), "--window", "8", "--batch", "4", "--n", "12"]
    return ["tanh-rnn", *sizes, "--out", str(out), "--quiet", *more]


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what the clock decides."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if k != "characters_per_s"} for x in lines]


def assert_same_bits(left: Path, right: Path) -> None:
    """Both runs ended with the same parameters, optimiser, random numbers and measurements."""
    one, other = find_checkpoint(left), find_checkpoint(right)
    assert one.name == other.name
    for name in FILES[:3]:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert metrics(left) == metrics(right)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that the command ends with, behind its name."""
    assert main(list(arguments)) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("torsor train: ") and printed.err.endswith("\n")
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("torsor train: ").strip()


# --- the loop


@every_family
def test_the_loss_falls(start: Start, name: str) -> None:
    run = start(name, iterations=60, learning_rate=0.03)
    assert train(run, quiet=True)
    losses = [line["loss"] for line in metrics(run.folder) if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]


@every_family
def test_the_same_seed_gives_the_same_bits(start: Start, name: str) -> None:
    runs = [start(name, folder, valid_every=20) for folder in ("one", "two")]
    assert all(train(run, quiet=True) for run in runs)
    assert_same_bits(runs[0].folder, runs[1].folder)


@every_family
def test_coarse_products_train_nearly_alike(start: Start, name: str) -> None:
    exact, coarse = (start(name, kind, precision=kind) for kind in ("float32", "bf16"))
    for _ in range(5):
        expected, found = train_iteration(exact)[0], train_iteration(coarse)[0]
    assert expected != found == pytest.approx(expected, rel=0.05)
    assert all(p.dtype == torch.float32 for p in coarse.model.parameters())


def test_a_precision_that_the_device_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="precision: found 'tf32' with --device cpu, expected"):
        Settings(precision="tf32")


def test_another_seed_gives_other_parameters(start: Start) -> None:
    first, other = start(folder="one"), start(folder="two", seed=1)
    assert not torch.equal(first.model.weights()["input"], other.model.weights()["input"])


@every_family
def test_a_resumed_run_reaches_the_bits_of_a_straight_one(start: Start, name: str) -> None:
    straight = start(name, "straight")
    assert train(straight, quiet=True)
    for iterations in (0, 1, 17):
        stopped = start(name, f"stopped-{iterations}")
        train_until(stopped, iterations)
        resumed = resume_run(stopped.folder)
        assert (resumed.iteration, resumed.config) == (iterations, stopped.config)
        assert train(resumed, quiet=True)
        assert_same_bits(resumed.folder, straight.folder)


def train_until(run: Run, iterations: int) -> None:
    """The loop by hand, with the lines that `train` records on the way, then a checkpoint."""
    while run.iteration < iterations:
        loss, norm = train_iteration(run)
        if run.iteration % 10 == 0:
            run.record(loss=loss, bpc=loss / math.log(2.0), gradient_norm=norm)
    save_run(run)


def test_a_stop_request_ends_the_run_with_a_checkpoint(start: Start) -> None:
    run = start()
    run.stop_requested = True
    assert not train(run, quiet=True)
    assert find_checkpoint(run.folder).name == "checkpoint-000000"


def test_resuming_a_finished_run_changes_nothing(start: Start) -> None:
    run = start()
    assert train(run, quiet=True)
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    assert train(resume_run(run.folder), quiet=True)
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


def test_windows_are_pieces_of_the_training_text(start: Start) -> None:
    run = start(batch=200)
    assert isinstance(run.task, Text)
    ids = run.task.splits.train
    ids.copy_(torch.arange(len(ids)))
    trials = run.task.sample(200, run.generator)
    xs = trials.targets
    assert xs.shape == (9, 200)
    assert torch.equal(trials.inputs, xs[:-1])
    assert torch.equal(xs, xs[0] + torch.arange(9)[:, None])
    assert 0 <= int(xs.min()) and int(xs.max()) < len(ids)


@pytest.mark.parametrize("warm_up", [0.0, 0.1, 0.5])
def test_the_rate_makes_one_cycle(warm_up: float) -> None:
    rates = [one_cycle(i / 1000, warm_up)[0] for i in range(1001)]
    peak = round(warm_up * 1000)
    assert rates[0] == pytest.approx(START_RATE if warm_up else 1.0)
    assert rates[peak] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(END_RATE)
    assert rates == sorted(rates[:peak]) + sorted(rates[peak:], reverse=True)
    assert one_cycle(warm_up, warm_up)[1] == pytest.approx(MOMENTUM[0])
    assert one_cycle(1.0, warm_up)[1] == pytest.approx(MOMENTUM[1])


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *((n, 0, "at least 1") for n in ("iterations", "window", "batch", "threads")),
        *((n, 0, "at least 1") for n in ("valid_every", "checkpoint_every")),
        *(("learning_rate", v, "a positive number") for v in (0.0, math.nan, math.inf)),
        ("clip", -1.0, "a positive number"),
        ("weight_decay", -0.1, "0 or more"),
        ("warm_up", 1.0, "a share below 1"),
        ("seed", -1, r"0 to 2\^63 - 1"),
    ],
)
def test_settings_that_train_nothing_are_refused(name: str, value: float, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: found {value}, expected {expected}$"):
        Settings(**{name: value})  # type: ignore[arg-type]


# --- processes that are stopped and killed


def launch(text_file: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "train", *options(text_file, out, *LONG_RUN)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def stop_when(process: subprocess.Popen[str], ready: Callable[[], bool]) -> None:
    """Hold the process (SIGSTOP) at a moment that is as asked for."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        if ready():
            process.send_signal(signal.SIGSTOP)
            if ready():  # still
                return
            process.send_signal(signal.SIGCONT)
        time.sleep(0.004)
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline


def recorded(out: Path) -> int:
    """The last iteration that metrics.jsonl tells of."""
    path = out / "metrics.jsonl"
    text = path.read_text() if path.is_file() else ""
    return int(json.loads(text[: text.rindex("\n")].splitlines()[-1])["iteration"] if text else 0)


@pytest.fixture
def straight(text_file: Path, tmp_path: Path) -> Path:
    """The run that nothing stopped."""
    assert main(options(text_file, tmp_path / "straight", *LONG_RUN)) == 0
    return tmp_path / "straight"


@pytest.mark.slow
def test_a_run_stopped_by_ctrl_c_goes_on_to_the_bits_of_a_straight_one(
    text_file: Path, tmp_path: Path, straight: Path
) -> None:
    out = tmp_path / "run"
    process = launch(text_file, out)
    stop_when(process, lambda: recorded(out) > 0)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=DEADLINE_S)
    iteration = read_checkpoint(find_checkpoint(out))[0]
    assert process.returncode == INTERRUPTED
    assert 0 < iteration < 240
    remedy = f"go on with: torsor train tanh-rnn --out {out} --resume"
    assert said == f"stopped at iteration {iteration}; {remedy}\n"
    assert main(["tanh-rnn", "--out", str(out), "--resume", "--quiet"]) == 0
    assert_same_bits(out, straight)


@pytest.mark.slow
def test_a_run_killed_between_checkpoints_goes_on_to_the_bits_of_a_straight_one(
    text_file: Path, tmp_path: Path, straight: Path
) -> None:
    out = tmp_path / "run"
    process = launch(text_file, out)
    stop_when(process, lambda: bool(checkpoints(out)) and recorded(out) > newest_iteration(out))
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    assert 0 < newest_iteration(out) < recorded(out) < 240
    assert main(["tanh-rnn", "--out", str(out), "--resume", "--quiet"]) == 0
    assert_same_bits(out, straight)


def newest_iteration(out: Path) -> int:
    return int(checkpoints(out)[-1].name.removeprefix("checkpoint-"))


# --- checkpoints


@pytest.fixture
def saved(start: Start) -> Path:
    """The newest checkpoint of a run that has two."""
    run = start()
    save_run(run)
    train_until(run, 10)
    return checkpoints(run.folder)[-1]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "truncated", "changed"])
def test_a_damaged_checkpoint_is_refused_and_the_file_named(
    saved: Path, name: str, damage: str
) -> None:
    path = saved / name
    content = path.read_bytes()
    match damage:
        case "missing":
            path.unlink()
        case "truncated":
            path.write_bytes(content[:-1])
        case "changed":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=f"{path}: .*({damage}|truncated or changed)"):
        resume_run(saved.parent)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not JSON"),
        (b'{"format": 1, "iterat', "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "format: found None, expected 2; newer torsor?"),
        (b'{"format": 3, "iteration": 3, "files": {}}', "format: found 3, expected 2; newer"),
        (b'{"format": 2, "iteration": 3}', "keys: found .'format', 'iteration'., expected"),
        (b'{"format": 2, "iteration": 3, "files": {}, "x": 0}', "keys: found "),
        (b'{"format": 2, "iteration": "3", "files": {}}', "iteration: found '3', expected int"),
        (b'{"format": 2, "iteration": true, "files": {}}', "iteration: found True, expected int"),
        (b'{"format": 2, "iteration": 3, "files": []}', "files: found .., expected dict"),
    ],
)
def test_a_damaged_seal_is_refused(saved: Path, content: bytes, problem: str) -> None:
    path = saved / "trainer.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{path}: {problem}"):
        resume_run(saved.parent)


@pytest.mark.parametrize("iteration", [-5, 9, 11, 31, 10**30])
def test_an_iteration_that_the_checkpoint_does_not_hold_is_refused(
    saved: Path, iteration: int
) -> None:
    path = saved / "trainer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "iteration": iteration}))
    with pytest.raises(CheckpointError, match=f"found .*, expected .*({iteration}|0 to 30)"):
        resume_run(saved.parent)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda c, p, t: c.update(colour=1), "config.json: keys: found "),
        (lambda c, p, t: c.pop("training"), "config.json: keys: found "),
        (lambda c, p, t: c.update(vocabulary="abc"), "vocabulary: found 'abc', expected list"),
        (lambda c, p, t: c["vocabulary"].__setitem__(0, 7), "vocabulary: expected characters"),
        (lambda c, p, t: c["vocabulary"].pop(), "input_size: found 14, expected 13"),
        (lambda c, p, t: c.update(family=["gru"]), "family: found .'gru'., expected str"),
        (lambda c, p, t: c.update(family="gru"), "config.json: family: found 'gru'"),
        (lambda c, p, t: c["data"].update(sha256=None), "data sha256: found None, expected str"),
        (lambda c, p, t: c["training"].pop("seed"), "training keys: found "),
        (lambda c, p, t: c["training"].update(batch=True), "training batch: found True"),
        (lambda c, p, t: c["training"].update(clip=-1.0), "training clip: found -1.0"),
        (lambda c, p, t: c["config"].update(n=10**9), "config n: found 1000000000, expected at"),
        (lambda c, p, t: c["config"].update(n=13), "'hidden_bias': found .*12.*, expected .*13"),
        (lambda c, p, t: p.pop("input"), "parameters.safetensors: 'input': found none"),
        (lambda c, p, t: t.pop("generator"), "trainer.safetensors: 'generator': found none"),
        (lambda c, p, t: t.pop("exp_avg.input"), "'exp_avg.input': found none, expected "),
        (lambda c, p, t: t["torch"].zero_(), "torch: not the state of a random generator"),
    ],
)
def test_a_checkpoint_that_was_written_wrong_is_refused_and_the_place_named(
    saved: Path, change: Callable[[Any, Any, Any], object], problem: str
) -> None:
    iteration, *parts = read_checkpoint(saved)
    change(*parts)
    write_checkpoint(saved.parent, iteration, *parts)
    with pytest.raises(CheckpointError, match=problem):
        resume_run(saved.parent)


def test_an_older_checkpoint_takes_over_by_its_own_path(start: Start) -> None:
    run, straight = start(), start(folder="straight")
    train_until(run, 2)
    train_until(run, 5)
    older, newer = checkpoints(run.folder)
    (newer / "parameters.safetensors").unlink()
    before = {path: path.read_bytes() for path in older.iterdir()}
    resumed = resume_run(older)
    assert (resumed.iteration, resumed.folder) == (2, run.folder)
    assert before == {path: path.read_bytes() for path in older.iterdir()}
    assert train(resumed, quiet=True) and train(straight, quiet=True)
    assert_same_bits(run.folder, straight.folder)


def test_half_written_and_half_removed_checkpoints_are_ignored(saved: Path) -> None:
    run = saved.parent
    shutil.copytree(saved, run / ".checkpoint-000999.part")
    shutil.copytree(saved, run / "checkpoint-000999")
    (run / "checkpoint-000999" / "trainer.json").unlink()
    assert find_checkpoint(run) == saved
    assert resume_run(run).iteration == 10


def test_a_left_over_part_is_written_anew(start: Start) -> None:
    run = start()
    part = run.folder / ".checkpoint-000000.part"
    part.mkdir()
    (part / "stranger").write_text("left over")
    folder = save_run(run)
    assert folder is not None
    assert {path.name for path in folder.iterdir()} == {*FILES, "trainer.json"}
    assert not part.exists()


def test_a_checkpoint_that_is_there_is_not_written_again(start: Start) -> None:
    run = start()
    folder = save_run(run)
    assert folder is not None
    written = inodes(folder)
    assert save_run(run) == folder and inodes(folder) == written


def inodes(folder: Path) -> list[int]:
    return [path.stat().st_ino for path in (folder, *sorted(folder.iterdir()))]


@pytest.mark.parametrize("name", [*FILES, "trainer.json"])
def test_a_checkpoint_that_is_damaged_is_written_again(start: Start, name: str) -> None:
    run = start()
    folder = save_run(run)
    assert folder is not None
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole + b" ")
    assert save_run(run) == folder and (folder / name).read_bytes() == whole
    run.record(loss=1.0)
    save_run(run)
    assert metrics(folder) == metrics(run.folder) != []


def test_only_the_newest_checkpoints_stay(start: Start) -> None:
    run = start()
    numbers = (5, 40, 999_999, 1_000_000)
    for iteration in numbers:
        write_checkpoint(run.folder, iteration, run.config, {}, {})
    names = [f"checkpoint-{iteration:06d}" for iteration in numbers[-KEEP:]]
    assert [path.name for path in checkpoints(run.folder)] == names


def test_a_checkpoint_is_found_by_its_run_and_by_itself(saved: Path) -> None:
    assert find_checkpoint(saved.parent) == find_checkpoint(saved) == saved


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: no such folder; train first: torsor train"):
        find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=f"{tmp_path}: holds no whole checkpoint"):
        find_checkpoint(tmp_path)


# --- the command line


def test_the_command_trains_and_says_how_well(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(options(text_file, out, "--iterations", "20")) == 0
    last = metrics(out)[-1]
    valid, test = (f"{last[key]:.3f}" for key in ("valid_bpc", "test_bpc"))
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out == f"{out}: iteration 20, validation BPC {valid}, test BPC {test}\n"


def test_progress_is_shown_unless_it_is_not_wanted(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loud = options(text_file, tmp_path / "run", "--iterations", "20", "--valid-every", "10")
    loud.remove("--quiet")
    assert main(loud) == 0
    said, shown = capsys.readouterr()
    assert shown.startswith("tanh-rnn: 506 parameters (input_size 14, output_size 14, n 12, ")
    assert "iteration 10: validation BPC " in shown
    assert said.startswith(f"{tmp_path / 'run'}: iteration 20, validation BPC ")
    assert "20/20 |" in shown


def test_the_learning_rate_is_the_family_s_own_unless_it_is_given(
    text_file: Path, tmp_path: Path
) -> None:
    def rate(out: Path) -> Any:
        return read_checkpoint(find_checkpoint(out))[1]["training"]["learning_rate"]

    more = ("--iterations", "1")
    assert main(options(text_file, tmp_path / "own", *more)) == 0
    assert main(options(text_file, tmp_path / "given", *more, "--learning-rate", "0.1")) == 0
    assert rate(tmp_path / "own") == family("tanh-rnn").learning_rate
    assert rate(tmp_path / "given") == 0.1


LONG = ("list-ops", "mnist", "spoken-digits")
LONG_RATES = {"osm-rnn": 0.003, "osm-former": 0.003, "lstm": 0.005}


@pytest.mark.parametrize("name", family_names())
def test_a_family_s_own_rate_is_smaller_for_tasks_of_long_trials_where_that_helps(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    kind = family(name)
    expected = dict.fromkeys(task_names(), kind.learning_rate)
    if name in LONG_RATES:
        expected |= dict.fromkeys(LONG, LONG_RATES[name])
    assert {task: default_rate(kind, task) for task in task_names()} == expected
    with pytest.raises(SystemExit):
        main([name, "--help"])
    told = f"peak (default: {kind.learning_rate}"
    if name in LONG_RATES:
        told += f"; for {', '.join(LONG[:2])} and {LONG[2]}: {LONG_RATES[name]}"
    assert f" {told})\n" in capsys.readouterr().out


def test_a_task_of_long_trials_starts_at_its_rate_and_keeps_it(tmp_path: Path) -> None:
    short = ("--list-ops-max-length", "9", "--list-ops-min-length", "0", "--iterations", "1")
    for name, more, expected in (
        ("own", (), LONG_RATES["lstm"]),
        ("given", ("--learning-rate", "0.03"), 0.03),
    ):
        words = ("lstm", "--task", "list-ops", "--n", "4", "--batch", "2", "--quiet", *short, *more)
        assert main([*words, "--out", str(tmp_path / name)]) == 0
        config = read_checkpoint(find_checkpoint(tmp_path / name))[1]
        assert config["training"]["learning_rate"] == expected
        assert main(["lstm", "--resume", "--out", str(tmp_path / name), *more]) == 0


def test_starting_over_a_run_is_refused(
    text_file: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in saved.parent.rglob("*") if path.is_file()}
    for place in (saved, saved.parent):
        problem = complaint(capsys, *options(text_file, place))
        assert problem.startswith(f"{place}: found 'c")
        assert "expected a new or empty folder; choose another --out, or go on with" in problem
    found = {path: path.read_bytes() for path in saved.parent.rglob("*") if path.is_file()}
    assert found == before


@pytest.mark.parametrize("content", ["[1]\n", '{"step": 3}\n', "no JSON", '{"iteration": 1}\n{}\n'])
def test_measurements_of_another_program_are_left_alone(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    path.parent.mkdir()
    path.write_text(content)
    assert "found 'metrics.jsonl'" in complaint(capsys, *options(text_file, path.parent))
    assert path.read_text() == content


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(
    text_file: Path, start: Start
) -> None:
    run = start()
    run.record(loss=1.0)
    (run.folder / ".checkpoint-000010.part").mkdir()
    assert main(options(text_file, run.folder, "--iterations", "1")) == 0


@pytest.mark.parametrize(
    ("option", "value", "stored"),
    [("--n", "13", "12"), ("--seed", "1", "0"), ("--iterations", "31", "30")],
)
def test_resuming_with_another_option_is_refused(
    saved: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, stored: str
) -> None:
    again = ("tanh-rnn", "--out", str(saved.parent), "--resume", "--quiet")
    problem = complaint(capsys, *again, option, value)
    assert problem.startswith(f"{option}: found {value}, but the run in {saved.parent} was started")
    assert f"with {stored};" in problem
    assert main([*again, option, stored]) == 0


def test_resuming_as_another_family_is_refused(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = complaint(capsys, "osm-rnn", "--out", str(saved.parent), "--resume")
    remedy = f"go on with: torsor train tanh-rnn --out {saved.parent} --resume"
    assert problem == f"{saved.parent}: found a run of tanh-rnn, expected osm-rnn; {remedy}"


def test_resuming_on_a_changed_text_is_refused(
    saved: Path, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text_file.write_text(text_file.read_text() + "!")
    problem = complaint(capsys, "tanh-rnn", "--out", str(saved.parent), "--resume")
    assert problem.startswith("text.txt: found SHA-256 ")
    assert problem.endswith("the run was started on other data")


def test_a_run_on_a_relative_path_goes_on_from_any_folder(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, copy = tmp_path / "run", tmp_path / "copy.txt"
    monkeypatch.chdir(text_file.parent)
    assert main(options(Path(text_file.name), out, "--iterations", "1")) == 0
    monkeypatch.chdir("/")
    again = ["tanh-rnn", "--out", str(out), "--resume", "--quiet"]
    assert main(again) == main([*again, "--data", str(text_file)]) == 0
    text_file.rename(copy)
    assert main([*again, "--data", str(copy)]) == 0
    assert resume_run(out, str(copy)).settings.data == str(copy.resolve())


def test_resuming_on_another_text_is_refused(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.txt").write_text("another text" * 50)
    again = ("tanh-rnn", "--out", str(saved.parent), "--resume")
    problem = complaint(capsys, *again, "--data", str(tmp_path / "other.txt"))
    assert problem.startswith("other.txt: found SHA-256 ")


def test_resuming_a_damaged_checkpoint_is_one_line(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved / "parameters.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    problem = complaint(capsys, "tanh-rnn", "--out", str(saved.parent), "--resume")
    assert problem.startswith(f"{path}: found ")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("--data", "no-such-text"), "data: found 'no-such-text', expected shakespeare"),
        (("--window", "200"), "data: the valid part has 180 characters, expected more than"),
        (("--n", "0"), "n: found 0, expected at least 1"),
        (("--iterations", "0"), "iterations: found 0, expected at least 1"),
        (("--n", "2000000"), "n: found 2000000, expected at most 16384"),
        (("--batch", "9" * 22), f"batch: found {'9' * 22}, expected at most 65536"),
        (("--threads", "99999999999"), "threads: found 99999999999, expected at most 1024"),
        (("--learning-rate", "nan"), "learning_rate: found nan, expected a positive number"),
        (("--resume",), "{out}: no such folder; train first"),
    ],
)
def test_mistakes_are_one_line(
    text_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    problem: str,
) -> None:
    out = tmp_path / "run"
    found = complaint(capsys, *options(text_file, out, *more))
    assert found.startswith(problem.format(out=out))
    assert not out.exists()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory: 9 bytes")])
def test_too_little_memory_is_one_line(
    text_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("train.__main__.train", fail)
    problem = complaint(capsys, *options(text_file, tmp_path / "run"))
    assert problem.startswith("memory: found too little")


def test_an_osm_rnn_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="^d: found 5000, expected at most 512$"):
        OsmRnnConfig(input_size=3, output_size=3, d=5000)


def test_a_file_where_the_run_should_be_is_one_line(
    text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "text.txt" in complaint(capsys, *options(text_file, text_file))


def test_a_gradient_that_is_not_finite_ends_the_run(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = ("--learning-rate", "1e30", "--warm-up", "0")
    problem = complaint(capsys, *options(text_file, tmp_path / "run", *wild))
    assert "the gradient's norm is " in problem
    assert problem.endswith("start again with a smaller --learning-rate than 1e+30")


# --- evaluation


class Clock(Model):
    """Predicts, without doubt, the number of characters since the last correction."""

    family = "clock"
    correct_every = 3

    def weights(self) -> Weights:
        return {}

    def init_state(self, batch: int) -> State:
        return {"count": torch.full((batch, 1), 7.0)}  # far off until the first correction

    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        del weights, x
        return {"count": state["count"] + 1.0}

    def readout(self, weights: Weights, state: State) -> Tensor:
        del weights
        return -1e3 * (state["count"] - torch.arange(12.0)).abs()

    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        counts = state["count"] + torch.arange(1.0, len(xs) + 1.0)[:, None, None]
        return {"count": counts[-1]}, self.readout(weights, {"count": counts})

    def correct(self, state: State) -> State:
        return {"count": torch.zeros_like(state["count"])}

    def targets(self) -> list[Target]:
        return []


@pytest.mark.parametrize("length", [1, 3, 8, 9, 10])
def test_scores_are_corrected_at_multiples_and_nowhere_else(length: int) -> None:
    xs = (torch.arange(length) % 3)[:, None].expand(length, 2)
    assert torch.equal(log_probabilities(Clock(), {}, xs), torch.zeros(length, 2))


def test_written_text_is_corrected_at_the_same_places() -> None:
    assert write_text(Clock(), 10, seed=0) == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]


def test_every_lane_starts_afresh() -> None:
    lane = torch.tensor([0, 1, 2, 0, 1])
    assert bits_per_character(Clock(), torch.cat([lane, lane, lane[:1]]), lanes=2) == 0.0


def small_model(name: str) -> Model:
    config = family(name).Config(input_size=7, output_size=7, **small_sizes(name, 7))
    kind: Any = family(name)
    model: Model = kind(config, torch.Generator().manual_seed(0))
    return model


def some_text(length: int) -> Tensor:
    return torch.randint(7, (length,), generator=torch.Generator().manual_seed(1))


@every_family
@torch.no_grad()
def test_one_lane_is_the_mean_of_the_log_probabilities(name: str) -> None:
    model, ids = small_model(name), some_text(150)
    scores = log_probabilities(model, model.weights(), ids[:, None])
    expected = -float(scores.double().mean()) / math.log(2.0)
    assert bits_per_character(model, ids) == pytest.approx(expected, rel=1e-12)


@every_family
@torch.no_grad()
def test_log_probabilities_are_the_loop_of_single_characters(name: str) -> None:
    model, ids = small_model(name), some_text(40)
    weights, state, expected = model.weights(), model.init_state(1), []
    for position, x in enumerate(ids):
        if model.correct_every and position % model.correct_every == 0:
            state = model.correct(state)
        expected.append(model.readout(weights, state).log_softmax(-1)[0, x])
        state = model.update(weights, state, x[None])
    found = log_probabilities(model, weights, ids[:, None])[:, 0]
    assert float((found - torch.stack(expected)).abs().max()) <= 1e-5


@every_family
@pytest.mark.parametrize(("length", "lanes"), [(100, 8), (64, 64), (50, 64), (1, 1)])
@torch.no_grad()
def test_lanes_are_pieces_that_are_read_alone(name: str, length: int, lanes: int) -> None:
    model, ids = small_model(name), some_text(length)
    size = length // lanes
    pieces = [ids[i * size : (i + 1) * size] for i in range(lanes)] + [ids[lanes * size :]]
    total = sum(len(p) * bits_per_character(model, p) for p in pieces if len(p))
    assert bits_per_character(model, ids, lanes) == pytest.approx(total / length, rel=1e-5)


@every_family
@torch.no_grad()
def test_a_model_that_knows_nothing_needs_all_the_bits(name: str) -> None:
    model = small_model(name)
    for parameter in model.parameters():
        parameter.zero_()
    assert bits_per_character(model, some_text(100), 8) == pytest.approx(math.log2(7), rel=1e-6)


@every_family
def test_written_text_repeats_with_its_seed(name: str) -> None:
    model = small_model(name)
    assert write_text(model, 30, seed=3) == write_text(model, 30, seed=3)
    assert write_text(model, 30, seed=3) != write_text(model, 30, seed=4)
    assert set(write_text(model, 30, seed=3)) <= set(range(7))


@torch.no_grad()
def test_written_text_follows_the_distribution() -> None:
    model = OsmRnn(OsmRnnConfig(input_size=3, output_size=3, d=3), torch.Generator())
    model.prototypes.bias.copy_(torch.tensor([0.0, 50.0, 0.0]))
    assert write_text(model, 20, seed=0) == [1] * 20


def test_an_option_for_data_that_stands_twice_drops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name * 2000)
    monkeypatch.chdir(tmp_path)
    sizes = ("--n", "8", "--window", "8", "--iterations", "1", "--quiet")
    assert main(["tanh-rnn", "--data", "b", "c", "--data", "a", "--out", "run", *sizes]) == 0
    (checkpoint,) = Path("run").glob("checkpoint-*")
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["vocabulary"] == ["a", "b", "c"] and config["data"]["size"] == 6000
    assert config["training"]["data"].split("\n") == [str(tmp_path / name) for name in "bca"]
    assert main(["tanh-rnn", "--out", "run", "--resume", "--quiet"]) == 0
