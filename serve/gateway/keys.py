"""API keys: who may ask, and how much. `torsor key NAME --file keys.toml` makes one.

    [[keys]]
    name = "ci"                   # what the log calls it
    sha256 = "9f86d081..."        # of the key; the key itself stands nowhere
    requests_per_minute = 600     # left out: any number
    max_concurrent = 4            # requests at once, left out: any number
    manage = true                 # may load and unload models, left out: it may not

A key is 256 random bits, so nobody finds it from its hash by trying, and the plain SHA-256 is
enough: salts and slow hashes are for passwords, which people choose, and would cost every request.
The file is read when the server starts. It is written whole, with mode 0600.
"""

import argparse
import hashlib
import os
import re
import secrets
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

KEY_BYTES = 32
KEY_PREFIX = "torsor-"  # so that scanners for secrets can know one
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One entry of the file."""

    name: str
    sha256: str = field(repr=False)
    requests_per_minute: int | None = None
    max_concurrent: int | None = None
    manage: bool = False

    def page(self) -> dict[str, Any]:
        """What its holder may see of it."""
        limits = {n: getattr(self, n) for n in ("requests_per_minute", "max_concurrent")}
        return {"name": self.name, **limits, "manage": self.manage}


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys in a file; `ValueError` says in one line what is wrong in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ValueError(f"keys: can't read {path}: {reason}") from None
    keys = parse_keys(text, str(path))
    if not keys:
        raise ValueError(f"{path}: found no keys, expected some; make one: torsor key NAME")
    return keys


def parse_keys(text: str, source: str) -> tuple[Key, ...]:
    """The keys in a TOML text; `ValueError` never quotes a value, which could be a secret."""
    try:
        page = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at .*\)$", str(error))
        raise ValueError(f"{source}: found no TOML {where[0] if where else ''}".rstrip()) from None
    entries = page.pop("keys", [])
    if page or not isinstance(entries, list):
        raise ValueError(f"{source}: expected [[keys]] tables and nothing else")
    keys = tuple(_key(entry, f"{source}: keys[{i}]") for i, entry in enumerate(entries))
    for what in ("name", "sha256"):
        if len({getattr(key, what) for key in keys}) < len(keys):
            raise ValueError(f"{source}: found a {what} twice, expected each once; choose another")
    return keys


def _key(entry: Any, where: str) -> Key:
    names = [f.name for f in fields(Key)]
    if not isinstance(entry, dict) or not {*names[:2]} <= set(entry) <= {*names}:
        expected = f"name and sha256, and if needed {', '.join(names[2:])}"
        raise ValueError(f"{where}: expected a table of {expected}")
    if not isinstance(entry["name"], str) or not NAME.fullmatch(entry["name"]):
        raise ValueError(f"{where}.name: expected 1 to 64 letters, digits, dots, _ or -")
    if not isinstance(entry["sha256"], str) or not SHA256.fullmatch(entry["sha256"]):
        raise ValueError(f"{where}.sha256: expected 64 hexadecimal digits, in small letters")
    for name in ("requests_per_minute", "max_concurrent"):
        value = entry.get(name, 1)
        if type(value) is not int or not 1 <= value <= MAX_LIMIT:
            raise ValueError(f"{where}.{name}: expected a whole number, 1 to {MAX_LIMIT}")
    if type(entry.get("manage", False)) is not bool:
        raise ValueError(f"{where}.manage: expected true or false")
    return Key(**entry)


def hash_key(key: str) -> str:
    """What the file keeps of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def add_key(path: Path, name: str, manage: bool = False, **limits: int | None) -> str:
    """Make a key, add its hash to the file, and return the key, which stands nowhere else.

    Raises `ValueError` for a file that is broken or has the name already, `OSError` where it can't
    be written.
    """
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    path = path.resolve()  # a link keeps pointing at the file
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    given = {what: limit for what, limit in limits.items() if limit is not None}
    rows = [f'name = "{name}"', f'sha256 = "{hash_key(key)}"']
    rows += [f"{what} = {limit}" for what, limit in given.items()]
    rows += ["manage = true"] if manage else []
    gap = "" if not before or before.endswith("\n\n") else "\n" * (1 + (before[-1] != "\n"))
    parse_keys(before, str(path))
    _key({"name": name, "sha256": hash_key(key), **given}, "the new key")
    text = before + gap + "\n".join(["[[keys]]", *rows]) + "\n"
    parse_keys(text, str(path))
    _write_whole(path, text)
    return key


def _write_whole(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def main(arguments: list[str] | None = None) -> int:
    """Make a key and print it, once."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="torsor key",
        description="Make an API key for `torsor serve --keys FILE`. It is printed once; the file "
        "keeps its hash. A running server reads the file when it starts again.",
    )
    parser.add_argument("name", help="what the server's log calls the key")
    parser.add_argument("--file", type=Path, required=True, help="made if it isn't there")
    parser.add_argument("--requests-per-minute", type=int, metavar="N", help="(any number)")
    parser.add_argument("--max-concurrent", type=int, metavar="N", help="requests at once (any)")
    parser.add_argument("--manage", action="store_true", help="it may load and unload models")
    options = parser.parse_args(arguments)
    limits = {what: getattr(options, what) for what in ("requests_per_minute", "max_concurrent")}
    try:
        key = add_key(options.file, options.name, options.manage, **limits)
    except (ValueError, OSError) as error:
        print(f"torsor key: {error}", file=sys.stderr)
        return 1
    print(key)
    print(f"Shown this once. {options.file} holds its hash.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
