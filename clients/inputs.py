"""What a command line names, read: ablations, edits, prompts and files. ValueErrors say what else
was found."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from clients.options import Ablation


def read_ablation(source: str | None) -> Ablation | None:
    """The ablation in a JSON text or in a file of one; ValueError if there is none in it."""
    if source is None:
        return None
    is_text = source.lstrip()[:1] in ("{", "[")
    text = source if is_text else read_file(source, "--ablation: expected JSON or its file, ")
    where = "" if is_text else f" in {source}"
    return _object(text, "--ablation", where, '{"edits": [{"target": ..., "op": ...}]}')


def read_edits(edits: list[str] | None) -> Ablation | None:
    """The one ablation that edits, each a JSON object, make together; None without edits."""
    if not edits:
        return None
    expected = '{"target": ..., "op": ...}'
    return {"edits": [_object(edit, "--edit", "", expected) for edit in edits]}


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


def read_file(path: str, label: str) -> str:
    """A UTF-8 file; `label` begins the error's sentence."""
    return _decode(read_bytes(path, label), path)  # bytes: newlines stay as they are


def read_bytes(path: str, label: str) -> bytes:
    """A file as it is; `label` begins the error's sentence."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{label}found {path!r:.60}: {error.strerror}") from None


def _object(text: str, option: str, where: str, expected: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{option}: found invalid JSON{where}: {error}") from None
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
