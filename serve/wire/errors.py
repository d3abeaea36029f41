"""Errors of a request, once for HTTP and gRPC.

| code                   | HTTP | gRPC               | when                                        |
|------------------------|------|--------------------|---------------------------------------------|
| invalid_request        | 400  | INVALID_ARGUMENT   | a field is not as expected                  |
| unauthenticated        | 401  | UNAUTHENTICATED    | no API key, or one that isn't known         |
| forbidden              | 403  | PERMISSION_DENIED  | the API key may not do this                 |
| not_found              | 404  | NOT_FOUND          | no such model or path                       |
| method_not_allowed     | 405  | UNIMPLEMENTED      | the path has other methods, named in Allow  |
| too_large              | 413  | RESOURCE_EXHAUSTED | the body is larger than the limit           |
| unsupported_media_type | 415  | INVALID_ARGUMENT   | the body's encoding or type is unknown here |
| headers_too_large      | 431  | RESOURCE_EXHAUSTED | the head of an HTTP request is too large    |
| queue_full             | 429  | RESOURCE_EXHAUSTED | too many wait; Retry-After says when        |
| rate_limited           | 429  | RESOURCE_EXHAUSTED | a limit of the API key, which is named      |
| model_error            | 500  | INTERNAL           | this stream met a value that is not finite  |
| internal               | 500  | INTERNAL           | our mistake                                 |
| unavailable            | 503  | UNAVAILABLE        | starting, draining or stopped               |
| timeout                | 504  | DEADLINE_EXCEEDED  | a limit of time, named in the message       |

Retry-After goes with `queue_full`, and with `rate_limited` where the rate is the limit: it is then
the time until the next request fits. gRPC says it as `torsor-retry-after-s`, in trailing metadata.
"""

from typing import Any

from serve.wire.codec import to_json
from serve.wire.responses import Failure, Problem

HTTP_STATUS = {
    "invalid_request": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "too_large": 413,
    "unsupported_media_type": 415,
    "headers_too_large": 431,
    "queue_full": 429,
    "rate_limited": 429,
    "model_error": 500,
    "internal": 500,
    "unavailable": 503,
    "timeout": 504,
}
GRPC_STATUS = {
    "invalid_request": "INVALID_ARGUMENT",
    "unauthenticated": "UNAUTHENTICATED",
    "forbidden": "PERMISSION_DENIED",
    "not_found": "NOT_FOUND",
    "method_not_allowed": "UNIMPLEMENTED",
    "too_large": "RESOURCE_EXHAUSTED",
    "unsupported_media_type": "INVALID_ARGUMENT",
    "headers_too_large": "RESOURCE_EXHAUSTED",
    "queue_full": "RESOURCE_EXHAUSTED",
    "rate_limited": "RESOURCE_EXHAUSTED",
    "model_error": "INTERNAL",
    "internal": "INTERNAL",
    "unavailable": "UNAVAILABLE",
    "timeout": "DEADLINE_EXCEEDED",
}
RETRY_AFTER_S = 1.0  # of a full queue, which empties fast
MAX_MESSAGE, MAX_FIELD = 1000, 200  # characters; names that clients make up can be long


class RequestError(Exception):
    """A request that can't be answered: code, a sentence (found, expected, remedy), the field.

    `retry_after_s`: the seconds after which it is worth asking again, where they are known.
    """

    def __init__(
        self,
        code: str,
        message: str,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message = code, _printable(message, MAX_MESSAGE)
        self.field = None if field is None else _printable(field, MAX_FIELD)
        known = RETRY_AFTER_S if code == "queue_full" else None
        self.retry_after_s = known if retry_after_s is None else retry_after_s

    @property
    def http_status(self) -> int:
        """The HTTP status that goes with the code."""
        return HTTP_STATUS[self.code]

    @property
    def grpc_status(self) -> str:
        """The name of the gRPC status that goes with the code."""
        return GRPC_STATUS[self.code]

    def body(self) -> dict[str, Any]:
        """The error object, shaped as OpenAI clients read it."""
        kind = "invalid_request_error" if self.http_status < 500 else "server_error"
        problem = Problem(message=self.message, type=kind, param=self.field, code=self.code)
        body: dict[str, Any] = to_json(Failure(error=problem))
        return body


def server_failed() -> RequestError:
    """A mistake of the server's own; its log says more, the client learns no more."""
    return RequestError("internal", "the server failed; see its log")


def shutting_down() -> RequestError:
    """A request that comes while the server stops."""
    return RequestError("unavailable", "the server is shutting down; try another one")


def invalid(field: str, problem: str) -> RequestError:
    """A field that isn't as expected."""
    return RequestError("invalid_request", f"{_printable(field, MAX_FIELD)}: {problem}", field)


def _printable(text: str, length: int) -> str:
    # Lone surrogates, which JSON can carry, are no UTF-8; control characters no header. Cut first:
    # no character becomes shorter.
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: length + 1])
    return shown if len(shown) <= length else shown[: length - 1] + "…"
