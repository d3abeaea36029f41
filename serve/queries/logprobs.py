"""Log-probabilities of one choice as OpenAI's clients read them, piece by piece."""

import codecs
from itertools import chain
from typing import Any

from serve.queries.generate import Character, Choice, Chunk
from serve.runtime.vocabulary import named_byte
from serve.wire import responses


class Logprobs:
    """Follows a choice, because where a character stands depends on those before it."""

    def __init__(self, choice: Choice, echo: bool, top: int) -> None:
        self._top, self._place = top, 0 if echo else choice.prompt_length
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._utf8 = utf8 if choice.decoder.vocabulary.is_bytes else None

    def of(self, chunk: Chunk) -> responses.Logprobs:
        """The log-probabilities of the choice's next chunk."""
        characters = chunk.characters or []
        tops = tuple(c.top if c.logprob is not None else None for c in characters)
        return responses.Logprobs(
            tokens=tuple(c.text for c in characters),
            token_logprobs=tuple(c.logprob for c in characters),
            top_logprobs=tops if self._top else None,
            text_offset=tuple(self._offsets(characters)),
        )

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


def joined(parts: list[responses.Logprobs]) -> responses.Logprobs:
    """The log-probabilities of consecutive chunks as one."""

    def column(name: str) -> Any:
        return tuple(chain.from_iterable(getattr(part, name) for part in parts))

    return responses.Logprobs(
        tokens=column("tokens"),
        token_logprobs=column("token_logprobs"),
        top_logprobs=None if parts[0].top_logprobs is None else column("top_logprobs"),
        text_offset=column("text_offset"),
    )
