"""Training around the loop: sizes, options, schedules, dropout, processes, and all tasks."""

import functools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_models import fitted
from torch import Tensor

from train.__main__ import main
from train.checkpoint import FILES, find_checkpoint, read_checkpoint
from train.dropout import drop, dropped_weights
from train.groups.by_name import group_names
from train.loop import train_iteration
from train.model import Model, State, Target, Weights, family, family_names, scan_reference
from train.presets import BUDGETS, count_parameters, fit_sizes
from train.report.diagnosis import diagnose, eigen_angles, root_mean_square
from train.run import Run, resume_run, save_run, start_run
from train.schedule import SECOND_MOMENTUM, STEADY_MOMENTUM, cosine, make_optimizer, set_rates
from train.settings import Settings
from train.tasks.task import Task, make_task, task_kind, task_names
from train.tasks.text import Text
from train.tasks.trial_task import TrialTask

ROOT = Path(__file__).parent.parent.parent
TORSOR = Path(sys.executable).parent / "torsor"
BUDGET = 3_000  # parameters of a small model
SHORT: dict[str, dict[str, Any]] = {  # options of the tasks that make short trials
    "adding": {"length": 8},
    "copy": {"symbols": 3, "bits": 2, "train_lags": 5, "lags": 6},
    "flip-flop": {"length": 8},
    "integration": {"length": 8},
    "list-ops": {"min_length": 0, "max_length": 10, "max_depth": 3, "num_train": 50},
    "mnist": {"step": "row"},
    "sine": {"length": 8},
    "sparse-xor": {"d": 8},
    "spoken-digits": {"frame": 40, "max_samples": 320},
}
NORMS = ("generator_norm_mean", "generator_norm_max")
NEED_DATA = ("mnist", "spoken-digits")
FLIP_FLOP = ("--task", "flip-flop", "--flip-flop-length", "5", "--flip-flop-bits", "2")

every_family = pytest.mark.parametrize("name", family_names())


def ends_of(name: str) -> dict[str, int]:
    """Input and output size: those of Tiny Shakespeare, of a family for bits 64 and 1."""
    V, Y = (65, 65) if "characters" in family(name).takes else (64, 1)
    return {"input_size": V, "output_size": Y}


def make_model(name: str, **sizes: Any) -> Model:
    kind: Any = family(name)
    whole = fitted(name, {**ends_of(name), **sizes}, 20_000)
    model: Model = kind(kind.Config(**whole), torch.Generator().manual_seed(0))
    return model


