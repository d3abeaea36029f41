"""The training loop: random windows, AdamW, one cycle of the learning rate.

Everything that a run depends on is a function of its settings and of the checkpoint: windows come
from a generator of the run's own, the rate from the iteration. So on a CPU the same settings give
the same bits, and a resumed run the bits of a straight one.

Letters: B batch, T window, V vocabulary.
"""

import json
import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from train import checkpoint, data
from train.evaluate import bits_per_character, write_text
from train.model import Model, family, predict
from train.settings import Settings

VALID_LANES = 64
SAMPLE_CHARACTERS = 160
START_RATE, END_RATE = 0.04, 4e-6  # of the peak, at the ends of the cycle
MOMENTUM = (0.85, 0.95)  # at the peak, at the ends


class TrainingError(RuntimeError):
    """Training that can't go on, and what to change."""


class Run:
    """A model in training: parameters, optimiser, random numbers, and the folder they live in."""

    def __init__(self, folder: Path, config: dict[str, Any], text: data.Text) -> None:
        self.folder, self.config, self.iteration = folder, config, 0
        self.settings = Settings(**config["training"])
        torch.set_num_threads(self.settings.threads)
        torch.manual_seed(self.settings.seed)
        self.vocabulary = tuple(config["vocabulary"])
        ids = data.encode(text.text, self.vocabulary)
        self.splits = data.split(ids, self.settings.window)
        self.generator = torch.Generator().manual_seed(self.settings.seed)
        kind = family(config["family"])
        self.model = kind(kind.Config(**config["config"]), self.generator)
        self.optimizer = make_optimizer(self.model, self.settings)
        self.stop_requested = False

    @property
    def metrics_path(self) -> Path:
        """Where measurements go, a JSON line each."""
        return self.folder / "metrics.jsonl"

    def record(self, **values: Any) -> None:
        """Append one line to metrics.jsonl."""
        with self.metrics_path.open("a") as stream:
            stream.write(json.dumps({"iteration": self.iteration, **values}) + "\n")


def start_run(folder: Path, family_name: str, sizes: dict[str, Any], settings: Settings) -> Run:
    """A fresh run in a new or empty folder, or in place of one that left no checkpoint."""
    checkpoint.refuse_other_things(folder)
    settings = replace(settings, data=data.resolve_name(settings.data))
    text = data.load_text(settings.data)
    vocabulary = data.make_vocabulary(text.text)
    kind = family(family_name)
    model_config = kind.Config(vocabulary_size=len(vocabulary), **sizes)
    config = {
        "format": checkpoint.FORMAT,
        "family": family_name,
        "config": asdict(model_config),
        "vocabulary": vocabulary,
        "data": {"name": text.name, "sha256": text.sha256, "characters": len(text.text)},
        "training": asdict(settings),
    }
    run = Run(folder, json.loads(json.dumps(config)), text)
    folder.mkdir(parents=True, exist_ok=True)
    run.metrics_path.write_text("")
    return run


def resume_run(folder: Path, data_name: str | None = None) -> Run:
    """The run as its newest checkpoint left it, or as the checkpoint that `folder` is.

    `data_name` says where its text is now, if it isn't where it was.
    """
    place = checkpoint.find_checkpoint(folder)
    iteration, config, parameters, trainer = checkpoint.read_checkpoint(place)
    if data_name is not None:
        config["training"]["data"] = data.resolve_name(data_name)
    text = data.load_text(config["training"]["data"])
    if text.sha256 != config["data"]["sha256"]:
        raise data.DataError(
            f"{text.name}: found SHA-256 {text.sha256}, expected {config['data']['sha256']}; "
            "the run was started on another text"
        )
    run = Run(place.parent, config, text)
    run.iteration = iteration
    run.model.load_state_dict(parameters)
    _load_trainer(run, trainer)
    run.metrics_path.write_bytes((place / "metrics.jsonl").read_bytes())
    return run


def make_optimizer(model: Model, settings: Settings) -> torch.optim.AdamW:
    """AdamW, a group a parameter: rates as the family asks, decay on matrices only."""
    groups = [
        {
            "params": [parameter],
            "rate": settings.learning_rate * model.learning_rates.get(name, 1.0),
            "weight_decay": settings.weight_decay if parameter.ndim >= 2 else 0.0,
        }
        for name, parameter in model.named_parameters()
    ]
    return torch.optim.AdamW(groups, lr=0.0)


def one_cycle(progress: float, warm_up: float) -> tuple[float, float]:
    """Share of the peak rate, and AdamW's first momentum, at a progress in [0, 1].

    Half a cosine up from `START_RATE` while warming up, half a cosine down to `END_RATE`.
    """
    rising = progress < warm_up
    phase = progress / warm_up if rising else (progress - warm_up) / (1.0 - warm_up)
    height = 0.5 + (-0.5 if rising else 0.5) * math.cos(math.pi * phase)
    floor = START_RATE if rising else END_RATE
    return floor + (1.0 - floor) * height, MOMENTUM[1] + (MOMENTUM[0] - MOMENTUM[1]) * height


