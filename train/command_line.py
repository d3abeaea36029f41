"""The command line of `torsor train`: a sub-command a family, options from the dataclasses.

Settings and sizes are options by their name; a task's own options carry the task's name, as in
`--copy-lags`. An option that does nothing beside the others is refused.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from train.checkpoint import find_checkpoint, read_checkpoint
from train.model import Model, family, family_names
from train.presets import BUDGETS, fit_sizes
from train.run import Run, refuse_mismatch, resume_run, start_run
from train.settings import Settings
from train.tasks.task import make_task, task_kind, task_names

Options = dict[str, Any]


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """All families, each with the options of the run, of its sizes and of every task."""
    parser = argparse.ArgumentParser(
        prog="torsor train", description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    families = parser.add_subparsers(dest="family", required=True, metavar="FAMILY")
    for name in family_names():
        # What isn't given stays out of the namespace, so --resume can tell it from a default.
        kind, told = family(name), (sys.modules[family(name).__module__].__doc__ or "").split("\n")
        command = families.add_parser(
            name,
            help=told[0],
            usage=f"torsor train {name} --out RUN [options]",
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        _add_places(command)
        own = {"learning_rate": _tell_rates(kind)}
        _add_options(command.add_argument_group("training"), "", Settings, own)
        sizes = command.add_argument_group("sizes")
        budget = f"at most so many parameters, by --{kind.grows}"
        sizes.add_argument("--preset", choices=BUDGETS, help=budget)
        _add_options(sizes, "", kind.Config, {})
        for task in task_names():
            if dataclasses.fields(task_kind(task).Config) and task_kind(task).takes in kind.takes:
                group = command.add_argument_group(f"with --task {task}")
                _add_options(group, f"{task}-", task_kind(task).Config, {})
    return parser


def _tell_rates(kind: type[Model]) -> str:
    *most, last = (name for name in task_names() if task_kind(name).long)
    rest = f"; for {', '.join(most)} and {last}: {kind.long_learning_rate}"
    return f"{kind.learning_rate}" + (rest if kind.long_learning_rate else "")


def _add_places(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=Path, required=True, help="folder of the run")
    command.add_argument("--resume", action="store_true", default=False, help="go on")
    command.add_argument("--quiet", action="store_true", default=False, help="no progress")
    command.add_argument("--seeds", help="several runs, one a seed, as 0,1,2; in OUT/seed-0 and on")


def _add_options(group: Any, prefix: str, kind: Any, own: Options) -> None:
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING:
            continue  # sizes that follow from the task
        more = {"nargs": "+", "action": OneALine} if "several" in field.metadata else {}
        choices = tuple(task_names()) if (kind, field.name) == (Settings, "task") else None
        group.add_argument(
            f"--{prefix}{field.name.replace('_', '-')}",
            type=field.type,
            choices=field.metadata.get("choices", choices),
            help=f"{field.metadata['help']} (default: {own.get(field.name, field.default)})",
            **more,
        )


class OneALine(argparse.Action):
    """All words of an option that may stand several times, one a line in the order given."""

    def __call__(self, parser: Any, found: Any, words: Any, option: str | None = None) -> None:
        """Add the words to those that came before."""
        before = [getattr(found, self.dest)] if hasattr(found, self.dest) else []
        setattr(found, self.dest, "\n".join([*before, *words]))


def seeds_of(options: Options) -> Iterator[Options]:
    """The options of every run: one, or one a seed in a folder of its own."""
    if "seeds" not in options:
        yield options
        return
    if "seed" in options:
        raise ValueError("seeds: found --seed beside it, expected one of the two")
    for seed in read_seeds(options["seeds"]):
        out = options["out"] / f"seed-{seed}"
        resume = options["resume"] and any(out.glob("checkpoint-*"))
        yield {**options, "seed": seed, "out": out, "resume": resume}


def read_seeds(text: str) -> list[int]:
    """`0,1,2` as numbers; `ValueError` for anything else, or a seed twice."""
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"seeds: found {text!r}, expected numbers as 0,1,2") from None
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds: found {text!r}, expected each once")
    return seeds


def open_run(options: Options) -> Run:
    """The run that the command asks for, started or resumed."""
    kind = family(options["family"])
    sizes = {f.name for f in dataclasses.fields(kind.Config)} & set(options)
    settings = {f.name for f in dataclasses.fields(Settings)} & set(options)
    if "preset" in options and kind.grows in sizes:
        raise ValueError(f"preset: found --{kind.grows} beside it, expected one of the two")
    if options["resume"]:
        _refuse_changes(options, sizes | settings - {"data"})
        return resume_run(options["out"], options.get("data"))
    chosen = {name: options[name] for name in settings}
    chosen.setdefault("learning_rate", default_rate(kind, chosen.get("task", "text")))
    refuse_idle(options)
    picked, task_options = Settings(**chosen), _task_options(options, chosen.get("task", "text"))
    given_sizes = {name: options[name] for name in sizes}
    if "preset" in options:
        given_sizes = _preset_sizes(options, given_sizes, picked, task_options)
    return start_run(options["out"], options["family"], given_sizes, picked, task_options)


def default_rate(kind: type[Model], task: str) -> float:
    """The peak of the learning rate that suits a family on a task."""
    return (task_kind(task).long and kind.long_learning_rate) or kind.learning_rate


def refuse_idle(options: Options, stored: Options | None = None) -> None:
    """Raise `ValueError` for an option that does nothing beside the others.

    A field's metadata say with which value of which other one it acts: `only`. Others that aren't
    given are as `stored`, or else as by default.
    """
    for kind in (Settings, family(options["family"]).Config):
        fields = dataclasses.fields(kind)
        values: Options = {field.name: field.default for field in fields}
        values |= (stored or {}) | options
        for field in fields:
            other, expected = field.metadata.get("only", ("", None))
            if other and field.name in options and values[other] != expected:
                raise _idle(field.name, other, values[other], expected)


def refuse_unlike(first: Run, run: Run) -> None:
    """Raise `ValueError` unless the two differ in their seed alone."""
    for part in ("training", "config", "task"):
        for key, expected in first.config[part].items():
            if key != "seed" and (found := run.config[part].get(key)) != expected:
                raise ValueError(
                    f"{key}: found {found} in {run.folder}, expected {expected} as in "
                    f"{first.folder}; give the options that it was started with"
                )


def _preset_sizes(
    options: Options, sizes: Options, settings: Settings, task_options: Options
) -> Options:
    task = make_task(settings, task_options)
    refuse_mismatch(options["family"], task)
    ends = {"input_size": task.input_size, "output_size": task.output_size}
    fitted = fit_sizes(options["family"], {**sizes, **ends}, BUDGETS[options["preset"]])
    return {name: value for name, value in fitted.items() if name not in ends}


def _task_options(options: Options, task: str) -> Options:
    """The options that carry the task's name; those of another task are a mistake."""
    found = Options()
    for name in task_names():
        for field in dataclasses.fields(task_kind(name).Config):
            key = f"{name}-{field.name}".replace("-", "_")
            if key in options and name != task:
                raise _idle(key, "task", task, name)
            if key in options:
                found[field.name] = options[key]
    return found


