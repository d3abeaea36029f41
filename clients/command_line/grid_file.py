"""Grid files: what `torsor sweep` is to run, as TOML.

[[sweep]]
name = "schur"                          # of the files that are written
model = "tanh-rnn-shakespeare"          # or models = [...], one sweep each
query = "score"                         # or "trials": the bundle's own
text_file = "text.txt"                  # beside this file, or "$TORSOR_DATA_DIR/..."
start = 0                               # first character of it
characters = 10000                      # how many, left out: all
controls = 3                            # random ablations of the same mass beside each point
seed = 0                                # of the first of them

[sweep.axes]                            # all combinations, the first axis slowest
alpha = [0.85, 0.9]
zero = [["CC"], ["C→R"]]

[[sweep.edits]]                         # one ablation, with $NAME for the value of an axis
target = "recurrent"
op = "schur"
alpha = "$alpha"
zero = "$zero"

[[sweep.ablations]]                     # beside a grid or instead of it: single ablations
name = "none"
edits = []
"""

import difflib
import hashlib
import json
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.command_line.inputs import read_file
from clients.errors import ServerError, UnfitRequest
from clients.options import SweepOptions, plain_json, sweep_body
from serve.wire.preview import shown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SENT = ("query", "unknown", "controls", "seed", "ablations")  # as the server reads them
OURS = ("name", "model", "models", "text_file", "start", "characters", "axes", "edits")

Table = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A sweep that a grid file asks for."""

    name: str
    options: SweepOptions
    note: str = ""  # what is to be said about its text

    @property
    def digest(self) -> str:
        """SHA-256 of what is asked, so that another question is told from the same one."""
        text = json.dumps(sweep_body(self.options), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def read_sweep_file(path: str) -> tuple[Planned, ...]:
    """The sweeps of a grid file; `ValueError` says what is wrong in it."""
    try:
        page = tomllib.loads(read_file(path, "GRID: "))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: found no TOML ({error})") from None
    tables = page.pop("sweep", None)
    if page or not isinstance(tables, list) or not tables:
        found = f"{next(iter(page))!r:.60}" if page else "none"
        raise ValueError(f"{path}: found {found}, expected [[sweep]] tables and nothing else")
    planned = list[Planned]()
    for index, table in enumerate(tables):
        planned += _plan(table, Path(path).parent, f"{path}: sweep[{index}]")
    names = [sweep.name for sweep in planned]
    if twice := [name for name in names if names.count(name) > 1]:
        expected = "each name once; give the sweeps names of their own"
        raise ValueError(f"{path}: found the name {twice[0]!r} twice, expected {expected}")
    return tuple(planned)


def in_file(message: str) -> str:
    """What the rules of requests say of a sweep, in the words of a grid file."""
    message = re.sub(r"\bgrid\.(axes|edits)\b", r"\1", message)
    return re.sub(r"^text: ", "text_file: ", message)


def _plan(given: Any, folder: Path, where: str) -> list[Planned]:
    table = _table(given, where)
    if "model" in table and "models" in table:
        raise ValueError(f"{where}.models: found beside model, expected one of them")
    models = table.get("models", [table.get("model")])
    if not isinstance(models, list) or not models:
        raise ValueError(f"{where}.models: found {shown(models)}, expected a list of model ids")
    if not any(table.get(key) for key in ("edits", "axes", "ablations")):
        expected = "some; add [[sweep.edits]], of which axes make many, or [[sweep.ablations]]"
        raise ValueError(f"{where}.edits: found neither edits nor ablations, expected {expected}")
    options: Table = {key: table[key] for key in SENT if key in table}
    if "edits" in table or "axes" in table:
        options["grid"] = {"edits": table.get("edits", []), "axes": table.get("axes", {})}
    note = ""
    if "text_file" in table:
        options["text"], note = _text(table, folder, where)
    return [_planned(table, options, model, where, note) for model in models]


def _table(given: Any, where: str) -> Table:
    try:
        table = plain_json(given, where)
    except UnfitRequest as error:
        raise ValueError(str(error)) from None
    if not isinstance(table, dict):
        raise ValueError(f"{where}: found {shown(table)}, expected a table: [[sweep]]")
    for key in table:
        if key not in SENT + OURS:
            near = difflib.get_close_matches(key, SENT + OURS, 1)
            remedy = f"; did you mean {near[0]}?" if near else ""
            remedy = "; name a file of it: text_file" if key == "text" else remedy
            expected = f"none but {', '.join(OURS + SENT)}"
            raise ValueError(f"{where}.{key}: found this key, expected {expected}{remedy}")
    return table


def _planned(table: Table, options: Table, model: Any, where: str, note: str) -> Planned:
    name = table.get("name", "sweep")
    if "models" in table:
        name = f"{name}-{model}"
    if not isinstance(name, str) or not NAME.fullmatch(name):
        expected = "1 to 100 letters, digits, dots, _ or -; it names files"
        raise ValueError(f"{where}.name: found {shown(name)}, expected {expected}")
    asked = SweepOptions(model=model, **options)  # type: ignore[typeddict-item]
    planned = Planned(name=name, options=asked, note=note)
    try:
        sweep_body(planned.options)
    except ServerError as error:
        raise ValueError(f"{where}.{in_file(error.message)}") from None
    return planned


def _text(table: Table, folder: Path, where: str) -> tuple[str, str]:
    """The text to score, and what is to be noted about it."""
    named = table["text_file"]
    if not isinstance(named, str):
        raise ValueError(f"{where}.text_file: found {shown(named)}, expected a path")
    path = os.path.expanduser(os.path.expandvars(named))
    if missing := re.search(r"\$\{?(\w+)", path):
        expected = "a path, or an environment variable that is set"
        raise ValueError(f"{where}.text_file: found ${missing[1]} unset, expected {expected}")
    text = read_file(str(folder / path), f"{where}.text_file: ")
    if not text:
        raise ValueError(f"{where}.text_file: found no character in {named}, expected a text")
    start, count = table.get("start", 0), table.get("characters")
    for key, value in (("start", start), ("characters", count)):
        least = 0 if key == "start" else 1
        if value is not None and (type(value) is not int or value < least):
            expected = f"a whole number, {least} or more"
            raise ValueError(f"{where}.{key}: found {shown(value)}, expected {expected}")
    if start >= len(text):
        raise ValueError(f"{where}.start: found {start}, expected fewer than {len(text)}, its end")
    if count is None:
        return text[start:], ""
    part = text[start : start + count]
    clipped = f"{where}.characters: found {count}, and {len(part)} up to the end of the text"
    return part, f"{clipped}; these are scored" if len(part) < count else ""
