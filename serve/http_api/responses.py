"""Responses over HTTP: errors, and JSON of any length.

An error has the shape of serve/wire/errors.py; under /v2 it is `{"error": sentence}`, as the Open
Inference Protocol has it. Long JSON is made in slices, so it never holds the event loop for long.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from serve.gateway.request_log import note_error
from serve.http_api.disconnect import ClientDisconnected
from serve.wire.codec import shallow, to_json
from serve.wire.errors import RequestError, server_failed
from serve.wire.open_inference import InferenceFailure

log = logging.getLogger("torsor")

CLIENT_GONE = 499  # nginx's status for it; nobody reads the answer
ELEMENTS = 64  # of a list that are written at once
TURN_S = 0.001  # after which others get their turn


async def or_error(http: Request, work: Awaitable[Response]) -> Response:
    """The answer of `work`, or of the error that it ends in."""
    try:
        return await work
    except Exception as error:
        return answer_to(error, http)


def answer_to(error: Exception, http: Request) -> Response:
    """The answer that an error gives; one that isn't foreseen goes to the log, and not out."""
    path: str = http.scope["path"]
    match error:
        case RequestError():
            return error_response(error, path)
        case ClientDisconnected() | ClientDisconnect():
            return Response(status_code=CLIENT_GONE)
    log.error("%s %s failed", http.method, path, exc_info=error)
    return error_response(server_failed(), path)


def error_response(error: RequestError, path: str = "") -> JSONResponse:
    """The error as an answer of its own, in the shape of the path."""
    note_error(error.code)
    headers: dict[str, str] = {}
    if error.code == "unauthenticated":
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after_s is not None:  # whole seconds, so that it really fits then
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return JSONResponse(error_body(error, path), error.http_status, headers)


def error_body(error: RequestError, path: str) -> dict[str, Any]:
    """The error as JSON."""
    if is_open_inference(path):
        body: dict[str, Any] = to_json(InferenceFailure(error=error.message))
        return body
    return error.body()


def is_open_inference(path: str) -> bool:
    """Whether a path is below that of the Open Inference Protocol."""
    return path.startswith("/v2/")


def missing_response(method: str, path: str, allowed: str = "") -> JSONResponse:
    """The answer where no route has this method and path; `allowed`: methods that the path has."""
    answer = error_response(missing(method, path, allowed), path)
    if allowed:
        answer.headers["Allow"] = allowed
    return answer


def missing(method: str, path: str, allowed: str = "") -> RequestError:
    """The error of a method and path that nothing answers."""
    if allowed:
        sentence = f"found {method} {path}, expected {allowed}; /docs.json lists methods and paths"
        return RequestError("method_not_allowed", sentence)
    sentence = f"found {method} {path}: there is no such path; /docs.json lists methods and paths"
    return RequestError("not_found", sentence)


async def json_response(
    response: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A response of serve/wire, or other JSON, as an answer."""
    return Response(await json_text(response), status, headers, "application/json")


async def json_text(response: Any) -> str:
    """A response, or other JSON, in ASCII and without spaces."""
    parts, since = list[str](), time.perf_counter()
    for part in json_parts(response):
        parts.append(part)
        if time.perf_counter() - since > TURN_S:
            await asyncio.sleep(0)
            since = time.perf_counter()
    return "".join(parts)


def json_parts(value: Any) -> Iterator[str]:
    """The JSON of a value in pieces, none of them long unless a string is."""
    if is_dataclass(value):
        value = shallow(value)
    if isinstance(value, dict) and any(map(_holds, value.values())):
        for place, (key, inner) in enumerate(value.items()):
            yield f"{',' if place else '{'}{_dump(key)}:"
            yield from json_parts(inner)
        yield "}"
    elif isinstance(value, list | tuple) and value and _nests(value[0]):
        for place, inner in enumerate(value):
            yield "," if place else "["
            yield from json_parts(inner)
        yield "]"
    elif isinstance(value, list | tuple) and len(value) > ELEMENTS:
        for start in range(0, len(value), ELEMENTS):
            yield f"{',' if start else '['}{_dump(value[start : start + ELEMENTS])[1:-1]}"
        yield "]"
    else:
        yield _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=shallow)


def _holds(value: Any) -> bool:
    return isinstance(value, dict | list | tuple) or is_dataclass(value)


def _nests(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds, value.values()))
    return is_dataclass(value) or (isinstance(value, list | tuple) and any(map(_holds, value)))
