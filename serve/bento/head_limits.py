"""Limits of a request's head, before any key is looked at: bytes, number and time of its headers.

uvicorn with httptools reads heads of any size, on the event loop, and waits for them without end:
one header of 64 MB would hold everything for six seconds. Too much is 431, too slow is 408, and the
connection ends. Where too many connections are open, only probes get more than a 503.
"""

import asyncio
import json
from typing import Any

from uvicorn import config

from serve.bento.patches import DecliningProtocol
from serve.native.connections import PROBES, Crowd, max_connections
from serve.wire.codec import to_json
from serve.wire.errors import HTTP_STATUS, RequestError
from serve.wire.limits import HEADER_TIMEOUT_S, MAX_HEADER_BYTES, MAX_HEADERS

PROBED = {b"/livez", b"/readyz", b"/health", b"/metrics"}  # answered where nothing else is
REASONS = {
    503: "Service Unavailable",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
}


class HeadLimits(DecliningProtocol):
    """uvicorn's protocol, which ends connections whose head is too large or too slow."""

    crowd = Crowd()
    _timer: asyncio.TimerHandle | None = None
    _is_in_head = False
    _size = _count = 0

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self.crowd.count += 1
        self._begin_head()
        if self.crowd.count > max_connections() + PROBES:
            self._refuse(self._too_crowded())

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self.crowd.count -= 1
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of the connection."""
        if self._is_in_head:
            self._size += len(data)
        super().data_received(data)
        if self._is_in_head and self._size > MAX_HEADER_BYTES:
            self._refuse(too_large(self._size))

    def on_message_begin(self) -> None:
        """The head of a request begins."""
        super().on_message_begin()
        if self._timer is None:  # of a connection that is kept alive
            self._begin_head()
        self._size = max(self._size, 1)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        self._count += 1
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole: a request may begin, unless it is too large."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        count = self._count
        self._end_head()
        if size > MAX_HEADER_BYTES or count > MAX_HEADERS:
            self._refuse(too_large(size) if size > MAX_HEADER_BYTES else too_many(count))
        elif self.crowd.count > max_connections() and self.url.partition(b"?")[0] not in PROBED:
            self._refuse(self._too_crowded())
        else:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is whole."""
        if not self.transport.is_closing():
            super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, of a request that was taken."""
        if not self.transport.is_closing():
            super().on_body(body)

    def _too_crowded(self) -> RequestError:
        self.crowd.tell()
        found = f"connections: found {self.crowd.count} open, expected at most {max_connections()}"
        told = f"{found} (max_connections); try later, or keep connections open and use them again"
        return RequestError("unavailable", told)

    def _begin_head(self) -> None:
        self._is_in_head, self._size, self._count = True, 0, 0
        self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self._time_out)

    def _end_head(self) -> None:
        self._is_in_head, self._size, self._count = False, 0, 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        if self._size == 0:  # opened ahead, and never used
            self.transport.close()
            return
        limit = f"{HEADER_TIMEOUT_S:g} s (header_timeout_s)"
        self._refuse(RequestError("timeout", f"headers: not whole after {limit}; send them faster"))

    def _refuse(self, error: RequestError) -> None:
        self._end_head()
        if self.transport.is_closing():
            return
        status = 408 if error.code == "timeout" else HTTP_STATUS[error.code]
        body = json.dumps(to_json(error.body())).encode()
        lines = (
            f"HTTP/1.1 {status} {REASONS[status]}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
        )
        self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self.transport.close()


def too_large(size: int) -> RequestError:
    """The error of a head with too many bytes."""
    sentence = f"headers: found {size} bytes or more, expected at most {MAX_HEADER_BYTES}"
    return RequestError("headers_too_large", f"{sentence} (max_header_bytes); send fewer")


def too_many(count: int) -> RequestError:
    """The error of a head with too many headers."""
    sentence = f"headers: found {count}, expected at most {MAX_HEADERS} (max_headers)"
    return RequestError("headers_too_large", f"{sentence}; send fewer")


def limit_heads() -> None:
    """To be called before the web server starts."""
    config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{HeadLimits.__name__}"
