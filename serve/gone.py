"""Clients that go away before their answer is ready."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

Answer = TypeVar("Answer")


class ClientGone(Exception):
    """The client has closed the connection before its answer was ready."""


async def until_gone(receive: Receive) -> None:
    """Until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(
    http: Request, work: Coroutine[Any, Any, Answer], close: Callable[[], None] = lambda: None
) -> Answer:
    """The answer of `work`; `ClientGone` if the client goes away first: work is then cancelled."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(until_gone(http.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return await task
    finally:
        task.cancel()
        gone.cancel()
        close()
