"""Offloading: a function runs in a worker thread when its input is large, one after the other.

The queue has a known length. The interpreter's lock is still shared: a call into C that holds it,
such as the JSON parser's over a whole body, lets nobody else run. What is written in Python here
goes in slices for that reason.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from serve.wire.errors import RequestError
from serve.wire.limits import MAX_QUEUED_LARGE

Result = TypeVar("Result")


class BoundedExecutor:
    """Runs one function after the other, off the event loop; a full queue is an error."""

    def __init__(self, what: str, max_queued: int, limit: str) -> None:
        """`what` is waiting, as the error says it: "ablations are being prepared"."""
        self._limit, self.closed = limit, False
        self._what, self._max_queued, self._num_queued = what, max_queued, 0
        self._thread = ThreadPoolExecutor(1, what.split()[0])

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The result of a function; `RequestError` where too many wait or the server stops."""
        if self._num_queued >= self._max_queued:
            sentence = (
                f"{self._num_queued} {self._what}, expected fewer than {self._max_queued} "
                f"({self._limit}); try later"
            )
            raise RequestError("queue_full", sentence)
        try:
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._thread, function, *arguments)
        except RuntimeError as error:  # the thread takes nothing more
            raise RequestError("unavailable", f"the server is shutting down ({error})") from None
        self._num_queued += 1
        work.add_done_callback(self._forget)
        return await asyncio.shield(work)

    def close(self) -> None:
        """Take nothing more, and drop what has not begun; long work looks at `closed`."""
        self.closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _forget(self, work: "asyncio.Future[Any]") -> None:
        # Work whose caller has gone away still holds its place until it has run.
        self._num_queued -= 1
        if not work.cancelled():
            work.exception()  # seen, or asyncio would complain of it


LARGE = 1 << 18  # bytes, above which a request is read and checked in a thread


_worker = BoundedExecutor("large requests are being read", MAX_QUEUED_LARGE, "max_queued_large")


async def offload_if_large(
    size: int, function: Callable[..., Result], *arguments: Any, small: int = LARGE
) -> Result:
    """The result of a function, called here if `size` is at most `small` (bytes), else in a thread.

    `RequestError` where too many large ones wait.
    """
    if size <= small:
        return function(*arguments)
    return await _worker.run(function, *arguments)
