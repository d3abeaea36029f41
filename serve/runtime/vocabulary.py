"""Characters and their indices, at the server's edge.

Where a model's symbols are bytes, a text is its UTF-8 bytes: byte n stands in the vocabulary as the
character of code point n.
"""

import codecs
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.wire.errors import RequestError, invalid

SLICE = 1 << 15  # ids that are converted at once; the interpreter's lock is held for as long
MAX_COUNTED = 100  # characters outside that an answer names
STAND_INS = ("\ufffd", "?", " ")  # what `unknown: replace` takes: the first there is


class Vocabulary:
    """The characters of a model in index order, or its bytes."""

    def __init__(self, characters: tuple[str, ...], symbols: str = "characters") -> None:
        self.characters, self.is_bytes = characters, symbols == "bytes"
        self.names = tuple(map(name_byte, characters)) if self.is_bytes else characters
        self._codes = code_points("".join(characters))
        self._index = np.full(int(self._codes.max(initial=0)) + 2, -1, np.int32)  # by code point
        self._index[self._codes] = np.arange(len(characters))
        known = [characters.index(c) for c in STAND_INS if c in characters]
        self._stand_in = known[0] if known else 0

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str, field: str, unknown: str) -> NDArray[np.int64]:
        """Indices of a text; characters outside are an error, skipped, or replaced.

        Raises `RequestError` with the character, its code point and its place.
        """
        return self.encode_counted(text, field, unknown)[0]

    def encode_counted(
        self, text: str, field: str, unknown: str
    ) -> tuple[NDArray[np.int64], dict[str, int]]:
        """The same, and how often each character outside was found; at most `MAX_COUNTED`.

        Where symbols are bytes, a character of which one is missing is outside as a whole.
        """
        codes = code_points(_as_bytes(text, field) if self.is_bytes else text)
        known = np.minimum(codes, len(self._index) - 1)  # the last one is no character
        indices: NDArray[np.int64] = self._index[known].astype(np.int64)
        if not (indices < 0).any():
            return indices, {}
        owners = self._owners(codes)
        is_outside = np.bincount(owners, indices < 0) > 0  # by character
        if unknown == "error":
            raise self._refuse(text, int(is_outside.argmax()), field)
        outside = is_outside[owners]  # by symbol
        if unknown == "replace":
            first = np.diff(owners, prepend=-1) > 0
            indices[outside & first] = self._stand_in
            outside &= ~first
        return indices[~outside], _count(code_points(text)[is_outside])

    def _owners(self, codes: NDArray[np.uint32]) -> NDArray[np.int64]:
        """By symbol, the index of the character that it is, or is a byte of."""
        if not self.is_bytes:
            return np.arange(len(codes))
        found: NDArray[np.int64] = np.cumsum((codes & 0xC0) != 0x80) - 1  # 10xxxxxx goes on
        return found

    def check(self, indices: Sequence[int], field: str) -> NDArray[np.int64]:
        """Indices that a client sent, as an array; `RequestError` names one that isn't any."""
        try:
            starts = range(0, max(1, len(indices)), SLICE)
            found = np.concatenate([np.array(indices[i : i + SLICE], np.int64) for i in starts])
            outside = (found < 0) | (found >= len(self))
        except OverflowError:
            outside = np.array([not 0 <= index < len(self) for index in indices])
        if outside.any():
            place = int(outside.argmax())
            sentence = f"found token id {indices[place]} at index {place}"
            raise invalid(field, f"{sentence}, expected ids from 0 to {len(self) - 1}")
        return found

    def decode(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """The text of indices; bytes that are no UTF-8 become U+FFFD."""
        codes = self._codes[np.asarray(indices, np.int64)]
        if self.is_bytes:
            return codes.astype(np.uint8).tobytes().decode("utf-8", "replace")
        return codes.astype("<u4").tobytes().decode("utf-32-le")

    def _refuse(self, text: str, place: int, field: str) -> RequestError:
        character = text[place]
        return invalid(
            field,
            f"found {character!r} (U+{ord(character):04X}) at index {place}, expected one of the "
            f"model's {len(self)} {'bytes' if self.is_bytes else 'characters'}; remove it, "
            "or set unknown to skip or replace",
        )


class Decoder:
    """Turns the indices of one stream into text, and never a half character.

    Bytes that don't make a whole character yet are kept for the next call.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self._characters = vocabulary, vocabulary.characters
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._utf8 = utf8 if vocabulary.is_bytes else None

    def feed(self, indices: Sequence[int], final: bool = False) -> str:
        """The text that these indices complete; `final`: nothing follows."""
        text = "".join([self._characters[i] for i in indices])
        return text if self._utf8 is None else self._utf8.decode(text.encode("latin-1"), final)


def name_byte(symbol: str) -> str:
    """A byte's name in lists of log-probabilities, as OpenAI's clients know it."""
    return symbol if symbol.isascii() else f"bytes:\\x{ord(symbol):02x}"


def named_byte(name: str) -> bytes:
    """The byte that has a name."""
    return name.encode() if len(name) == 1 else bytes.fromhex(name[-2:])


def _count(codes: NDArray[np.uint32]) -> dict[str, int]:
    found, counts = np.unique(codes, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MAX_COUNTED]  # the most frequent first
    return {chr(found[i]): int(counts[i]) for i in order}


def _as_bytes(text: str, field: str) -> str:
    try:
        return text.encode().decode("latin-1")
    except UnicodeEncodeError as error:
        found = f"found half of a surrogate pair (U+{ord(text[error.start]):04X})"
        raise invalid(field, f"{found} at index {error.start}, expected text; remove it") from None


def code_points(text: str) -> NDArray[np.uint32]:
    """The code point of every character; lone surrogates, which JSON can carry, included."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
