"""A run: a model in training, its task, its optimiser, and the folder they live in.

Everything that a run depends on is a function of its settings and of the checkpoint: trials come
from a generator of the run's own, the rate from the iteration. So on a CPU the same settings give
the same bits, and a resumed run the bits of a straight one.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from train import checkpoint
from train.data import text as data
from train.data.files import DataError
from train.distributed import World, join_world
from train.model import Model, family
from train.report.tensorboard import EventLog
from train.run_folder import refuse_other_things, remove_byproducts
from train.schedule import make_optimizer
from train.settings import Settings
from train.tasks.task import Task, make_task


class Run:
    """A model in training: parameters, optimiser, random numbers, and the folder they live in."""

    def __init__(self, folder: Path, config: dict[str, Any], task: Task) -> None:
        self.folder, self.config, self.task, self.iteration = folder, config, task, 0
        self.settings = Settings(**config["training"])
        self.world: World = join_world(self.settings)
        torch.set_num_threads(self.settings.threads)
        torch.manual_seed(self.settings.seed)
        self.generator = torch.Generator().manual_seed(self.settings.seed)
        kind = family(config["family"])
        made: Model = kind(kind.Config(**config["config"]), self.generator)
        self.model: Model = made.to(self.world.device)
        self.optimizer = make_optimizer(self.model, self.settings)
        self.stop_requested = False
        self.events = EventLog(folder) if self.settings.tensorboard == "on" else None

    @property
    def metrics_path(self) -> Path:
        """Where measurements go, a JSON line each."""
        return self.folder / "metrics.jsonl"

    @property
    def finished(self) -> bool:
        """Whether the last iteration is done."""
        return self.iteration >= self.settings.iterations

    def record(self, **values: Any) -> None:
        """Append one line to metrics.jsonl; of several processes the first writes."""
        if self.world.rank > 0:
            return
        with self.metrics_path.open("a") as stream:
            stream.write(json.dumps({"iteration": self.iteration, **values}) + "\n")
        if self.events:
            self.events.write(self.iteration, values)


def start_run(
    folder: Path,
    family_name: str,
    sizes: dict[str, Any],
    settings: Settings,
    task_options: dict[str, Any] | None = None,
) -> Run:
    """A fresh run in a new or empty folder, or in place of one that left no checkpoint."""
    refuse_other_things(folder)
    settings = replace(settings, data=data.resolve_name(settings.data))
    kind, task = family(family_name), make_task(settings, task_options or {})
    refuse_mismatch(family_name, task)
    if settings.weight_dropout and not kind.dropped:
        raise ValueError(
            f"weight_dropout: found {settings.weight_dropout}, expected 0, since {family_name} "
            "names no weights that may be left out"
        )
    model_config = kind.Config(input_size=task.input_size, output_size=task.output_size, **sizes)
    config = {
        "format": checkpoint.FORMAT,
        "family": family_name,
        "config": asdict(model_config),
        "task": asdict(task.config),
        "vocabulary": task.vocabulary,
        "data": task.source._asdict(),
        "training": asdict(settings),
    }
    run = Run(folder, json.loads(json.dumps(config)), task)
    if run.world.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        run.metrics_path.write_text("")
        remove_byproducts(folder)
    run.world.wait()
    return run


def refuse_mismatch(family_name: str, task: Task) -> None:
    """Raise `ValueError` for a task whose inputs a family can't take."""
    if task.takes not in (kind := family(family_name)).takes:
        raise ValueError(
            f"task: found {task.name!r}, which gives {task.takes}, expected one that gives "
            f"{' or '.join(kind.takes)}, as {family_name} takes"
        )


def resume_run(folder: Path, data_name: str | None = None) -> Run:
    """The run as its newest checkpoint left it, or as the checkpoint that `folder` is.

    `data_name` says where its text is now, if it isn't where it was.
    """
    place = checkpoint.find_checkpoint(folder)
    iteration, config, parameters, trainer = checkpoint.read_checkpoint(place)
    if data_name is not None:
        config["training"]["data"] = data.resolve_name(data_name)
    task = make_task(Settings(**config["training"]), config["task"])
    if task.source.sha256 != config["data"]["sha256"]:
        raise DataError(
            f"{task.source.name}: found SHA-256 {task.source.sha256}, expected "
            f"{config['data']['sha256']}; the run was started on other data"
        )
    run = Run(place.parent, config, task)
    run.iteration = iteration
    run.model.load_state_dict(parameters)
    _load_trainer(run, trainer)
    if run.world.rank == 0:
        run.metrics_path.write_bytes((place / "metrics.jsonl").read_bytes())
    return run


def save_run(run: Run) -> Path | None:
    """Write a checkpoint of the run as it stands; of several processes the first does."""
    if run.world.rank > 0:
        return None
    parameters = {name: p.detach().cpu() for name, p in run.model.named_parameters()}
    return checkpoint.write_checkpoint(
        run.folder, run.iteration, run.config, parameters, _trainer_state(run)
    )


def _trainer_state(run: Run) -> checkpoint.Tensors:
    tensors = {"generator": run.generator.get_state(), "torch": torch.get_rng_state()}
    for name, parameter in run.model.named_parameters():
        for key, value in run.optimizer.state.get(parameter, {}).items():
            tensors[f"{key}.{name}"] = value.cpu()
    return tensors


def _load_trainer(run: Run, tensors: checkpoint.Tensors) -> None:
    run.generator.set_state(tensors["generator"])
    torch.set_rng_state(tensors["torch"])
    for name, parameter in run.model.named_parameters():
        keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}.{name}" in tensors]
        if keys:
            moments = {key: tensors[f"{key}.{name}"].to(parameter.device) for key in keys}
            moments["step"] = tensors[f"step.{name}"]  # AdamW counts on the CPU
            run.optimizer.state[parameter] = moments