def _idle(name: str, other: str, found: str, expected: str) -> ValueError:
    option, other = (f"--{key.replace('_', '-')}" for key in (name, other))
    return ValueError(
        f"{option}: found it with {other} {found}, expected {other} {expected}; leave it out"
    )


def _refuse_changes(options: Options, names: set[str]) -> None:
    _, config, _, _ = read_checkpoint(find_checkpoint(options["out"]))
    if options["family"] != (family_name := config["family"]):
        raise ValueError(
            f"{options['out']}: found a run of {family_name}, expected "
            f"{options['family']}; go on with: "
            f"torsor train {family_name} --out {options['out']} --resume"
        )
    stored = {**config["config"], **config["training"]}
    given = {name: options[name] for name in names}
    task = config["training"]["task"]
    stored |= {f"{task}_{key}".replace("-", "_"): value for key, value in config["task"].items()}
    given |= {
        f"{task}_{key}".replace("-", "_"): value
        for key, value in _task_options(options, task).items()
    }
    if "preset" in options:
        grows = family(family_name).grows
        given[grows] = fit_sizes(family_name, config["config"], BUDGETS[options["preset"]])[grows]
    for name in sorted(given):
        if given[name] != stored[name]:
            raise ValueError(
                f"--{name.replace('_', '-')}: found {given[name]}, but the run in "
                f"{options['out']} was started with {stored[name]}; leave it out, or start anew "
                "in another --out"
            )
    refuse_idle(options, stored)
