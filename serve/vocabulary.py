"""Characters and their indices, at the server's edge."""

import numpy as np
from numpy.typing import NDArray

from serve.wire.errors import RequestError, invalid

STAND_INS = ("\ufffd", "?", " ")  # what `unknown: replace` takes: the first there is


class Vocabulary:
    """The characters of a model in index order."""

    def __init__(self, characters: tuple[str, ...]) -> None:
        self.characters = characters
        self._index = {character: i for i, character in enumerate(characters)}
        known = (c for c in STAND_INS if c in self._index)
        self._stand_in = self._index[next(known, characters[0])]

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str, field: str, unknown: str) -> NDArray[np.int64]:
        """Indices of a text; characters outside are an error, skipped, or replaced.

        Raises `RequestError` with the character, its code point and its place.
        """
        if unknown == "skip":
            text = "".join(c for c in text if c in self._index)
        indices = [self._index.get(c, -1) for c in text]
        if unknown == "replace":
            indices = [self._stand_in if i < 0 else i for i in indices]
        if -1 in indices:
            raise self._refuse(text, indices.index(-1), field)
        return np.array(indices, np.int64)

    def decode(self, indices: list[int]) -> str:
        """The text of indices."""
        return "".join(self.characters[i] for i in indices)

    def _refuse(self, text: str, place: int, field: str) -> RequestError:
        character = text[place]
        return invalid(
            field,
            f"found {character!r} (U+{ord(character):04X}) at index {place}, expected one of the "
            f"model's {len(self)} characters; remove it, or set unknown to skip or replace",
        )