def command(text_file: Path, out: Path, *more: str) -> list[str]:
    """The command line of a small tanh-rnn."""
    text = () if "--task" in more else ("--data", str(text_file), "--window", "8")
    return ["tanh-rnn", *text, "--batch", "4", "--n", "12", "--out", str(out), "--quiet", *more]


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that the command ends with, behind its name."""
    assert main(list(arguments)) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith("torsor train: ")
    return printed.err.removeprefix("torsor train: ").strip()


def config_of(out: Path) -> dict[str, Any]:
    return read_checkpoint(find_checkpoint(out))[1]


def parameters_of(out: Path) -> dict[str, Tensor]:
    return load_file(find_checkpoint(out) / "parameters.safetensors")


def metrics(out: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what the clock decides."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if not k.endswith("_per_s")} for x in lines]


# --- presets


@pytest.mark.parametrize(
    ("name", "budget"),
    [*((name, BUDGETS["100k"]) for name in family_names()), ("transformer", BUDGETS["500k"])],
)
def test_a_preset_is_the_largest_size_within_its_budget(name: str, budget: int) -> None:
    ends, grows = ends_of(name), family(name).grows
    fitted = fit_sizes(name, ends, budget)
    assert {key: fitted[key] for key in ends} == ends
    count = count_parameters(name, fitted)
    assert count is not None and 0.8 * budget < count <= budget
    larger = (count_parameters(name, {**fitted, grows: fitted[grows] + i}) for i in range(1, 100))
    assert next(count for count in larger if count is not None) > budget


def test_presets_of_a_family_are_those_of_a_search_one_by_one() -> None:
    ends = ends_of("osm-rnn")
    found = {d: count_parameters("osm-rnn", {**ends, "d": d}) for d in range(1, 16)}
    counts = {d: count for d, count in found.items() if count is not None}
    assert set(found) - set(counts) == {1}
    assert list(BUDGETS.values()) == [100_000, 200_000, 300_000, 400_000, 500_000]
    for budget in (counts[2], 2_000, 10_000, 30_000, counts[14]):
        expected = max(d for d, count in counts.items() if count <= budget)
        assert fit_sizes("osm-rnn", ends, budget) == {**ends, "d": expected}


def test_sizes_that_a_family_can_not_have_are_stepped_over() -> None:
    sizes = {**ends_of("transformer"), "heads": 3}
    d = fit_sizes("transformer", sizes, 100_000)["d"]
    assert d % 6 == 0
    assert (count_parameters("transformer", {**sizes, "d": d}) or 0) <= 100_000
    assert count_parameters("transformer", {**sizes, "d": d + 1}) is None
    assert (count_parameters("transformer", {**sizes, "d": d + 6}) or 0) > 100_000


def test_a_budget_that_holds_no_model_is_refused() -> None:
    expected = "^preset: found no d of osm-rnn with at most 100 parameters; choose a larger"
    with pytest.raises(ValueError, match=expected):
        fit_sizes("osm-rnn", ends_of("osm-rnn"), 100)


def test_an_impossible_size_beside_a_preset_is_named_itself() -> None:
    with pytest.raises(ValueError, match="^layers: found 100000, expected at most 64"):
        fit_sizes("lru", {"input_size": 65, "output_size": 65, "layers": 100_000}, 100_000)


# --- options


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("--preset", "100k"), "preset: found --n beside it, expected one of the two"),
        (("--seeds", "0,0"), "seeds: found '0,0', expected each once"),
        (("--seeds", "0,x"), "seeds: found '0,x', expected numbers as 0,1,2"),
        (("--seeds", "0,1", "--seed", "2"), "seeds: found --seed beside it, expected one of the"),
        (("--seeds", "0,-1", "--iterations", "0"), "iterations: found 0, expected at least 1"),
        (("--copy-lags", "4"), "--copy-lags: found it with --task text, expected --task copy"),
        (("--task", "sine", "--copy-lags", "4"), "--copy-lags: found it with --task sine, exp"),
        (("--task", "sine", "--sine-length", "0"), "length: found 0, expected at least 1"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    text_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    problem: str,
) -> None:
    assert complaint(capsys, *command(text_file, tmp_path / "run", *more)).startswith(problem)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more", [(), ("--preset", "100k")])
def test_a_task_that_a_family_can_not_take_is_refused(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    out = tmp_path / "run"
    found = complaint(capsys, "sparse-xor", "--data", str(text_file), "--out", str(out), *more)
    assert found == (
        "task: found 'text', which gives characters, expected one that gives vectors, "
        "as sparse-xor takes"
    )
    assert not out.exists()


def test_options_of_a_task_reach_the_run_and_stay(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    more = (*FLIP_FLOP, "--flip-flop-rate", "0.5", "--iterations", "2")
    assert main(command(text_file, out, *more)) == 0
    config = config_of(out)
    assert config["task"] == {"bits": 2, "length": 5, "rate": 0.5}
    assert (config["config"]["input_size"], config["config"]["output_size"]) == (2, 2)
    assert (config["vocabulary"], config["training"]["task"]) == ([], "flip-flop")
    assert capsys.readouterr().out.startswith(f"{out}: iteration 2, validation loss ")
    again = ("tanh-rnn", "--out", str(out), "--resume", "--quiet")
    assert main([*again, *FLIP_FLOP]) == 0
    capsys.readouterr()
    for option, value, stored in (
        ("--flip-flop-bits", "3", "2"),
        ("--task", "sine", "flip-flop"),
        ("--schedule", "cosine", "one-cycle"),
    ):
        expected = f"{option}: found {value}, but the run in {out} was started with {stored}; "
        assert complaint(capsys, *again, option, value).startswith(expected)


def test_a_preset_is_the_same_when_a_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    more = ("--preset", "100k", *FLIP_FLOP, "--iterations", "1", "--quiet")
    assert main(["lstm", "--embedding", "3", *more, "--out", str(out)]) == 0
    n = config_of(out)["config"]["n"]
    sizes = {"input_size": 2, "output_size": 2, "embedding": 3}
    assert n == fit_sizes("lstm", sizes, 100_000)["n"]
    again = ("lstm", "--out", str(out), "--resume", "--quiet")
    assert main([*again, "--preset", "100k"]) == 0
    capsys.readouterr()
    assert complaint(capsys, *again, "--preset", "200k").startswith("--n: found ")


# --- several seeds


def seeds_command(text_file: Path, out: Path, *more: str) -> list[str]:
    return command(text_file, out, *FLIP_FLOP, "--iterations", "12", "--seeds", "0,1", *more)


def test_several_seeds_are_several_runs_and_a_summary(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    assert main(seeds_command(text_file, out)) == 0
    told = capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"seed-0", "seed-1", "summary.json"}
    page, last = (
        json.loads((out / "summary.json").read_text()),
        [metrics(out / f"seed-{seed}")[-1] for seed in (0, 1)],
    )
    assert (page["family"], page["seeds"]) == ("tanh-rnn", [0, 1])
    assert page["num_parameters"] == sum(p.numel() for p in parameters_of(out / "seed-0").values())
    assert [config_of(out / f"seed-{seed}")["training"]["seed"] for seed in (0, 1)] == [0, 1]
    assert "test_fvu" in page["scores"]
    for name, values in page["scores"].items():
        assert values == [line[name] for line in last] and values[0] != values[1]
        assert page["mean"][name] == pytest.approx(sum(values) / 2, rel=1e-12)
        assert page["deviation"][name] == pytest.approx(statistics.stdev(values), rel=1e-12)
        mean, deviation = page["mean"][name], page["deviation"][name]
        assert f": {mean:.4g} ± {deviation:.2g} over 2 seeds\n" in told
    alone = tmp_path / "alone"
    assert main(command(text_file, alone, *FLIP_FLOP, "--iterations", "12", "--seed", "1")) == 0
    assert_same_bits(alone, out / "seed-1")


def test_one_seed_has_no_deviation(text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    more = (*FLIP_FLOP, "--iterations", "1", "--seeds", "3")
    assert main(command(text_file, out, *more)) == 0
    page = json.loads((out / "summary.json").read_text())
    assert set(page["deviation"].values()) == {None} and page["seeds"] == [3]


def test_several_seeds_go_on_where_they_stopped(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert main(seeds_command(text_file, straight)) == 0
    assert main(seeds_command(text_file, stopped)[:-1] + ["0"]) == 0  # the second never began
    capsys.readouterr()
    assert complaint(capsys, *seeds_command(text_file, stopped)).startswith(
        f"{stopped / 'seed-0'}: found 'checkpoint-000012', expected a new or empty folder"
    )
    forgot = ("tanh-rnn", *FLIP_FLOP, "--batch", "4", "--iterations", "12", "--out", str(stopped))
    assert main([*forgot, "--quiet", "--seeds", "0,1", "--resume"]) == 1
    places = f"found 256 in {stopped / 'seed-1'}, expected 12 as in {stopped / 'seed-0'}"
    assert f"torsor train: n: {places}; give the" in capsys.readouterr().err
    assert main(seeds_command(text_file, stopped, "--resume")) == 0
    for name in ("seed-0", "seed-1"):
        assert_same_bits(stopped / name, straight / name)
    assert (stopped / "summary.json").read_bytes() == (straight / "summary.json").read_bytes()


# --- rates and decays


@pytest.mark.parametrize("warm_up", [0.0, 0.1, 0.5])
def test_the_cosine_rises_in_a_line_and_falls_in_half_a_wave(warm_up: float) -> None:
    peak = round(1000 * warm_up)
    rates, momenta = zip(*(cosine(i / 1000, warm_up) for i in range(1001)), strict=True)
    assert set(momenta) == {STEADY_MOMENTUM}
    assert rates[:peak] == pytest.approx([i / peak for i in range(peak)])
    assert rates[peak] == pytest.approx(1.0)
    assert rates[(1000 + peak) // 2] == pytest.approx(0.5, abs=2e-3)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    falling = rates[peak:]
    assert list(falling) == sorted(falling, reverse=True)
    assert [a + b for a, b in zip(falling, reversed(falling), strict=True)] == pytest.approx(
        [1.0] * len(falling)
    )


@every_family
def test_rates_and_decays_of_a_family_arrive_in_the_optimiser(name: str) -> None:
    model = make_model(name)
    settings = Settings(learning_rate=0.02, weight_decay=0.3, schedule="cosine", warm_up=0.0)
    optimizer = make_optimizer(model, settings)
    set_rates(optimizer, 0.5, settings)
    groups = {id(group["params"][0]): group for group in optimizer.param_groups}
    parameters = dict(model.named_parameters())
    assert set(model.learning_rates) | set(model.weight_decays) <= set(parameters)
    assert len(groups) == sum(p.requires_grad for p in parameters.values())
    for key, parameter in parameters.items():
        if not parameter.requires_grad:
            assert id(parameter) not in groups
            continue
        group = groups[id(parameter)]
        assert len(group["params"]) == 1
        assert group["lr"] == pytest.approx(0.01 * model.learning_rates.get(key, 1.0))
        decays = model.weight_decays.get(key, float(parameter.ndim >= 2))
        assert group["weight_decay"] == pytest.approx(0.3 * decays)
        assert group["betas"] == (STEADY_MOMENTUM, SECOND_MOMENTUM)


def test_decay_makes_matrices_smaller_and_leaves_the_rest(text_file: Path, tmp_path: Path) -> None:
    after = []
    for decay in (0.0, 0.5):
        run = start(tmp_path / str(decay), "tanh-rnn", weight_decay=decay, warm_up=0.0)
        before = {key: p.detach().clone() for key, p in run.model.named_parameters()}
        train_iteration(run)
        after.append({key: p.detach() for key, p in run.model.named_parameters()})
    assert {p.ndim for p in before.values()} == {1, 2}
    for key, parameter in before.items():
        rate = 0.02 * run.model.learning_rates.get(key, 1.0)
        expected = rate * 0.5 * parameter if parameter.ndim == 2 else torch.zeros(())
        assert torch.allclose(after[0][key] - after[1][key], expected, atol=1e-7), key


# --- weight dropout


def test_dropped_entries_are_zero_and_the_others_larger() -> None:
    weight, share = torch.randn(40, 50, generator=torch.Generator().manual_seed(1)), 0.3
    generator = torch.Generator().manual_seed(2)
    masks = torch.stack([drop(weight, share, generator) for _ in range(500)])
    kept = masks != 0.0
    assert torch.equal(masks, torch.where(kept, weight / (1.0 - share), 0.0))
    assert float(kept.float().mean()) == pytest.approx(1.0 - share, abs=1e-2)
    deviation = weight.abs() * math.sqrt(share / (1.0 - share) / len(masks))
    assert bool(((masks.mean(0) - weight).abs() <= 6.0 * deviation).all())
    again = torch.Generator().manual_seed(2)
    assert torch.equal(masks[0], drop(weight, share, again))
    assert not torch.equal(masks[0], masks[1])


@torch.no_grad()
def test_only_weights_that_a_family_names_are_dropped_and_only_inside() -> None:
    model, generator = make_model("osm-rnn"), torch.Generator().manual_seed(3)
    plain = model.weights()
    with dropped_weights(model, 0.4, generator):
        inside = model.weights()
    expected = torch.Generator().manual_seed(3)
    assert model.dropped == ("mixing", "input")
    for name in model.dropped:
        assert torch.equal(inside[name], drop(plain[name], 0.4, expected)), name
    assert inside.keys() == plain.keys()
    for name in plain.keys() - set(model.dropped):
        assert torch.equal(inside[name], plain[name]), name
    assert_weights(model, plain)


@torch.no_grad()
def test_weights_come_back_when_the_loss_fails() -> None:
    model = make_model("osm-rnn")
    plain = model.weights()
    with pytest.raises(ZeroDivisionError):
        with dropped_weights(model, 0.4, torch.Generator()):
            raise ZeroDivisionError
    assert_weights(model, plain)


@torch.no_grad()
def test_no_share_is_no_dropout_and_draws_nothing() -> None:
    model, generator = make_model("osm-rnn"), torch.Generator().manual_seed(3)
    plain, before = model.weights(), generator.get_state()
    with dropped_weights(model, 0.0, generator):
        assert_weights(model, plain)
    assert torch.equal(generator.get_state(), before)


def assert_weights(model: Model, expected: Weights) -> None:
    found = model.weights()
    assert "weights" not in vars(model)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_runs_with_dropout_repeat_and_go_on_to_the_same_bits(tmp_path: Path) -> None:
    runs = {}
    for folder, share in (("plain", 0.0), ("straight", 0.3), ("stopped", 0.3)):
        runs[folder] = start(tmp_path / folder, "osm-rnn", weight_dropout=share)
        iterate(runs[folder], 4)
        save_run(runs[folder])
    resumed = resume_run(tmp_path / "stopped")
    for run in (runs["straight"], resumed, runs["plain"]):
        iterate(run, 10)
        save_run(run)
    assert_same_bits(tmp_path / "stopped", tmp_path / "straight")
    plain, dropped = (parameters_of(tmp_path / name) for name in ("plain", "straight"))
    assert not torch.equal(plain["tokens"], dropped["tokens"])


# --- parameters that don't learn


def test_frozen_parameters_are_kept_without_moments(tmp_path: Path) -> None:
    run = start(tmp_path / "run", "sparse-xor", "sparse-xor")
    frozen = run.model.get_parameter("positions")
    before = frozen.detach().clone()
    iterate(run, 3)
    save_run(run)
    assert not frozen.requires_grad and torch.equal(frozen, before)
    trainer = load_file(find_checkpoint(run.folder) / "trainer.safetensors")
    names = {"exp_avg.queries", "exp_avg_sq.queries", "step.queries", "generator", "torch"}
    assert set(trainer) == names
    resumed = resume_run(run.folder).model.get_parameter("positions")
    assert torch.equal(resumed, before) and not resumed.requires_grad


# --- several processes


def run_twofold(arguments: list[str]) -> str:
    """What a command says that two processes follow."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python")
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", "--", str(TORSOR), "train", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_two_processes_do_what_one_does_and_go_on_to_the_bits_of_straight_ones(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = ("--valid-every", "6", "--checkpoint-every", "6")
    more = ("--iterations", "12", *times, "--seeds", "0,1")
    two, one, stopped = (tmp_path / name for name in ("two", "one", "stopped"))
    said = run_twofold(command(text_file, two, *more))
    assert main(command(text_file, one, *more)) == 0
    assert said.count("\n") == capsys.readouterr().out.count("\n")
    shutil.copytree(two, stopped)
    for seed in ("seed-0", "seed-1"):
        shutil.rmtree(find_checkpoint(stopped / seed))
        assert find_checkpoint(stopped / seed).name == "checkpoint-000006"
    run_twofold(command(text_file, stopped, *more, "--resume"))
    for seed in ("seed-0", "seed-1"):
        assert_same_bits(stopped / seed, two / seed)
    for seed in ("seed-0", "seed-1"):
        found, expected = parameters_of(two / seed), parameters_of(one / seed)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.allclose(found[name], value, rtol=0.0, atol=1e-5), name
        lines, others = metrics(two / seed), metrics(one / seed)
        assert [line["iteration"] for line in lines] == [6, 10, 12]
        assert [line.keys() for line in lines] == [line.keys() for line in others]
        assert lines[1]["loss"] == pytest.approx(others[1]["loss"], abs=1e-5)
    assert (two / "summary.json").is_file()