def train(run: Run, quiet: bool = False) -> bool:
    """Train to the last iteration, or until stopped; whether it got there.

    Ends with a validation, a test and a checkpoint. SIGINT or SIGTERM end the iteration, write a
    checkpoint and return.
    """
    if _finished(run):
        return True  # tested and saved when it got there
    settings, bar = run.settings, progress_bar(run, quiet)
    begun, started = run.iteration, time.monotonic()
    with bar, stop_on_signal(run):
        while run.iteration < settings.iterations and not run.stop_requested:
            loss, norm = train_iteration(run)
            bar.update()
            if run.iteration % 10 == 0:
                speed = (run.iteration - begun) / (time.monotonic() - started)  # iterations/s
                _report(run, bar, loss, norm, speed)
            if run.iteration % settings.valid_every == 0:
                _validate(run, bar)
            if run.iteration % settings.checkpoint_every == 0 and not _finished(run):
                save_run(run)
        if _finished(run):
            _test(run)
        save_run(run)
    return _finished(run)


def train_iteration(run: Run) -> tuple[float, float]:
    """One optimiser update on random windows; its loss (nats) and the gradient's norm."""
    settings = run.settings
    share, momentum = one_cycle(run.iteration / settings.iterations, settings.warm_up)
    for group in run.optimizer.param_groups:
        group["lr"], group["betas"] = group["rate"] * share, (momentum, 0.999)
    run.optimizer.zero_grad(set_to_none=True)
    loss = window_loss(run.model, sample_windows(run))
    loss.backward()  # type: ignore[no-untyped-call]
    norm = float(torch.nn.utils.clip_grad_norm_(run.model.parameters(), settings.clip))
    if not math.isfinite(norm):
        raise TrainingError(
            f"iteration {run.iteration}: the gradient's norm is {norm}; resume from the last "
            "checkpoint is pointless, start again with a smaller --learning-rate"
        )
    run.optimizer.step()
    run.iteration += 1
    return float(loss.detach()), norm


def sample_windows(run: Run) -> Tensor:
    """Random windows of the training text and their next character: (T + 1, B)."""
    ids, settings = run.splits.train, run.settings
    starts = torch.randint(len(ids) - settings.window, (settings.batch,), generator=run.generator)
    return ids[torch.arange(settings.window + 1).unsqueeze(-1) + starts]


def window_loss(model: Model, xs: Tensor) -> Tensor:
    """Mean negative log-likelihood (nats) of all xs (T + 1, B); the first from a fresh state."""
    _, logits = predict(model, model.weights(), model.init_state(xs.shape[1]), xs[:-1])
    return cross_entropy(logits.flatten(0, 1), xs.flatten())


def save_run(run: Run) -> Path:
    """Write a checkpoint of the run as it stands."""
    parameters = {name: p.detach() for name, p in run.model.named_parameters()}
    return checkpoint.write_checkpoint(
        run.folder, run.iteration, run.config, parameters, _trainer_state(run)
    )


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
    """Iterations done, with loss, BPC, characters per second and the time left."""
    return tqdm(
        total=run.settings.iterations,
        initial=run.iteration,
        unit="it",
        dynamic_ncols=True,
        disable=quiet,
        mininterval=0.5,
        bar_format="{n_fmt}/{total_fmt} |{bar:12}| {desc} [{elapsed}<{remaining}]",
    )


def _report(run: Run, bar: "tqdm[Any]", loss: float, norm: float, speed: float) -> None:
    rate = speed * run.settings.batch * (run.settings.window + 1)
    bpc = loss / math.log(2.0)
    bar.set_description_str(f"loss {loss:.3f}, BPC {bpc:.3f}, {rate:,.0f} characters/s", False)
    run.record(loss=loss, bpc=bpc, gradient_norm=norm, characters_per_s=round(rate))


def _validate(run: Run, bar: "tqdm[Any]") -> None:
    bpc = bits_per_character(run.model, run.splits.valid, VALID_LANES)
    written = write_text(run.model, SAMPLE_CHARACTERS, run.settings.seed + run.iteration)
    sample = "".join(run.vocabulary[i] for i in written)
    run.record(valid_bpc=bpc, sample=sample)
    if not bar.disable:
        news = f"iteration {run.iteration}: validation BPC {bpc:.3f}, sample:\n{sample}\n"
        bar.write(news, file=sys.stderr)


def _test(run: Run) -> None:
    valid = bits_per_character(run.model, run.splits.valid, VALID_LANES)
    test = bits_per_character(run.model, run.splits.test)
    run.record(valid_bpc=valid, test_bpc=test)


def _finished(run: Run) -> bool:
    return run.iteration >= run.settings.iterations


def _trainer_state(run: Run) -> checkpoint.Tensors:
    tensors = {"generator": run.generator.get_state(), "torch": torch.get_rng_state()}
    for name, parameter in run.model.named_parameters():
        for key, value in run.optimizer.state[parameter].items():
            tensors[f"{key}.{name}"] = value
    return tensors


def _load_trainer(run: Run, tensors: checkpoint.Tensors) -> None:
    run.generator.set_state(tensors["generator"])
    torch.set_rng_state(tensors["torch"])
    for name, parameter in run.model.named_parameters():
        keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}.{name}" in tensors]
        run.optimizer.state[parameter] = {key: tensors[f"{key}.{name}"] for key in keys}
