"""Longest-prefix cache of states: what a prompt's beginning has led to before isn't run again.

A state is small and constant in size, so the one after a prefix stands for the whole prefix. Kept
are states at positions that are multiples of `EVERY`, early in a prompt, and the one at the last
cut before a prompt's end; late in a prompt, cuts are further apart, so that the lengths to look up
stay few whatever clients send. The least recently used go first once the memory bound is reached.
Only the engine's thread uses it.
"""

import hashlib
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Rows = dict[str, Array]

EVERY = 128  # characters between states that are kept
UP_TO = 4096  # position after which only one more is kept, at a prompt's last cut
CUTS = 64  # at least, in a prompt that is longer
ENTRY_BYTES = 400  # of Python's own, an entry


class Prefixes:
    """Digests of the beginnings of one prompt, asked for in ascending order of length."""

    def __init__(self, characters: Array) -> None:
        self._content = np.ascontiguousarray(characters, np.int32)
        self._digest, self._length = hashlib.blake2b(digest_size=16), 0

    def digest(self, length: int) -> bytes:
        """Of the first `length` characters; never fewer than were asked for before."""
        self._digest.update(self._content[self._length : length].tobytes())
        self._length = length
        return self._digest.digest()


class PrefixCache:
    """States by (weights, prefix), within `max_bytes`; 0 keeps none."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._entries: OrderedDict[tuple[str, int, bytes], Rows] = OrderedDict()
        self._lengths: dict[str, Counter[int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, weights: str, forced: Array) -> tuple[int, Rows] | None:
        """The state of the longest known beginning of a prompt, and its length."""
        found, prefixes = None, Prefixes(forced)
        for length in sorted(n for n in self._lengths.get(weights, ()) if n <= len(forced)):
            key = (weights, length, prefixes.digest(length))
            found = key if key in self._entries else found
        if found is None:
            return None
        self._entries.move_to_end(found)
        return found[1], self._entries[found]

    def wants(self, position: int, prompt_length: int, cut: int) -> bool:
        """Whether the state at a position of a prompt is worth keeping; runs end at every `cut`."""
        if not 0 < position <= prompt_length or not self.max_bytes:
            return False
        if position <= UP_TO and position % EVERY == 0:
            return True
        while cut * CUTS * 2 <= prompt_length and prompt_length > UP_TO:
            cut *= 2
        return position % cut == 0 and position + cut > prompt_length

    def put(self, weights: str, length: int, digest: bytes, rows: Rows) -> None:
        """Keep a complete state."""
        key = (weights, length, digest)
        if key in self._entries:
            return self._entries.move_to_end(key)
        self._entries[key] = rows
        self._lengths.setdefault(weights, Counter())[length] += 1
        self.num_bytes += _size(rows)
        while self.num_bytes > self.max_bytes:
            self._drop(*self._entries.popitem(last=False))

    def forget(self, weights: str) -> None:
        """Drop the states of a model that is no longer served; of its ablations too."""
        for key in [key for key in self._entries if key[0].startswith(weights)]:
            self._drop(key, self._entries.pop(key))

    def _drop(self, key: tuple[str, int, bytes], rows: Rows) -> None:
        self.num_bytes -= _size(rows)
        lengths = self._lengths[key[0]]
        lengths[key[1]] -= 1
        if not lengths[key[1]]:
            del lengths[key[1]]
        if not lengths:
            del self._lengths[key[0]]


def _size(rows: Rows) -> int:
    return ENTRY_BYTES + sum(value.nbytes for value in rows.values())
