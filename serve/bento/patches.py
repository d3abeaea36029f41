"""Requests that offer to go on in another protocol, such as HTTP/2 (h2c), as all of Java's do.

A server may decline by answering in HTTP/1.1. But httptools takes such a request to end with its
head, and uvicorn hands on an empty body. Here the head is read again, without the offer.

BentoML's limit of time for a request, left out: the engine has limits of its own.

Its timer isn't stopped once the request has been answered. It holds the request's context, with
the trace's span, for the whole limit: at 50 requests a second for eleven minutes, 150 MB.
"""

import sys

import httptools
from bentoml._internal.server.http import traffic
from starlette.types import Receive, Scope, Send
from uvicorn import config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

OFFER = (b"upgrade", b"http2-settings")


class DecliningProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which declines all offers, WebSocket's too, and keeps the bodies."""

    _latest = b""

    def data_received(self, data: bytes) -> None:
        """Take bytes of the connection."""
        self._latest = data
        super().data_received(data)
        self._latest = b""

    def _should_upgrade(self) -> bool:
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Called where httptools has stopped after the head of a request."""
        if self.scope["method"] == "CONNECT":  # offers nothing, and what follows is no body
            return
        stopped = sys.exc_info()[1]
        assert isinstance(stopped, httptools.HttpParserUpgrade)
        rest = self._latest[stopped.args[0] :]
        self.cycle.more_body = True
        self.cycle.message_event.clear()
        self.parser = httptools.HttpRequestParser(_AfterHead(self))
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.parser.feed_data(self._head())
        if rest:
            self.data_received(rest)

    def _head(self) -> bytes:
        kept = [(name, value) for name, value in self.headers if name not in OFFER]
        lines = [name + b": " + _without_offer(name, value) for name, value in kept]
        first = self.scope["method"].encode() + b" " + self.url + b" HTTP/1.1"
        return b"\r\n".join((first, *lines, b"", b""))


class _AfterHead:
    """Hands on what a parser finds after the first head, which the protocol knows."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol, self._is_known = protocol, True

    def on_message_begin(self) -> None:
        if not self._is_known:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_known:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_known:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._is_known:
            self._protocol.on_headers_complete()
        self._is_known = False

    def on_body(self, body: bytes) -> None:
        self._protocol.on_body(body)

    def on_message_complete(self) -> None:
        self._protocol.on_message_complete()


def decline_upgrades() -> None:
    """To be called before the web server starts."""
    config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{DecliningProtocol.__name__}"


def _without_offer(name: bytes, value: bytes) -> bytes:
    if name != b"connection":
        return value
    tokens = [token.strip() for token in value.split(b",")]
    return b", ".join(token for token in tokens if token.lower() not in OFFER)


class NoTimer(traffic.TimeoutMiddleware):
    """BentoML's middleware without its timer, and without the task that it runs a request in."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on."""
        await self.app(scope, receive, send)


def leave_out_timers() -> None:
    """To be called before BentoML builds its app."""
    traffic.TimeoutMiddleware = NoTimer  # type: ignore[misc]
