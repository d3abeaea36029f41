"""Clients that go away before they have their answer."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from serve.cancel import CancelScope

Answer = TypeVar("Answer")


class ClientDisconnected(Exception):
    """The client has closed the connection before its answer was ready."""


class CancelOnDisconnect(CancelScope):
    """A context whose inside is cancelled once the client closes the connection.

    One task looks at the connection; to wait for the work beside it, as asyncio.wait does, takes
    another one and 1.7 KB for as long as the request is open.
    """

    __slots__ = ("_gone", "_receive")

    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self._receive = receive

    def _begin(self) -> None:
        self._gone = asyncio.ensure_future(until_disconnected(self._receive))
        self._gone.add_done_callback(lambda _: self.cancel())

    def _end(self) -> None:
        self._gone.cancel()  # where it has failed, as for a body that is too long, nobody hears it


async def until_disconnected(receive: Receive) -> None:
    """Until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_on_disconnect(
    http: Request, work: Coroutine[Any, Any, Answer], close: Callable[[], None] = lambda: None
) -> Answer:
    """The answer of `work`, cancelled if the client goes away first: `ClientDisconnected`."""
    try:
        with CancelOnDisconnect(http.receive):
            return await work
        raise ClientDisconnected
    finally:
        close()
