"""The training loop: trials, AdamW, one cycle of the learning rate."""

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from train.dropout import dropped_weights
from train.report.diagnosis import diagnose
from train.report.figures import say_score
from train.report.page import write_report
from train.run import Run, save_run
from train.schedule import set_rates
from train.tasks.task import Part

REPORT_EVERY = 10  # iterations between lines of metrics
PARTS = {"valid": "validation", "test": "test"}


class TrainingError(RuntimeError):
    """Training that can't go on, and what to change."""


def train(run: Run, quiet: bool = False) -> bool:
    """Train to the last iteration, or until stopped; whether it got there.

    Ends with a validation, a test, a checkpoint and a report. SIGINT or SIGTERM end the iteration,
    write a checkpoint and return.
    """
    if run.finished:
        return True  # tested and saved when it got there
    bar = progress_bar(run, quiet or run.world.rank > 0)
    begun, started = run.iteration, time.monotonic()
    with bar, stop_on_signal(run):
        while not run.finished and not run.world.any(run.stop_requested):
            loss, norm = train_iteration(run)
            bar.update()
            if run.iteration % REPORT_EVERY == 0:
                speed = (run.iteration - begun) / (time.monotonic() - started)  # iterations/s
                _report(run, bar, loss, norm, speed)
            _look_up(run, bar)
        if run.finished:
            _conclude(run, bar)
        keep(run)
        if run.events:
            run.events.close()
    return run.finished


def keep(run: Run) -> None:
    """Write a checkpoint of the run as it stands, and the report; the first process does."""
    if save_run(run):
        write_report(run)


def train_iteration(run: Run) -> tuple[float, float]:
    """One optimiser update; its loss and the gradient's norm."""
    settings, world = run.settings, run.world
    set_rates(run.optimizer, run.iteration / settings.iterations, settings)
    run.optimizer.zero_grad(set_to_none=True)
    trials = run.task.sample(settings.batch, run.generator).part(world.rank, world.size)
    coarse = torch.autocast(world.device.type, torch.bfloat16, settings.precision == "bf16")
    with coarse, dropped_weights(run.model, settings.weight_dropout, run.generator):
        loss = run.task.loss(run.model, trials.to(world.device))
    loss.backward()  # type: ignore[no-untyped-call]
    mean = loss.detach().clone()
    world.average([mean, *(g for g in gradients(run) if g is not None)])
    norm = float(torch.nn.utils.clip_grad_norm_(run.model.parameters(), settings.clip))
    if not math.isfinite(norm):
        raise TrainingError(
            f"iteration {run.iteration}: the gradient's norm is {norm}; resume from the last "
            "checkpoint is pointless, start again with a smaller --learning-rate than "
            f"{settings.learning_rate}"
        )
    run.optimizer.step()
    run.iteration += 1
    return float(mean), norm


def gradients(run: Run) -> list[Tensor | None]:
    """The gradient of every parameter that has one."""
    return [parameter.grad for parameter in run.model.parameters()]


def scores_of(run: Run, part: Part) -> dict[str, float]:
    """The task's scores of the model as it stands, as `valid_bpc` and the like."""
    return {f"{part}_{name}": x for name, x in run.task.evaluate(run.model, part).items()}


@contextmanager
def stop_on_signal(run: Run) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run after its iteration."""

    def stop(number: int, frame: object) -> None:
        del number, frame
        run.stop_requested = True

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def progress_bar(run: Run, quiet: bool) -> "tqdm[Any]":
    """Iterations done, with the loss, the speed and the time left."""
    return tqdm(
        total=run.settings.iterations,
        initial=run.iteration,
        unit="it",
        dynamic_ncols=True,
        disable=quiet,
        mininterval=0.5,
        bar_format="{n_fmt}/{total_fmt} |{bar:12}| {desc} [{elapsed}<{remaining}]",
    )


def _look_up(run: Run, bar: "tqdm[Any]") -> None:
    if run.finished:
        return
    if run.iteration % run.settings.valid_every == 0 and run.world.rank == 0:
        _announce(run, bar, scores_of(run, "valid"))
    if run.iteration % run.settings.checkpoint_every == 0:
        keep(run)


def _conclude(run: Run, bar: "tqdm[Any]") -> None:
    if run.world.rank == 0:
        _announce(run, bar, {**scores_of(run, "valid"), **scores_of(run, "test")})


def _announce(run: Run, bar: "tqdm[Any]", scores: dict[str, float]) -> None:
    sample = run.task.write(run.model, run.settings.seed + run.iteration)
    found = {} if sample is None else {"sample": sample}
    run.record(**scores, **diagnose(run.model, run.task), **found)
    if not bar.disable:
        told = ", ".join(f"{spoken(name)} {score:.4g}" for name, score in scores.items())
        news = f", sample:\n{sample}\n" if sample is not None else ""
        bar.write(f"iteration {run.iteration}: {told}{news}", file=sys.stderr)


def spoken(name: str) -> str:
    """`valid_bpc` as `validation BPC`."""
    part, _, score = name.partition("_")
    return f"{PARTS[part]} {say_score(score)}"


def _report(run: Run, bar: "tqdm[Any]", loss: float, norm: float, speed: float) -> None:
    if run.task.name == "text":
        rate = speed * run.settings.batch * (run.settings.window + 1)
        bpc = loss / math.log(2.0)
        bar.set_description_str(f"loss {loss:.3f}, BPC {bpc:.3f}, {rate:,.0f} characters/s", False)
        run.record(loss=loss, bpc=bpc, gradient_norm=norm, characters_per_s=round(rate))
    else:
        rate = speed * run.settings.batch
        bar.set_description_str(f"loss {loss:.4g}, {rate:,.0f} trials/s", False)
        run.record(loss=loss, gradient_norm=norm, trials_per_s=round(rate))
