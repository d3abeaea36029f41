"""Stop strings, exact across chunks.

The text ends at the first character that completes a stop string; of several that complete there,
the longest counts. Only a suffix that can still become a stop string is held back.

Each stop string is followed by the automaton of Knuth, Morris and Pratt, so a character costs a
few steps a stop string, however long they are.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopFound:
    """A stop string that the characters just fed have completed."""

    index: int  # which of the stop strings
    length: int  # its characters
    consumed: int  # of the characters just fed, up to and with its last


class StopStrings(tuple[tuple[int, ...], ...]):
    """The stop strings of a request, which all its choices share: their automata are made once."""

    @functools.cached_property
    def borders(self) -> list[list[int]]:
        """Those of each stop string."""
        return [borders(stop) for stop in self]


class StopMatcher:
    """Follows one text and says when a stop string has been written."""

    def __init__(self, stops: Sequence[tuple[int, ...]]) -> None:
        self._stops = stops if isinstance(stops, StopStrings) else StopStrings(stops)
        self._borders = self._stops.borders
        self._matched = [0] * len(stops)  # characters of each stop string that the text ends with

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that may still become a stop string."""
        return max(self._matched, default=0)

    def feed(self, characters: Sequence[int]) -> StopFound | None:
        """Follow more of the text; the stop string that it completes first, if any."""
        for consumed, character in enumerate(characters, 1):
            self._matched = [self._next(i, character) for i in range(len(self._stops))]
            found = [i for i, n in enumerate(self._matched) if n == len(self._stops[i])]
            if found:
                longest = max(found, key=lambda i: len(self._stops[i]))
                return StopFound(longest, len(self._stops[longest]), consumed)
        return None

    def _next(self, index: int, character: int) -> int:
        stop, matched = self._stops[index], self._matched[index]
        while matched and stop[matched] != character:
            matched = self._borders[index][matched - 1]
        return matched + (stop[matched] == character)


def borders(stop: tuple[int, ...]) -> list[int]:
    """Per prefix, the length of the longest shorter prefix that it also ends with."""
    lengths, matched = [0], 0
    for character in stop[1:]:
        while matched and stop[matched] != character:
            matched = lengths[matched - 1]
        matched += stop[matched] == character
        lengths.append(matched)
    return lengths
