"""Server-sent events: bytes in, chunks out, wherever the network cut them.

    data: {"choices": [...]}      more text
    data: {"error": {...}}        the stream failed; nothing comes after it
    data: [DONE]                  the stream is whole; without it the connection was lost

Lines end with \\n or \\r\\n and with nothing else: a text may hold U+2028 or U+0085, at which
`str.splitlines` would cut.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from clients.errors import ServerError, StreamBroken, TorsorError, UnexpectedAnswer
from serve.wire.codec import Json, from_json
from serve.wire.responses import Failure

# What reading JSON of another shape than ours raises
MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError)


class EventStream:
    """The events of one streaming answer; `read` turns one into chunks."""

    def __init__(self, address: str, read: Callable[[Json], list[Any]]) -> None:
        self._address, self._read = address, read
        self._rest = b""  # of a line that is not whole
        self._data: list[bytes] = []  # of an event that is not whole
        self._done = False

    def feed(self, piece: bytes) -> Iterator[Any]:
        """The chunks that this piece completes; `ServerError` at an error event."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            yield from self._take(line.removesuffix(b"\r"))

    def end(self) -> None:
        """The bytes are at their end: `StreamBroken` if the stream is not."""
        if not self._done:
            raise StreamBroken(self._address, "the stream ended without [DONE]")

    def _take(self, line: bytes) -> list[Any]:
        if line.startswith(b"data:"):
            self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
        if line or not self._data:  # an empty line ends an event; comments and names say nothing
            return []
        event, self._data = b"\n".join(self._data), []
        return self._chunks(event)

    def _chunks(self, event: bytes) -> list[Any]:
        if self._done or event == b"[DONE]":
            self._done = True
            return []
        try:
            told = json.loads(event)
            if "error" in told:
                raise error_of(told)
            return self._read(told)
        except MALFORMED as error:
            raise UnexpectedAnswer(self._address, f"the event {event[:80]!r}") from error


def error_of(told: Json, retry_after_s: float | None = None) -> TorsorError:
    """The error that an `{"error": {...}}` object holds."""
    error = from_json(Failure, told).error
    return ServerError(error.code, error.message, error.param, retry_after_s)