def test_a_batch_that_processes_can_not_share_is_refused(
    text_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = complaint(capsys, *command(text_file, tmp_path / "run", "--batch", "5"))
    assert found == "batch: found 5, expected a multiple of 2 processes"
    assert not (tmp_path / "run").exists()


# --- every family on every task


def pairs() -> list[Any]:
    """Families and tasks that fit; the family of sparse XOR is for its own task."""
    found = []
    for name in family_names():
        for task in task_names():
            fits = task_kind(task).takes in family(name).takes
            if fits and task != "text" and name != "sparse-xor" or name == task:
                found.append(pytest.param(name, task, id=f"{name} {task}"))
    return found


def settings_of(name: str, task: str, iterations: int, **more: Any) -> Settings:
    rate = 3.0 * family(name).learning_rate  # small models want more
    chosen = {"task": task, "iterations": iterations, "batch": 4, "learning_rate": rate, **more}
    return Settings(**chosen)


@functools.cache
def short_task(task: str) -> Task:
    return make_task(Settings(task=task), SHORT.get(task, {}))


@functools.cache
def small_sizes(name: str) -> dict[str, Any]:
    """One layer, and the size that the budget allows for few inputs and outputs."""
    layers = {"layers": 1} if "layers" in family(name).Config.__annotations__ else {}
    fitted = fit_sizes(name, {"input_size": 8, "output_size": 1, **layers}, BUDGET)
    return {key: size for key, size in fitted.items() if not key.endswith("put_size")}


def start(folder: Path, name: str, task: str = "flip-flop", **settings: Any) -> Run:
    """A small run of 10 iterations at a rate of 0.02."""
    chosen = settings_of(name, task, 10, learning_rate=0.02, **settings)
    return start_run(folder, name, small_sizes(name), chosen, SHORT[task])


def iterate(run: Run, iterations: int) -> None:
    while run.iteration < iterations:
        train_iteration(run)


def assert_same_bits(left: Path, right: Path) -> None:
    """Both runs ended with the same parameters, optimiser, random numbers and measurements."""
    one, other = find_checkpoint(left), find_checkpoint(right)
    assert one.name == other.name
    for name in FILES[1:3]:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert metrics(left) == metrics(right)


@pytest.mark.parametrize(("name", "task"), pairs())
def test_a_family_learns_a_task_by_a_scan_that_is_its_loop(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, task: str
) -> None:
    if task in NEED_DATA:
        request.getfixturevalue("data_dir")
    made, settings = short_task(task), settings_of(name, task, 10)
    kind: Any = family(name)
    ends = {"input_size": made.input_size, "output_size": made.output_size}
    sizes = asdict(kind.Config(**ends, **small_sizes(name)))
    run = Run(tmp_path, {"family": name, "config": sizes, "training": asdict(settings)}, made)
    losses = []
    for _ in range(settings.iterations):
        run.generator.manual_seed(1)  # the same trials every time, to be learnt by heart
        losses.append(train_iteration(run)[0])
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert_scan_is_loop(run.model, made.sample(3, run.generator).inputs)


@torch.no_grad()
def assert_scan_is_loop(model: Model, xs: Tensor) -> None:
    weights, start = model.weights(), model.init_state(xs.shape[1])
    state, ys = model.scan(weights, start, xs)
    looped, expected = scan_reference(model, weights, start, xs)
    scale = 1.0 + float(expected.abs().max())
    assert float((ys - expected).abs().max()) <= 2e-5 * scale
    assert all(torch.allclose(state[key], looped[key], 1e-4, 1e-4) for key in looped)


@pytest.mark.parametrize(
    ("name", "task"),
    [
        *((name, "flip-flop") for name in family_names() if name != "sparse-xor"),
        *(("lstm", "list-ops"), ("osm-rnn", "list-ops"), ("sparse-xor", "sparse-xor")),
        *(("tanh-rnn", "copy"), ("lru", "sine"), ("rotrnn", "integration"), ("lstm", "adding")),
        *(("osm-rnn", "mnist"), ("lightning", "spoken-digits")),
    ],
)
def test_runs_on_tasks_go_on_to_the_bits_of_a_straight_one(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, task: str
) -> None:
    if task in NEED_DATA:
        request.getfixturevalue("data_dir")
    assert_resumes_to_the_same_bits(tmp_path, name, task)


@pytest.mark.parametrize("name", ["osm-rnn", "osm-former", "transformer"])
@pytest.mark.parametrize(
    "settings",
    [
        *({"schedule": "cosine"}, {"weight_decay": 0.3}, {"precision": "bf16"}),
        {"schedule": "cosine", "weight_decay": 0.3, "precision": "bf16"},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_runs_of_any_settings_go_on_to_the_bits_of_a_straight_one(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    plain = start(tmp_path / "plain", name)
    iterate(plain, 6)
    save_run(plain)
    assert_resumes_to_the_same_bits(tmp_path, name, "flip-flop", **settings)
    one, other = (parameters_of(tmp_path / folder) for folder in ("plain", "straight"))
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("task", ["flip-flop", "list-ops"])
@pytest.mark.parametrize("group", group_names())
@pytest.mark.parametrize("name", ["osm-rnn", "osm-former"])
def test_coarse_products_leave_groups_exact(
    tmp_path: Path, name: str, group: str, task: str
) -> None:
    settings = settings_of(name, task, 10, precision="bf16")
    run = start_run(tmp_path, name, {"d": 3, "group": group}, settings, SHORT[task])
    iterate(run, 2)
    weights, state = run.model.weights(), run.model.init_state(4)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        for x in run.task.sample(4, run.generator).inputs:
            state = run.model.update(weights, state, x)
    assert all(value.dtype == torch.float32 for value in state.values())
    H = run.model.elements(state)
    assert H is not None and torch.allclose(H.mT @ H, torch.eye(H.shape[-1]), atol=1e-5)


def assert_resumes_to_the_same_bits(folder: Path, name: str, task: str, **settings: Any) -> None:
    straight, stopped = (start(folder / x, name, task, **settings) for x in ("straight", "stopped"))
    iterate(straight, 6)
    iterate(stopped, 3)
    save_run(stopped)
    resumed = resume_run(stopped.folder)
    assert (resumed.iteration, resumed.config) == (3, stopped.config)
    iterate(resumed, 6)
    for run in (straight, resumed):
        save_run(run)
    assert_same_bits(resumed.folder, straight.folder)


# --- diagnosis


class Spinner(Model):
    """A state in SO(3) that turns by one angle about one axis at every step, and then is scaled."""

    family = "spinner"
    angle, scale = 0.7, 1.0

    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def weights(self) -> Weights:
        return {}

    def init_state(self, batch: int) -> State:
        return {"H": torch.eye(3, dtype=torch.float64).expand(batch, 3, 3)}

    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        del weights, x
        c, s = math.cos(self.angle), math.sin(self.angle)
        R = torch.tensor([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]], dtype=torch.float64)
        return {"H": state["H"] @ R * self.scale}

    def readout(self, weights: Weights, state: State) -> Tensor:
        raise NotImplementedError

    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        raise NotImplementedError

    def elements(self, state: State) -> Tensor:
        return state["H"]

    def targets(self) -> list[Target]:
        return []


def test_a_diagnosis_tells_angles_and_errors_that_are_known() -> None:
    figures = diagnose(Spinner(), short_task("sine"))
    assert figures["step_angles"] == pytest.approx([0.0, 0.0, 0.7, 0.7, 0.7], abs=1e-6)
    assert figures["orthogonality_error"] == pytest.approx(0.0, abs=1e-12)
    assert figures["state_rms"] == pytest.approx(3**-0.5)
    model = Spinner()
    model.scale = 1.01  # 8 steps of it
    figures = diagnose(model, short_task("sine"))
    assert figures["orthogonality_error"] == pytest.approx(1.01**16 - 1.0)
    assert figures["state_rms"] == pytest.approx(1.01**8 * 3**-0.5)
    assert figures["step_angles"] == pytest.approx([0.0, 0.0, 0.7, 0.7, 0.7], abs=1e-6)


def test_eigenvalue_angles_and_the_mean_square_are_right() -> None:
    turn = torch.tensor([[math.cos(2.0), -math.sin(2.0)], [math.sin(2.0), math.cos(2.0)]])
    found = eigen_angles(torch.stack([turn, -torch.eye(2)]))
    expected = torch.tensor([[2.0, 2.0], [math.pi, math.pi]], dtype=torch.float64)
    assert torch.allclose(found, expected, atol=1e-6)
    assert root_mean_square({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0, 5.0]])}) == (
        pytest.approx(math.sqrt(50.0 / 3.0))
    )
    assert root_mean_square({}) == 0.0


