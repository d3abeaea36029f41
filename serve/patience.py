"""How long a client may leave unread what is sent to it.

A write to a client that doesn't read waits for as long as the connection lives. Its request would
keep its streams' memory, its place among the key's and its line in the log for all that time.
"""

import asyncio
import time

from serve.cancel import Cancelling
from serve.wire.errors import RequestError


class Patience(Cancelling):
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
