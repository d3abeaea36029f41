"""From the engine's thread to the event loop: news of many streams, one wake-up.

The engine rings after every tick, once a stream that moved; waking the loop costs a system call,
so all that ring before the loop has looked share one.
"""

import asyncio
import weakref
from collections import deque


class _LoopCaller:
    """Wakes one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._rung = loop, deque["Wakeup"]()
        self._scheduled = False

    def ring(self, wakeup: "Wakeup") -> None:
        self._rung.append(wakeup)
        if not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop has closed: nobody reads there, and others go on
                self._rung.clear()

    def _answer(self) -> None:
        self._scheduled = False  # first: whoever rings from here on schedules again
        while self._rung:
            self._rung.popleft().open()


_doorbells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopCaller] = (
    weakref.WeakKeyDictionary()
)


def _doorbell_of(loop: asyncio.AbstractEventLoop) -> _LoopCaller:
    if (found := _doorbells.get(loop)) is None:
        found = _doorbells[loop] = _LoopCaller(loop)
    return found


class Wakeup:
    """Wakes one coroutine from the engine's thread, once however often it is rung.

    An asyncio.Event could do it, with 0.8 KB of waiting line for the one that waits.
    """

    __slots__ = ("_doorbell", "_is_open", "_rung", "_waiting")

    def __init__(self) -> None:
        self._doorbell = _doorbell_of(asyncio.get_running_loop())
        self._rung = self._is_open = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """There is news; called from any thread."""
        if not self._rung:
            self._rung = True
            self._doorbell.ring(self)

    def open(self) -> None:
        """Let the waiting coroutine go on; called in the event loop."""
        self._is_open = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> None:
        """Until it has rung since the last wait."""
        if not self._is_open:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        self._is_open = self._rung = False