@pytest.mark.parametrize("name", ["osm-rnn", "osm-former", "lstm"])
def test_diagnoses_of_families_are_finite(name: str) -> None:
    made = short_task("list-ops")
    ends = {"input_size": made.input_size, "output_size": made.output_size}
    kind: Any = family(name)
    model = kind(kind.Config(**ends, **small_sizes(name)), torch.Generator())
    figures = diagnose(model, made)
    groups = ("orthogonality_error", "step_angles", *NORMS) if name != "lstm" else ()
    assert set(figures) == {"state_rms", *groups}
    assert all(math.isfinite(x) for x in torch.tensor(list(flat(figures))).tolist())
    if groups:
        error, angles = figures["orthogonality_error"], figures["step_angles"]
        assert type(error) is float and error < 1e-4
        assert type(angles) is list and angles == sorted(angles)
        assert 0.0 <= angles[0] and angles[-1] <= 3.141593  # rounded
        mean, largest = (figures[key] for key in NORMS)
        assert type(mean) is float and type(largest) is float and 0.0 < mean < largest


@pytest.mark.parametrize("group", ["so", "u"])
def test_generator_norms_are_the_angles_by_which_steps_turn(group: str) -> None:
    made, d = short_task("list-ops"), 2
    kind: Any = family("osm-rnn")
    config = kind.Config(input_size=16, output_size=10, d=d, group=group, mixing="none")
    model = kind(config, torch.Generator().manual_seed(0))
    turn = torch.tensor([[0.0, -0.7], [0.7, 0.0]])  # of the plane, or of both axes of C²
    ambient = turn if group == "so" else torch.stack([torch.zeros(d, d), 0.7 * torch.eye(d)])
    model.tokens.data.copy_(ambient.flatten())
    scale = 1.0 if group == "so" else d**0.5  # √(Σ θ²)
    angle, norms = 0.0, list[float]()  # H turns by it, so proj(H* M) is smaller by its cosine
    for _ in made.probe(1, 64):
        norms.append(0.7 * math.cos(angle))
        angle += norms[-1]
    figures = diagnose(model, made)
    assert figures["generator_norm_max"] == pytest.approx(scale * 0.7)
    assert figures["generator_norm_mean"] == pytest.approx(scale * statistics.fmean(norms), 1e-4)


def test_phases_that_are_off_take_no_tangent() -> None:
    made = short_task("list-ops")
    kind: Any = family("osm-former")
    model = kind(kind.Config(input_size=16, output_size=10, d=3), torch.Generator())
    model.gain.data.zero_()
    assert [diagnose(model, made)[key] for key in NORMS] == [0.0, 0.0]


def test_a_diagnosis_is_of_trials_that_validate(text_file: Path) -> None:
    text = make_task(Settings(data=str(text_file), window=8), {})
    assert isinstance(text, Text)
    windows = text.splits.valid.unfold(0, 64, 1)
    for window, place in zip(text.probe(3, 64).T, (0, len(windows) // 2, -1), strict=True):
        assert torch.equal(window, windows[place])
    made = short_task("sine")
    assert isinstance(made, TrialTask)
    assert torch.equal(made.probe(3, 5), made.held_out("valid").inputs[:5, :3])


def flat(figures: dict[str, Any]) -> list[float]:
    return [x for value in figures.values() for x in (value if type(value) is list else [value])]
