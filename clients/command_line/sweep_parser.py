"""The command line of `torsor sweep`."""

import argparse
from typing import Any

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
