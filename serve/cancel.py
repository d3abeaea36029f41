"""Cancel scopes: contexts that may cancel what runs inside them, as for a client that has gone.

`WriteTimeout` is for clients that don't read. A write to one waits for as long as the connection
lives, and its request would keep its streams' memory, its place among the key's and its line in the
log for all that time.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

from serve.wire.errors import RequestError


class CancelScope(ABC):
    """A context whose `cancel` ends its inside; the cancellation ends with it, as a timeout's does.

    What comes from elsewhere passes. `_begin` and `_end` are called on the way in and out.
    """

    __slots__ = ("_before", "_task", "has_cancelled")

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self.has_cancelled = False

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()
        self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        task, self._task = self._task, None  # a call that comes too late cancels nothing
        self._end()
        if task is None or not self.has_cancelled:
            return False
        return task.uncancel() <= self._before and isinstance(error, asyncio.CancelledError)

    def cancel(self) -> None:
        """End what runs inside, if it still does."""
        if self._task is not None:
            self.has_cancelled = True
            self._task.cancel()

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...


class WriteTimeout(CancelScope):
    """A context whose inside is cancelled once one of its writes has waited for so long.

    Looked at four times in that span, so a write costs two readings of a clock and no timer.
    """

    __slots__ = ("_handle", "_since", "limit_s")

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self.limit_s, self._since = limit_s, 0.0

    def begin(self) -> None:
        """A write begins."""
        self._since = time.monotonic()

    def end(self) -> None:
        """The write has ended."""
        self._since = 0.0

    def error(self) -> RequestError:
        """Why it is over."""
        sentence = f"what was sent was left unread for {self.limit_s} s; read faster"
        return RequestError("timeout", sentence)

    def _begin(self) -> None:
        self._look_later()

    def _end(self) -> None:
        self._handle.cancel()

    def _look_later(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self.limit_s / 4, self._look)

    def _look(self) -> None:
        if self._since and time.monotonic() - self._since > self.limit_s:
            self.cancel()
        else:
            self._look_later()
