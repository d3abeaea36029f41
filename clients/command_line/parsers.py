"""Command lines of `torsor trials`, `compare` and `sweep`, and the options of ablations."""

import argparse
from typing import Any

ABLATION = "JSON|FILE"
TRIALS_HELP = """\
how well a model of a task does on its held-out trials, or on yours,
without and with an ablation. FVU is the share of the targets' variance
that is not explained; S_ΔT is ΔFVU over the removed mass.

With --json the answer's own page, and at its top the scores by name:
replay_accuracy, fvu, delta_fvu and s_delta_t always, loss and others
where the task has them. They are the ablated model's where there is an
ablation, else the plain one's; null where the task has none.

A file of --trials holds T steps of N trials: inputs of the shape
(T, N, X), targets (T, N, Y), where X and Y are the model's sizes (torsor
models), both float32; mask (T, N), float32, 1 where a step counts, left
out: every step does. Inputs that are characters are int64 (T, N), and so
are targets that are classes; where a trial has one answer T is 1 there."""
COMPARE_HELP = """\
which characters may come next after a prompt, without and with each
ablation: entropy, KL(baseline || ablated) and total variation."""


def add_ablation(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """The options --ablation and --edit, of which one is given."""
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--ablation", metavar=ABLATION, help="edits of the model's weights")
    add_edit(group)


def add_edit(parser: Any) -> None:
    """The option --edit."""
    parser.add_argument(
        "--edit",
        metavar="JSON",
        action="append",
        help='one edit, {"target": ..., "op": ...}; repeatable, together they are one ablation',
    )


def add_trials(commands: Any, server: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The command `trials`, without its --model."""
    parser = _add(commands, "trials", "scores of a model of a task", TRIALS_HELP, server)
    add_ablation(parser)
    parser.add_argument(
        "--trials",
        metavar="FILE",
        help="safetensors, or JSON as in POST /v1/ablations/trials: inputs, targets and perhaps "
        "mask",
    )
    parser.add_argument(
        "--resamples",
        type=int,
        metavar="N",
        help="of the trials, for the intervals (1000); 0: none",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the resamples (0)")
    return parser


def add_compare(commands: Any, server: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The command `compare`, without its prompt, --model and --unknown."""
    parser = _add(commands, "compare", "what comes next after a prompt", COMPARE_HELP, server)
    parser.add_argument(
        "--ablation", metavar=ABLATION, action="append", help="one of several; repeatable"
    )
    add_edit(parser)
    parser.add_argument("--top", type=int, metavar="N", help="characters to name (10)")
    return parser


def _add(
    commands: Any, name: str, short: str, long: str, server: argparse.ArgumentParser
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        allow_abbrev=False,
        parents=[server],
        help=short,
        description=long,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


SWEEP_HELP = """\
one query for many ablations, as a job of the server: a grid file says
which (its format stands in clients/command_line/grid_file.py). Points are written to
DIR/NAME.jsonl, NAME.csv and NAME.svg when a sweep has ended. Ctrl-C ends
nothing but the watching; the same command goes on with it."""


def add_sweep(commands: Any, server: argparse.ArgumentParser) -> None:
    """The command `sweep`."""
    parser = commands.add_parser(
        "sweep",
        allow_abbrev=False,
        parents=[server],
        help="one query for many ablations",
        description=SWEEP_HELP,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("grid", metavar="GRID.toml", help="which models, texts and ablations")
    parser.add_argument("--out", metavar="DIR", required=True, help="made if it isn't there")
    parser.add_argument("--again", action="store_true", help="start anew what has been started")
    parser.add_argument("--cancel", action="store_true", help="end what DIR has started")
    parser.add_argument("--png", action="store_true", help="also DIR/NAME.png, by matplotlib")
