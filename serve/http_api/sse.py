"""Server-sent events as an ASGI answer: one `send` an event, and nothing in between.

Starlette's StreamingResponse does the same with a task group and two more generators; a stream of
characters has many small events, so what each of them passes counts.
"""

import logging
from collections.abc import AsyncIterator, Callable

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from serve.gateway.request_log import note_error
from serve.http_api.completions import event_text
from serve.http_api.disconnect import CancelOnDisconnect
from serve.wire.errors import RequestError, server_failed

log = logging.getLogger("torsor")

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventResponse(Response):
    """Events as an answer; `close` is called at the end, whoever ends it.

    An error after the start is an event of its own, and then the end.
    """

    def __init__(
        self, events: AsyncIterator[str], close: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(headers=HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]  # of the empty body that the class begins with
        self._events, self._close = events, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client goes away."""
        del scope
        try:
            with CancelOnDisconnect(receive):
                await self._send(send)
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async for event in self._events:
                await send(
                    {"type": "http.response.body", "body": event.encode(), "more_body": True}
                )
        except RequestError as error:
            await self._send_error(send, error)
        except OSError:
            return  # the client has gone
        except Exception:
            log.exception("a stream failed")
            await self._send_error(send, server_failed())
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_error(self, send: Send, error: RequestError) -> None:
        note_error(error.code)
        body = event_text(error.body()).encode()
        await send({"type": "http.response.body", "body": body, "more_body": True})
