"""Work whose length a client chooses: what is large runs off the event loop, one after the other.

The interpreter's lock is still shared: a call into C that holds it, such as the JSON parser's over
the whole body, lets nobody else run. What is written in Python here goes in slices for that reason.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from serve.bounded import BoundedWorker

LARGE = 1 << 18  # bytes, above which a request is read and checked in a thread
MAX_QUEUED_LARGE = 64

Result = TypeVar("Result")

_worker = BoundedWorker("large requests are being read", MAX_QUEUED_LARGE, "max_queued_large")


async def by_size(
    size: int, function: Callable[..., Result], *arguments: Any, small: int = LARGE
) -> Result:
    """The result of a function, called here if `size` is at most `small` (bytes), else in a thread.

    `RequestError` where too many large ones wait.
    """
    if size <= small:
        return function(*arguments)
    return await _worker.run(function, *arguments)
