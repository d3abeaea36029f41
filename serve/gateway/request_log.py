"""One request of a client, from its arrival to its line in the log, over HTTP or gRPC.

    with call:                        the gateway opens it, around all that the request does
        note_streams(streams, ...)    whoever opens streams says so
        note_query(model, ...)    whoever runs a model without streams
        note_error(code)          whoever answers an error says so

At its end comes one line in the log, and one span a stream where traces are collected. Neither
holds a prompt, a text or a key.
"""

import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, Self

from serve import metrics
from serve.engine.stream import Stream
from serve.gateway.keys import Key
from serve.gateway.tracing import Tracing

log = logging.getLogger("torsor")

REQUEST_ID = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")  # printable ASCII, at most 128 characters
MAX_METHOD = 200  # characters; paths that clients make up can be long

_current: ContextVar["RequestRecord | None"] = ContextVar("call", default=None)


class RequestRecord:
    """A request; `quiet` ones, such as probes, leave no line."""

    def __init__(
        self, wire: str, method: str, headers: Mapping[str, str], tracing: Tracing, quiet: bool
    ) -> None:
        self.wire, self.method, self.quiet = wire, method[:MAX_METHOD], quiet
        self.request_id = choose_request_id(headers.get("x-request-id"))
        self.route: str | None = None  # what answers, without names in it; None: nothing does
        self.key: Key | None = None
        self.status: str | int | None = None  # as the wire says it
        self.error: str | None = None  # the code
        self._headers, self._tracing = headers, tracing
        self._arrived = time.monotonic()
        self._streams: list[Stream] = []
        self._model: str | None = None  # where no stream says it
        self._ablation: str | None = None

    def __enter__(self) -> Self:
        self._token: Token[RequestRecord | None] = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
        seconds = time.monotonic() - self._arrived
        metrics.count_request(self.wire, self.route or "none", self.status, seconds)
        if not self.quiet:
            log.info("request", extra={"fields": self.summary()})
        if self._tracing.on:
            for stream in self._streams:
                self._tracing.record(stream, self._span(stream), self._headers)

    def add_streams(self, streams: Sequence[Stream], ablation: str | None) -> None:
        """These streams answer the request; `ablation` is the hash of what they run under."""
        self._streams += streams
        self._ablation = ablation

    def name_model(self, model: str, ablation: str | None) -> None:
        """The request is answered by this model, without streams."""
        self._model, self._ablation = model, ablation

    def summary(self) -> dict[str, Any]:
        """What the line says. Times in seconds; counts over all streams; the first one's waits."""
        streams = self._streams
        reasons = dict.fromkeys(reason_of(stream) for stream in streams)
        errors = [stream.error.code for stream in streams if stream.error is not None]
        return {
            **self._asked(),
            "status": self.status,
            "model": streams[0].bundle.name if streams else self._model,
            "ablation": self._ablation,
            "streams": len(streams),
            "prompt_characters": len(streams[0].forced) if streams else 0,
            "written_characters": sum(stream.num_written for stream in streams),
            "queue_s": _least(waited_s(stream) for stream in streams),
            "first_s": _least(first_s(stream) for stream in streams),
            "total_s": round(time.monotonic() - self._arrived, 6),
            "finish_reason": ",".join(reasons) or None,
            "error": self.error or next(iter(errors), None),
        }

    def _asked(self) -> dict[str, Any]:
        key = None if self.key is None else self.key.name
        return {
            "request_id": self.request_id,
            "key": key,
            "wire": self.wire,
            "method": self.method,
        }

    def _span(self, stream: Stream) -> dict[str, Any]:
        return {
            **self._asked(),
            "model": stream.bundle.name,
            "ablation": self._ablation,
            "prompt_characters": len(stream.forced),
            "written_characters": stream.num_written,
            "queue_s": waited_s(stream),
            "first_s": first_s(stream),
            "finish_reason": reason_of(stream),
            "error": stream.error.code if stream.error is not None else self.error,
        }


def current_request() -> RequestRecord | None:
    """The request that this code works for, if it works for one."""
    return _current.get()


def current_key() -> Key | None:
    """The key of the current request; None where the server wants none."""
    call = _current.get()
    return None if call is None else call.key


def note_streams(streams: Sequence[Stream], report: Mapping[str, Any] | None) -> None:
    """The current request is answered by these streams; `report` is that of the ablation."""
    if (call := _current.get()) is not None:
        call.add_streams(streams, None if report is None else report["hash"])


def note_query(model: str, report: Mapping[str, Any] | None) -> None:
    """The current request is answered by this model, without streams."""
    if (call := _current.get()) is not None:
        call.name_model(model, None if report is None else report["hash"])


def note_error(code: str) -> None:
    """The current request is answered by an error."""
    if (call := _current.get()) is not None:
        call.error = code


def choose_request_id(given: str | None) -> str:
    """The client's own, if it is printable ASCII of at most 128 characters, else a new one."""
    if given is not None and REQUEST_ID.fullmatch(given):
        return given
    return secrets.token_hex(16)


def reason_of(stream: Stream) -> str:
    """How a stream ended; one that its client has just left is cancelled before the engine ends
    it."""
    return stream.finish_reason or "cancelled"


def waited_s(stream: Stream) -> float | None:
    """Seconds from arrival to a slot; None: it never got one."""
    return round(stream.admitted_at - stream.created, 6) if stream.admitted_at else None


def first_s(stream: Stream) -> float | None:
    """Seconds from arrival to the first written character; None: it wrote none."""
    return round(stream.first_at - stream.created, 6) if stream.first_at else None


def _least(values: Any) -> float | None:
    return min((value for value in values if value is not None), default=None)
