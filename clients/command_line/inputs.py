"""Inputs that a command line names: ablations, edits, prompts and files. ValueErrors say what else
was found."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from clients.options import Ablation

EDIT = '{"target": ..., "op": ...}'
ABLATION = f'{{"edits": [{EDIT}]}}'
NAME_A_FILE = "name a file that is there and can be read"


def read_ablation(source: str | None) -> Ablation | None:
    """The ablation in a JSON text or in a file of one; ValueError if there is none in it."""
    if source is None:
        return None
    is_text = source.lstrip()[:1] in ("{", "[")
    remedy = f"give JSON, {ABLATION}, or the name of its file"
    text = source if is_text else read_file(source, "--ablation: ", remedy)
    where = "" if is_text else f" in {source}"
    value = _object(text, "--ablation", where, ABLATION)
    if "op" in value and "edits" not in value:
        found = f"--ablation: found an edit{where}, expected {ABLATION}"
        raise ValueError(f'{found}; put it into "edits", or give it with --edit')
    return value


def read_edits(edits: list[str] | None) -> Ablation | None:
    """The one ablation that edits, each a JSON object, make together; None without edits."""
    if not edits:
        return None
    return {"edits": [_edit(edit) for edit in edits]}


def asked_ablation(args: Namespace) -> Ablation | None:
    """The ablation of --ablation or of --edit, of which a parser allows one."""
    return read_edits(args.edit) if args.ablation is None else read_ablation(args.ablation)


def read_prompt(prompt: str) -> str:
    """A prompt; `-` is stdin."""
    return read_stdin() if prompt == "-" else prompt


def read_text(path: str, label: str) -> str:
    """A UTF-8 text; `-` is stdin."""
    return read_stdin() if path == "-" else read_file(path, label)


def read_stdin() -> str:
    """All of stdin."""
    return _decode(sys.stdin.buffer.read(), "stdin")


def read_file(path: str, label: str, remedy: str = NAME_A_FILE) -> str:
    """A UTF-8 file; `label` begins the error's sentence, and the remedy ends it."""
    return _decode(read_bytes(path, label, remedy), path)  # bytes: newlines stay as they are


def read_bytes(path: str, label: str, remedy: str = NAME_A_FILE) -> bytes:
    """A file as it is; `label` begins the error's sentence, and the remedy ends it."""
    if not path:
        raise ValueError(f"{label}found an empty name; {remedy}")
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # the latter of a name with a zero in it
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{label}{path!r:.200}: {reason}; {remedy}") from None


def read_json(text: str, option: str, where: str = "") -> Any:
    """The value of a JSON text that an option gave; no key may stand twice in an object."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except _Twice as error:
        expected = "each key once; leave one out"
        raise ValueError(
            f"{option}: found the key {error}{where} twice, expected {expected}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{option}: found invalid JSON{where}: {error}") from None


class _Twice(Exception):
    """A key that an object has twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _Twice(f"{next(key for key in keys if keys.count(key) > 1)!r:.60}")
    return found


def _edit(text: str) -> dict[str, Any]:
    if text.lstrip()[:1] not in ("{", "["):
        found = f"--edit: found {text!r:.60}, expected JSON, {EDIT}"
        raise ValueError(f"{found}; a file goes with --ablation, and holds an ablation")
    value = _object(text, "--edit", "", EDIT)
    if "edits" in value:
        raise ValueError(f"--edit: found an ablation, expected {EDIT}; give it with --ablation")
    return value


def _object(text: str, option: str, where: str, expected: str) -> dict[str, Any]:
    value = read_json(text, option, where)
    if not isinstance(value, dict):
        raise ValueError(f"{option}: found {value!r:.60}, expected an object: {expected}")
    return value


def _decode(content: bytes, source: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source}: found bytes that are not UTF-8 ({error.reason} at {error.start}), "
            "expected a UTF-8 text: convert it first"
        ) from None
