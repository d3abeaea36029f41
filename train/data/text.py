"""Text to train on, its vocabulary and its splits.

A text is named (`train.data.named`) or is the path of any text file (`train.data.files`), or one
corpus of several, in the order given: their names stand one a line. Its symbols are characters, or
bytes: then byte n is the character of code point n (so a vocabulary is characters all the same),
nothing is decoded or replaced, and where a report says bits per character (BPC) it means bits per
byte.

A text is cut in order, 90 / 5 / 5 by characters, or where its publisher cut it. The vocabulary is
that of the whole text, so that every character can be scored; `describe_unseen` tells which of them
training never shows.
"""

import glob
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from train.data.files import DataError, Notes, count, decode, read_file, unpack
from train.data.named import NAMED, load_ptb, load_shakespeare, python_docs, spell_words

SYMBOLS = ("characters", "bytes")
TRAIN_SHARE, VALID_SHARE = 0.90, 0.05  # by characters, in order; the rest is for testing
ALIKE = ("symbols are bytes: bits per character are bits per byte",)  # a note on all texts
MOST_NAMED = 10  # characters that a note names


@dataclass(frozen=True, slots=True)
class Text:
    """A text and where it came from."""

    name: str
    text: str
    sha256: str  # of the file as it lies on disk; of several, of their hashes in order
    parts: tuple[int, int] | None = None  # ends of training and validation; None: 90 / 5 / 5
    notes: Notes = ()  # what was found and done, in plain words


@dataclass(frozen=True, slots=True)
class Splits:
    """Character indices (characters), int64: the text cut in order."""

    train: Tensor
    valid: Tensor
    test: Tensor


def load_text(name: str, symbols: str = "characters") -> Text:
    """The text called `name`, or the file at that path, in characters or bytes.

    Several names, one a line, are one text. Raises `DataError` if there is no such text, or it is
    empty, or it can't be read as text.
    """
    if symbols not in SYMBOLS:
        raise DataError(f"symbols: found {symbols!r}, expected {' or '.join(SYMBOLS)}")
    names = name.split("\n")
    return _load_one(name, symbols) if len(names) == 1 else _load_corpus(names, symbols)


def _load_corpus(names: Sequence[str], symbols: str) -> Text:
    """One text after the other, nothing between them."""
    texts = [_load_one(name, symbols) for name in names]
    if cut := [text.name for text in texts if text.parts is not None]:
        raise DataError(
            f"data: found {cut[0]} among {len(names)} texts, expected it alone, since it is cut "
            "where its publisher cut it; leave it out, or the others"
        )
    notes = [note if note in ALIKE else f"{t.name}: {note}" for t in texts for note in t.notes]
    told = f"{len(texts)} files are one text, in the order given"
    return Text(
        f"{texts[0].name} and {len(texts) - 1} more",
        "".join(text.text for text in texts),
        hashlib.sha256("".join(text.sha256 for text in texts).encode()).hexdigest(),
        notes=(told, *dict.fromkeys(notes)),
    )


def _load_one(name: str, symbols: str) -> Text:
    if name == "ptb":
        return _load_ptb(symbols)
    if name == "shakespeare":
        return _make_text(name, load_shakespeare(allow_download=True), symbols)
    if name == "python-docs":
        return _make_text(name, python_docs().encode(), symbols)
    return _make_text(Path(name).name, _read(name), symbols)


def describe_split(name: str, symbols: str) -> str:
    """Which parts of a text a run trains, validates and tests on, in words."""
    if name == "ptb":
        return f"{symbols} in order, cut as published: its files for training, validation and test"
    train, valid = (round(100 * share) for share in (TRAIN_SHARE, VALID_SHARE))
    rest = 100 - train - valid
    return f"{symbols} in order: {train} % training, {valid} % validation, {rest} % test"


def resolve_name(name: str) -> str:
    """The name of a text from any folder: the whole paths of files, those of a folder, or alike.

    A folder stands for the files below it in the order of their paths, without hidden ones; a
    pattern with *, ? or [] for those that it matches. `DataError` for a folder without files.
    """
    return "\n".join(one for word in name.split("\n") for one in _expand(word))


