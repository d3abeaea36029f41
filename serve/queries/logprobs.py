"""Log-probabilities of one choice as OpenAI's clients read them, piece by piece."""

import codecs
from typing import Any

from serve.queries.generate import Character, Choice, Chunk
from serve.runtime.vocabulary import named_byte

Json = dict[str, Any]


class Logprobs:
    """Follows a choice, because where a character stands depends on those before it."""

    def __init__(self, choice: Choice, echo: bool, top: int) -> None:
        self._top, self._place = top, 0 if echo else choice.prompt_length
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._utf8 = utf8 if choice.decoder.vocabulary.is_bytes else None

    def page(self, chunk: Chunk) -> Json:
        """Those of the choice's next chunk."""
        characters = chunk.characters or []
        tops = [c.top if c.logprob is not None else None for c in characters]
        return {
            "tokens": [c.text for c in characters],
            "token_logprobs": [c.logprob for c in characters],
            "top_logprobs": tops if self._top else None,
            "text_offset": self._offsets(characters),
        }

    def _offsets(self, characters: list[Character]) -> list[int]:
        """The place in the text of the character that each one is, or is a byte of."""
        if self._utf8 is None:
            start, self._place = self._place, self._place + len(characters)
            return list(range(start, self._place))
        offsets = list[int]()
        for character in characters:
            self._place += len(self._utf8.decode(named_byte(character.text)))
            # More bytes may follow these, though not all that the decoder keeps can become one
            # character: ED A0, of a surrogate, is two mistakes for it only once a third byte comes.
            kept = self._utf8.getstate()[0].decode("utf-8", "replace")
            offsets.append(self._place + len(kept) - 1)
        return offsets


def joined(pages: list[Json]) -> Json:
    """The pages of consecutive chunks as one."""
    whole = pages[0]
    for page in pages[1:]:
        for key, values in page.items():
            if values is not None:
                whole[key] += values
    return whole
