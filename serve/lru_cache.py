"""Things that are costly to make, kept by recency within a bound in bytes. Thread-safe.

What many ask for at once is made once. What is kept is given at once, also while something else is
being made. What is dropped lives on as long as somebody holds it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Values by key, within `max_bytes`; 0 keeps none. The least recently used go first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._making: dict[Key, Future[Value]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Key) -> Value | None:
        """What is kept under a key; never waits for what is being made."""
        with self._lock:
            return self._find(key)

    def get(self, key: Key, make: Callable[[], tuple[Value, int]]) -> Value:
        """What is kept under a key, or made now: `make` gives it and its bytes.

        Raises what `make` raises, to all who wait for it; nothing is kept then.
        """
        with self._lock:
            if (found := self._find(key)) is not None:
                return found
            if (making := self._making.get(key)) is None:
                mine = self._making[key] = Future[Value]()
        if making is not None:
            return making.result()
        try:
            made, num_bytes = make()
        except BaseException as error:
            self._end(key)
            mine.set_exception(error)
            raise
        self._end(key, (made, num_bytes))
        mine.set_result(made)
        return made

    def forget(self, belongs: Callable[[Key], bool]) -> None:
        """Drop what is kept under these keys."""
        with self._lock:
            for key in [key for key in self._entries if belongs(key)]:
                self.num_bytes -= self._entries.pop(key)[1]

    def _find(self, key: Key) -> Value | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def _end(self, key: Key, entry: tuple[Value, int] | None = None) -> None:
        with self._lock:
            del self._making[key]
            if entry is None or entry[1] > self.max_bytes:
                return
            self._entries[key] = entry
            self.num_bytes += entry[1]
            while self.num_bytes > self.max_bytes:
                self.num_bytes -= self._entries.popitem(last=False)[1][1]
