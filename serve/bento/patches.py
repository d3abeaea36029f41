"""Patches of uvicorn and BentoML; each says what it is against, and a canary when it can go.

| patch            | pinned         | the behaviour                                               |
|------------------|----------------|-------------------------------------------------------------|
| DecliningProtocol| uvicorn 0.54   | the body of a request that offers HTTP/2 or a WebSocket, as |
|                  |                | all of Java's do, is lost: httptools ends it with its head  |
| leave_out_timers | bentoml 1.4.40 | the timer of a request's limit isn't stopped once it is     |
|                  |                | answered, and holds the request's context and trace for     |
|                  |                | the whole limit: 150 MB after eleven minutes at 50 a second |

A server may decline an offer by answering in HTTP/1.1: here the head is read again, without it. The
engine has limits of time of its own. tests/serve/bento/test_canaries.py fails once either is mended
upstream.
"""

import sys

import httptools
from bentoml._internal.server.http import traffic
from starlette.types import Receive, Scope, Send
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
