"""The texts that have a name: Tiny Shakespeare, Python's own documentation, Penn Treebank.

What Python doesn't carry is looked for in $TORSOR_DATA_DIR, then in the cache, packed with gzip or
not, then at its public address if it has one; what comes is checked against its published digest.
"""

import hashlib
import http.client
import os
import urllib.request
from pathlib import Path

from train.data.files import DataError, read_file, unpack

NAMED = ("shakespeare", "python-docs", "ptb")

SHAKESPEARE = "tinyshakespeare/input.txt"
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/" + SHAKESPEARE
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
DOWNLOAD_TIMEOUT_S = 20.0

PTB_MD5 = {  # of the word-level files, as published
    "ptb/ptb.train.txt": "f26c4b92c5fdc7b3f8c7cdcb991d8420",
    "ptb/ptb.valid.txt": "aa0affc06ff7c36e977d7cd49e3839bf",
    "ptb/ptb.test.txt": "8b80168b89c18661a38ef683c0dc3721",
}


def load_shakespeare(allow_download: bool) -> bytes:
    """Tiny Shakespeare from $TORSOR_DATA_DIR, the cache or its public address, checked."""
    if path := find_file(SHAKESPEARE):
        return _checked(read_unpacked(path), str(path), "SHA-256", SHAKESPEARE_SHA256)
    if not allow_download:
        raise DataError(_missing_shakespeare("and downloading is switched off"))
    try:
        with urllib.request.urlopen(SHAKESPEARE_URL, timeout=DOWNLOAD_TIMEOUT_S) as answer:
            content = _checked(answer.read(), SHAKESPEARE_URL, "SHA-256", SHAKESPEARE_SHA256)
    except (OSError, http.client.HTTPException) as error:
        why = f"and {SHAKESPEARE_URL} did not answer ({error})"
        raise DataError(_missing_shakespeare(why)) from None
    _write_cache(content)
    return content


def load_ptb() -> tuple[bytes, bytes, bytes]:
    """Penn Treebank, word level: the train, validation and test files, unpacked and checked."""
    found = {name: find_file(name) for name in PTB_MD5}
    if missing := [name for name, path in found.items() if path is None]:
        folders = " nor ".join(str(folder) for folder in data_folders())
        raise DataError(
            f"data: Penn Treebank lacks {', '.join(missing)}, each with or without .gz: not in "
            f"{folders}; it has no public address, so set TORSOR_DATA_DIR to a folder that holds "
            f"{', '.join(PTB_MD5)}"
        )
    train, valid, test = (
        _checked(read_unpacked(path), str(path), "MD5", PTB_MD5[name])
        for name, path in found.items()
        if path
    )
    return train, valid, test


def spell_words(content: bytes) -> str:
    """A word-level file in characters: lines stripped, a blank is _, a line end is LF."""
    lines = content.decode().removesuffix("\n").split("\n")
    return "".join(line.strip().replace(" ", "_") + "\n" for line in lines)


def python_docs() -> str:
    """The language reference that Python itself carries; always there."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[key] for key in sorted(topics))


def data_folders() -> list[Path]:
    """Where data is looked for on disk, in order."""
    named = os.environ.get("TORSOR_DATA_DIR")
    return ([Path(named)] if named else []) + [cache_folder()]


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/torsor, or ~/.cache/torsor."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torsor"


def read_unpacked(path: Path) -> bytes:
    """The content of a file that may be packed with gzip."""
    return unpack(str(path), read_file(str(path)))[0]


def find_file(name: str) -> Path | None:
    """Where a file of a data set is, packed with gzip or not; None if nowhere."""
    for folder in data_folders():
        for path in (folder / name, folder / f"{name}.gz"):
            if os.path.isfile(path):  # False where the folder is locked, too
                return path
    return None


def _checked(content: bytes, place: str, kind: str, expected: str) -> bytes:
    digest = hashlib.new(kind.replace("-", ""), content, usedforsecurity=False)
    if (found := digest.hexdigest()) != expected:
        raise DataError(f"{place}: found {kind} {found}, expected {expected}; remove or replace it")
    return content


def _write_cache(content: bytes) -> None:
    path = cache_folder() / SHAKESPEARE
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.part")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _missing_shakespeare(why: str) -> str:
    places = " nor ".join(str(folder / SHAKESPEARE) for folder in data_folders())
    return (
        f"data: Tiny Shakespeare is not at {places}, {why}; set TORSOR_DATA_DIR to a folder that "
        f"holds {SHAKESPEARE}, or train on --data python-docs or a file of your own"
    )
