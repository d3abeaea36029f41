"""Train a model: `torsor train FAMILY --data TEXT --out RUN`.

    torsor train osm-rnn --data shakespeare --out runs/osm
    torsor train osm-rnn --out runs/osm --resume

Writes checkpoints and metrics.jsonl into RUN. Ctrl-C ends with a checkpoint; --resume goes on from
the newest one and reaches the bits of an uninterrupted run.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from train.checkpoint import CheckpointError, find_checkpoint, read_checkpoint
from train.data import DataError
from train.loop import Run, TrainingError, resume_run, start_run, train
from train.model import family, family_names
from train.settings import Settings

INTERRUPTED = 130  # exit code of a run that was stopped before its last iteration


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    options = vars(make_parser().parse_args(arguments))
    try:
        run = _open_run(options)
        _say(run, options["quiet"])
        return _finish(run, train(run, options["quiet"]))
    except (DataError, CheckpointError, TrainingError, ValueError, OSError) as error:
        return _complain(str(error))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        return _complain(
            "memory: found too little for these sizes; make the model or --batch smaller"
        )
    except KeyboardInterrupt:  # before or after the loop, which stops by itself
        return INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    """The command line: one sub-command a family, options from its config and the settings."""
    parser = argparse.ArgumentParser(
        prog="torsor train", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    families = parser.add_subparsers(dest="family", required=True, metavar="FAMILY")
    for name in family_names():
        # What isn't given stays out of the namespace, so --resume can tell it from a default.
        kind, told = family(name), (sys.modules[family(name).__module__].__doc__ or "").split("\n")
        command = families.add_parser(
            name, help=told[0], allow_abbrev=False, argument_default=argparse.SUPPRESS
        )
        command.add_argument("--out", type=Path, required=True, help="folder of the run")
        command.add_argument("--resume", action="store_true", default=False, help="go on")
        command.add_argument("--quiet", action="store_true", default=False, help="no progress")
        own = {"learning_rate": kind.learning_rate}
        _add_options(command.add_argument_group("training"), Settings, own)
        _add_options(command.add_argument_group("sizes"), kind.Config, {})
    return parser


def _add_options(group: Any, kind: Any, own: dict[str, Any]) -> None:
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING:
            continue  # the vocabulary's size follows from the text
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=field.type,
            choices=field.metadata.get("choices"),
            help=f"{field.metadata['help']} (default: {own.get(field.name, field.default)})",
        )


def _open_run(options: dict[str, Any]) -> Run:
    kind = family(options["family"])
    sizes = {f.name for f in dataclasses.fields(kind.Config)} & set(options)
    settings = {f.name for f in dataclasses.fields(Settings)} & set(options)
    if options["resume"]:
        _refuse_changes(options, sizes | settings - {"data"})
        return resume_run(options["out"], options.get("data"))
    chosen = {name: options[name] for name in settings}
    chosen.setdefault("learning_rate", kind.learning_rate)
    given_sizes = {name: options[name] for name in sizes}
    return start_run(options["out"], options["family"], given_sizes, Settings(**chosen))


def _refuse_changes(options: dict[str, Any], names: set[str]) -> None:
    _, config, _, _ = read_checkpoint(find_checkpoint(options["out"]))
    if options["family"] != (family_name := config["family"]):
        raise ValueError(
            f"{options['out']}: found a run of {family_name}, expected "
            f"{options['family']}; go on with: "
            f"torsor train {family_name} --out {options['out']} --resume"
        )
    stored = {**config["config"], **config["training"]}
    for name in sorted(names):
        if options[name] != stored[name]:
            raise ValueError(
                f"--{name.replace('_', '-')}: found {options[name]}, but the run in "
                f"{options['out']} was started with {stored[name]}; leave it out, or start anew "
                "in another --out"
            )


def _complain(problem: str) -> int:
    print(f"torsor train: {problem}", file=sys.stderr)
    return 1


def _say(run: Run, quiet: bool) -> None:
    sizes = ", ".join(f"{key} {value}" for key, value in run.config["config"].items())
    if not quiet:
        print(
            f"{run.config['family']}: {run.model.num_parameters():,} parameters ({sizes}), "
            f"{len(run.splits.train):,} characters of {run.config['data']['name']} to train on",
            file=sys.stderr,
        )


def _finish(run: Run, done: bool) -> int:
    if not done:
        print(
            f"stopped at iteration {run.iteration}; go on with: "
            f"torsor train {run.config['family']} --out {run.folder} --resume",
            file=sys.stderr,
        )
        return INTERRUPTED
    lines = run.metrics_path.read_text().splitlines()
    last = json.loads(lines[-1]) if lines else {}
    if not last.keys() >= {"valid_bpc", "test_bpc"}:
        raise CheckpointError(run.metrics_path, "the last line: expected valid_bpc and test_bpc")
    print(
        f"{run.folder}: iteration {run.iteration}, validation BPC {last['valid_bpc']:.3f}, "
        f"test BPC {last['test_bpc']:.3f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
