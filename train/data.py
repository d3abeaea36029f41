"""Text to train on, its vocabulary and its splits.

A text is named (`shakespeare`, `python-docs`) or is the path of any UTF-8 file. Named texts that
Python doesn't carry are looked for in $TORSOR_DATA_DIR, then in the cache, then at their public
address, and the SHA-256 of what comes is checked.
"""

import hashlib
import http.client
import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

SHAKESPEARE = "tinyshakespeare/input.txt"
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/" + SHAKESPEARE
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
NAMED = ("shakespeare", "python-docs")
DOWNLOAD_TIMEOUT_S = 20.0
TRAIN_SHARE, VALID_SHARE = 0.90, 0.05  # by characters, in order; the rest is for testing


class DataError(ValueError):
    """Text that can't be had or read: what was found and what to do."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text and where it came from."""

    name: str
    text: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Splits:
    """Character indices (characters), int64: the text cut in order."""

    train: Tensor
    valid: Tensor
    test: Tensor


def load_text(name: str) -> Text:
    """The text called `name`, or the UTF-8 file at that path.

    Raises `DataError` if there is no such text, it is empty, or bytes of it are not UTF-8.
    """
    if name == "shakespeare":
        return _decode(name, load_shakespeare(allow_download=True))
    if name == "python-docs":
        return _decode(name, python_docs().encode())
    path = Path(name)
    if not path.is_file():
        raise DataError(
            f"data: found {name!r}, expected shakespeare, python-docs or the path of a UTF-8 file"
        )
    return _decode(path.name, path.read_bytes())


def resolve_name(name: str) -> str:
    """The name of a text from any folder: the whole path if it is a file's."""
    return name if name in NAMED or not Path(name).is_file() else str(Path(name).resolve())


def load_shakespeare(allow_download: bool) -> bytes:
    """Tiny Shakespeare from $TORSOR_DATA_DIR, the cache or its public address, checked."""
    for path in (path for path in shakespeare_places() if path.is_file()):
        return _checked(path.read_bytes(), str(path))
    if not allow_download:
        raise DataError(_missing("and downloading is switched off"))
    try:
        with urllib.request.urlopen(SHAKESPEARE_URL, timeout=DOWNLOAD_TIMEOUT_S) as answer:
            content = _checked(answer.read(), SHAKESPEARE_URL)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(_missing(f"and {SHAKESPEARE_URL} did not answer ({error})")) from None
    _write_cache(content)
    return content


def shakespeare_places() -> list[Path]:
    """Where Tiny Shakespeare is looked for on disk, in order."""
    named = os.environ.get("TORSOR_DATA_DIR")
    folders = ([Path(named)] if named else []) + [cache_folder()]
    return [folder / SHAKESPEARE for folder in folders]


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/torsor, or ~/.cache/torsor."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torsor"


def python_docs() -> str:
    """The language reference that Python itself carries; always there."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[key] for key in sorted(topics))


def make_vocabulary(text: str) -> tuple[str, ...]:
    """The characters of a text in code point order; the index is the place."""
    return tuple(sorted(set(text)))


def encode(text: str, vocabulary: tuple[str, ...]) -> Tensor:
    """Indices (characters), int64; `DataError` names a character that isn't in the vocabulary."""
    index = {character: i for i, character in enumerate(vocabulary)}
    try:
        return torch.tensor([index[character] for character in text], dtype=torch.int64)
    except KeyError as error:
        character = str(error.args[0])
        raise DataError(
            f"text: found {character!r} (U+{ord(character):04X}) at {text.index(character)}, "
            f"expected one of the vocabulary's {len(vocabulary)} characters"
        ) from None


def split(ids: Tensor, window: int) -> Splits:
    """Cut indices 90 / 5 / 5 in order; each part must hold one window and its next character."""
    train = int(len(ids) * TRAIN_SHARE)
    valid = train + int(len(ids) * VALID_SHARE)
    splits = Splits(ids[:train], ids[train:valid], ids[valid:])
    for name in ("train", "valid", "test"):
        if (found := len(getattr(splits, name))) <= window:
            raise DataError(
                f"data: the {name} part has {found} characters, expected more than the window of "
                f"{window}; bring a longer text or a smaller --window"
            )
    return splits


def _decode(name: str, content: bytes) -> Text:
    try:
        text = content.decode().removeprefix("\ufeff")  # the byte order mark
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: byte 0x{content[error.start]:02X} at offset {error.start} is not UTF-8; "
            "convert the file first"
        ) from None
    if not text:
        raise DataError(f"{name}: the file is empty, expected text")
    return Text(name, text, hashlib.sha256(content).hexdigest())


def _checked(content: bytes, place: str) -> bytes:
    if (found := hashlib.sha256(content).hexdigest()) != SHAKESPEARE_SHA256:
        raise DataError(
            f"{place}: found SHA-256 {found}, expected {SHAKESPEARE_SHA256}; remove or replace it"
        )
    return content


def _write_cache(content: bytes) -> None:
    path = cache_folder() / SHAKESPEARE
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.part")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _missing(why: str) -> str:
    places = " nor ".join(str(path) for path in shakespeare_places())
    return (
        f"data: Tiny Shakespeare is not at {places}, {why}; set TORSOR_DATA_DIR to a folder that "
        f"holds {SHAKESPEARE}, or train on --data python-docs or a file of your own"
    )
