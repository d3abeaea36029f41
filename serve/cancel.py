"""Contexts that may cancel what runs inside them, such as for a client that has gone."""

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self


class Cancelling(ABC):
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
