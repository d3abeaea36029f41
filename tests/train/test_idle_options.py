"""Options of `torsor train` that do nothing beside the others are refused, never dropped."""

import argparse
import functools
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from train.__main__ import main
from train.command_line import make_parser, refuse_idle
from train.layers.mixing import MIXINGS
from train.model import family, family_names
from train.models.lightning import BLOCKS
from train.presets import count_parameters
from train.run import save_run, start_run
from train.settings import Settings

ROOT = Path(__file__).parent.parent.parent


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that the command ends with, behind its name."""
    assert main(list(arguments)) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith("torsor train: ")
    return printed.err.removeprefix("torsor train: ").strip()


OSM = ("osm-rnn", "osm-former")
TRIALS = ("tanh-rnn", "--task", "flip-flop")
IDLE = [  # a command, the option that does nothing in it, and when it would
    ((*TRIALS, "--data", "/no/such/file"), "--data", "--task flip-flop", "--task text"),
    ((*TRIALS, "--symbols", "bytes"), "--symbols", "--task flip-flop", "--task text"),
    ((*TRIALS, "--window", "64"), "--window", "--task flip-flop", "--task text"),
    (("osm-rnn", "--rank", "7"), "--rank", "--mixing linear", "--mixing low-rank"),
    (("osm-former", "--rank", "32"), "--rank", "--mixing linear", "--mixing low-rank"),
    (("osm-rnn", "--mixing", "bch", "--rank", "7"), "--rank", "--mixing bch", "--mixing low-rank"),
    (
        ("lightning", "--block", "plain", "--feed-forward", "9"),
        *("--feed-forward", "--block plain", "--block residual"),
    ),
    (("tanh-rnn", "--copy-lags", "4"), "--copy-lags", "--task text", "--task copy"),
]


@pytest.mark.parametrize(("words", "option", "found", "expected"), IDLE)
def test_an_option_that_does_nothing_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    option: str,
    found: str,
    expected: str,
) -> None:
    told = complaint(capsys, *words, "--out", str(tmp_path / "run"))
    assert told == f"{option}: found it with {found}, expected {expected}; leave it out"
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_go_on_with_an_option_that_does_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    save_run(start_run(out, "osm-rnn", {"d": 3}, Settings(task="sine")))
    again = ("osm-rnn", "--out", str(out), "--resume")
    for option, value, found, expected in (
        ("--data", "shakespeare", "--task sine", "--task text"),
        ("--window", "64", "--task sine", "--task text"),
        ("--rank", "32", "--mixing linear", "--mixing low-rank"),
    ):
        told = complaint(capsys, *again, option, value)
        assert told == f"{option}: found it with {found}, expected {expected}; leave it out"


def count(name: str, sizes: dict[str, Any]) -> int | None:
    return count_parameters(name, {"input_size": 5, "output_size": 5, **sizes})


@pytest.mark.parametrize(
    ("name", "sizes", "more"),
    [
        *(
            (name, {"mixing": kind}, {"rank": 7})
            for name in ("osm-rnn", "osm-former")
            for kind in MIXINGS
        ),
        *(("lightning", {"block": block}, {"feed_forward": 9.0}) for block in BLOCKS),
    ],
)
def test_an_option_acts_where_its_metadata_say_so(
    name: str, sizes: dict[str, str], more: dict[str, float]
) -> None:
    kind: Any = family(name)
    known = {field.name: field.metadata for field in fields(kind.Config)}
    acts = all(sizes[known[key]["only"][0]] == known[key]["only"][1] for key in more)
    assert (count(name, {**sizes, **more}) != count(name, sizes)) == acts


@functools.cache
def parser_of_all() -> argparse.ArgumentParser:
    return make_parser(None)


def documented() -> list[str]:
    """The commands of the README, of the results and of the manual."""
    pages = [ROOT / name for name in ("README.md", "train/RESULTS.md", "train/__main__.py")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    names = "|".join((*family_names(), "FAMILY"))
    found = re.findall(rf"(?:torsor train |`)((?:{names}) [^`\n]*--[^`\n]+)", text)
    return sorted(set(found) - {"FAMILY --help"})


@pytest.mark.parametrize("line", documented())
def test_a_command_of_the_documents_has_no_option_that_does_nothing(line: str) -> None:
    words, parser = line.replace("TASK", "sine").replace("SEED", "0").split(), parser_of_all()
    for name in family_names() if words[0] == "FAMILY" else words[:1]:
        arguments = [name, *words[1:], "--out", "run"]
        if "characters" in family(name).takes:  # what FAMILY stands for
            refuse_idle(vars(parser.parse_args(arguments)))


def test_the_documents_have_commands() -> None:
    found = documented()
    assert len(found) >= 15 and any("--rank" in line for line in found)
