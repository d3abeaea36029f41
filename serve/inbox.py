"""From the engine's thread to the event loop: news of many streams, one wake-up.

The engine rings after every tick, once a stream that moved; waking the loop costs a system call,
so all that ring before the loop has looked share one.
"""

import asyncio
import weakref
from collections import deque


class _Doorbell:
    """Wakes one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._rung = loop, deque["Inbox"]()
        self._scheduled = False

    def ring(self, inbox: "Inbox") -> None:
        self._rung.append(inbox)
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


_doorbells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Doorbell] = (
    weakref.WeakKeyDictionary()
)


class Inbox:
    """Wakes one coroutine from the engine's thread, once however often it is rung."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._doorbell = _doorbells.setdefault(loop, _Doorbell(loop))
        self._event, self._rung = asyncio.Event(), False

    def ring(self) -> None:
        """There is news; called from any thread."""
        if not self._rung:
            self._rung = True
            self._doorbell.ring(self)

    def open(self) -> None:
        """Let the waiting coroutine go on; called in the event loop."""
        self._event.set()

    async def wait(self) -> None:
        """Until it has rung since the last wait."""
        await self._event.wait()
        self._event.clear()
        self._rung = False
