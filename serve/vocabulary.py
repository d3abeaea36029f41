"""Characters and their indices, at the server's edge."""

import numpy as np
from numpy.typing import NDArray

from serve.wire.errors import RequestError, invalid

STAND_INS = ("\ufffd", "?", " ")  # what `unknown: replace` takes: the first there is


class Vocabulary:
    """The characters of a model in index order."""

    def __init__(self, characters: tuple[str, ...]) -> None:
        self.characters = characters
        codes = code_points("".join(characters))
        self._order = np.argsort(codes)
        self._sorted = codes[self._order]
        known = [characters.index(c) for c in STAND_INS if c in characters]
        self._stand_in = known[0] if known else 0

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str, field: str, unknown: str) -> NDArray[np.int64]:
        """Indices of a text; characters outside are an error, skipped, or replaced.

        Raises `RequestError` with the character, its code point and its place.
        """
        codes = code_points(text)
        places = np.minimum(np.searchsorted(self._sorted, codes), len(self) - 1)
        indices: NDArray[np.int64] = self._order[places].astype(np.int64)
        outside = self._sorted[places] != codes
        if unknown == "skip":
            inside: NDArray[np.int64] = indices[~outside]
            return inside
        if unknown == "replace":
            indices[outside] = self._stand_in
        elif outside.any():
            raise self._refuse(text, int(outside.argmax()), field)
        return indices

    def decode(self, indices: list[int]) -> str:
        """The text of indices."""
        return "".join(self.characters[i] for i in indices)

    def _refuse(self, text: str, place: int, field: str) -> RequestError:
        character = text[place]
        return invalid(
            field,
            f"found {character!r} (U+{ord(character):04X}) at index {place}, expected one of the "
            f"model's {len(self)} characters; remove it"
            + (", or set unknown to skip or replace" if field != "stop" else ""),
        )


def code_points(text: str) -> NDArray[np.uint32]:
    """The code point of every character; lone surrogates, which JSON can carry, included."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
