"""How long a client may leave unread what is sent to it.

A write to a client that doesn't read waits for as long as the connection lives. Its request would
keep its streams' memory, its place among the key's and its line in the log for all that time.
"""

import asyncio
import time
from types import TracebackType
from typing import Self

from serve.gone import take_back
from serve.wire.errors import RequestError


class Patience:
    """Cancels the task that it was made in once one of its writes has waited for so long.

    A context: the writes are looked at for as long as it is open, and the cancellation ends with
    it. Looked at four times in that span, so a write costs two readings of a clock and no timer.
    """

    __slots__ = ("_handle", "_since", "_task", "is_over", "limit_s")

    def __init__(self, limit_s: float) -> None:
        self.limit_s, self.is_over = limit_s, False
        self._task, self._since = asyncio.current_task(), 0.0

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

    def __enter__(self) -> Self:
        self._look_later()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._handle.cancel()
        return isinstance(error, asyncio.CancelledError) and self.is_over and take_back(self._task)

    def _look_later(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self.limit_s / 4, self._look)

    def _look(self) -> None:
        if self._since and time.monotonic() - self._since > self.limit_s and self._task is not None:
            self.is_over = True
            self._task.cancel()
        else:
            self._look_later()