def _expand(word: str) -> list[str]:
    if word in NAMED or not word:
        return [word]
    if os.path.isdir(word):
        paths = [path for path in sorted(Path(word).rglob("*")) if path.is_file()]
        shown = [path for path in paths if not _is_hidden(path.relative_to(word))]
        if not shown:
            raise DataError(f"data: found {word}, a folder without files, expected some text files")
        return [str(path.resolve()) for path in shown]
    if os.path.isfile(word):
        return [str(Path(word).resolve())]
    matched = [path for path in sorted(glob.glob(word, recursive=True)) if os.path.isfile(path)]
    return [str(Path(path).resolve()) for path in matched] or [word]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def make_vocabulary(text: str) -> tuple[str, ...]:
    """The characters of a text in code point order; the index is the place."""
    return tuple(sorted(set(text)))


def encode(text: str, vocabulary: tuple[str, ...]) -> Tensor:
    """Indices (characters), int64; `DataError` names a character that isn't in the vocabulary."""
    index = np.full(sys.maxunicode + 1, -1, np.int64)  # by code point
    index[_code_points("".join(vocabulary))] = np.arange(len(vocabulary))
    ids = index[_code_points(text)]
    if len(unknown := np.flatnonzero(ids < 0)):
        place = int(unknown[0])
        raise DataError(
            f"text: found {text[place]!r} (U+{ord(text[place]):04X}) at {place}, "
            f"expected one of the vocabulary's {len(vocabulary)} characters"
        )
    return torch.from_numpy(ids)


def split(ids: Tensor, window: int, parts: tuple[int, int] | None = None) -> Splits:
    """Cut indices at `parts`, or 90 / 5 / 5; each part holds a window and its next character."""
    train, valid = parts or _usual_parts(len(ids))
    splits = Splits(ids[:train], ids[train:valid], ids[valid:])
    for name in ("train", "valid", "test"):
        if (found := len(getattr(splits, name))) <= window:
            raise DataError(
                f"data: the {name} part has {found} characters, expected more than the window of "
                f"{window}; bring a longer text or a smaller --window"
            )
    return splits


def describe_unseen(splits: Splits, vocabulary: tuple[str, ...]) -> Notes:
    """A note for each part with characters that training never shows: how many, how often, which.

    They stay in the vocabulary: their scores count, and say what a model gives to the unknown.
    """
    known = torch.bincount(splits.train, minlength=len(vocabulary)) > 0
    parts = {"validation": splits.valid, "test": splits.test}
    counts = {
        name: torch.bincount(ids, minlength=len(vocabulary)).masked_fill(known, 0)
        for name, ids in parts.items()
    }
    return tuple(_unseen_note(name, n, vocabulary) for name, n in counts.items() if n.any())


def _usual_parts(length: int) -> tuple[int, int]:
    train = int(length * TRAIN_SHARE)
    return train, train + int(length * VALID_SHARE)


def _unseen_note(part: str, counts: Tensor, vocabulary: tuple[str, ...]) -> str:
    unseen = counts.nonzero().flatten().tolist()
    named = ", ".join(repr(vocabulary[i]) for i in unseen[:MOST_NAMED])
    rest = len(unseen) - MOST_NAMED
    return (
        f"{part}: {count(len(unseen), 'character')}, {count(int(counts.sum()), 'time')}, "
        f"never in training: {named}" + (f" and {rest} more" if rest > 0 else "")
    )


def _read(name: str) -> bytes:
    try:
        return read_file(name)
    except FileNotFoundError:
        raise DataError(
            f"data: found {name!r}, expected {', '.join(NAMED)} or the path of a text file"
        ) from None


def _load_ptb(symbols: str) -> Text:
    contents = load_ptb()
    train, valid, test = (spell_words(content) for content in contents)
    parts = (len(train), len(train) + len(valid))
    sha256 = hashlib.sha256(b"".join(contents)).hexdigest()
    notes = ("words spelled out: a blank is '_', each line end is a character", "cut as published")
    return Text("ptb", train + valid + test, sha256, parts, notes + _symbol_notes(symbols))


def _make_text(name: str, content: bytes, symbols: str) -> Text:
    unpacked, unpack_notes = unpack(name, content)
    if symbols == "bytes":
        text, notes = unpacked.decode("latin-1"), _symbol_notes(symbols)
    else:
        text, notes = decode(name, unpacked)
    if not text:
        raise DataError(f"{name}: the file is empty, expected text")
    sha256 = hashlib.sha256(content).hexdigest()
    return Text(name, text, sha256, notes=unpack_notes + notes)


def _symbol_notes(symbols: str) -> Notes:
    return ALIKE if symbols == "bytes" else ()


def _code_points(text: str) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))
