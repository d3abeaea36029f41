"""Stop strings, exact across chunks.

The text ends at the first character that completes a stop string; of several that complete there,
the longest counts. Only a suffix that can still become a stop string is held back.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopFound:
    """A stop string that the characters just fed have completed."""

    index: int  # which of the stop strings
    length: int  # its characters
    consumed: int  # of the characters just fed, up to and with its last


class StopMatcher:
    """Follows one text and says when a stop string has been written."""

    def __init__(self, stops: Sequence[tuple[int, ...]]) -> None:
        self._stops = stops
        self._tail: tuple[int, ...] = ()  # the longest suffix that starts a stop string

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that may still become a stop string."""
        return len(self._tail)

    def feed(self, characters: Sequence[int]) -> StopFound | None:
        """Follow more of the text; the stop string that it completes first, if any."""
        for consumed, character in enumerate(characters, 1):
            candidate = (*self._tail, character)
            found = [i for i, stop in enumerate(self._stops) if candidate[-len(stop) :] == stop]
            if found:
                longest = max(found, key=lambda i: len(self._stops[i]))
                return StopFound(longest, len(self._stops[longest]), consumed)
            self._tail = self._longest_start(candidate)
        return None

    def _longest_start(self, text: tuple[int, ...]) -> tuple[int, ...]:
        for start in range(len(text)):
            if any(stop[: len(text) - start] == text[start:] for stop in self._stops):
                return text[start:]
        return ()
