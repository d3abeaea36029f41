"""What errors look like over HTTP: every one has the shape of serve/wire/errors.py.

A path or method that there isn't: which methods there are, and the error that says so.

JSON of any length, made in slices: a long answer never holds the event loop for long.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Iterator
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from serve.gateway.request_log import note_error
from serve.http_api.disconnect import ClientDisconnected
from serve.wire.errors import RequestError

log = logging.getLogger("torsor")

NOT_ALLOWED = 405
CLIENT_GONE = 499  # nginx's status for it; nobody reads the answer


def explain_errors(app: FastAPI) -> None:
    """Let an app answer all errors as `answer_to` does."""

    async def explain(request: Request, error: Exception) -> Response:
        return answer_to(error, request)

    for kind in (RequestError, ClientDisconnected, ClientDisconnect, HTTPException, Exception):
        app.add_exception_handler(kind, explain)


async def or_error(http: Request, work: Awaitable[Response]) -> Response:
    """The answer of `work`, or of the error that it ends in."""
    try:
        return await work
    except Exception as error:
        return answer_to(error, http)


def answer_to(error: Exception, request: Request) -> Response:
    """The answer that an error gives; one that isn't foreseen goes to the log, and not out."""
    match error:
        case RequestError():
            return error_response(error)
        case ClientDisconnected() | ClientDisconnect():
            return Response(status_code=CLIENT_GONE)
        case HTTPException():
            allowed = allowed_methods(request) if error.status_code == NOT_ALLOWED else ""
            return missing_response(request.method, request.url.path, allowed)
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(RequestError("internal", "the server failed; see its log"))


def error_response(error: RequestError) -> JSONResponse:
    """The error as an answer of its own."""
    note_error(error.code)
    headers = {"WWW-Authenticate": "Bearer"} if error.code == "unauthenticated" else {}
    if error.retry_after_s is not None:  # whole seconds, so that it really fits then
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return JSONResponse(error.body(), error.http_status, headers)


def missing(method: str, path: str, allowed: str = "") -> RequestError:
    """The error of a method and path that nothing answers; `allowed`: methods that the path has."""
    if allowed:
        sentence = f"found {method} {path}, expected {allowed}; /docs.json lists methods and paths"
        return RequestError("method_not_allowed", sentence)
    sentence = f"found {method} {path}: there is no such path; /docs.json lists methods and paths"
    return RequestError("not_found", sentence)


def missing_response(method: str, path: str, allowed: str = "") -> JSONResponse:
    """That error as an answer."""
    error = missing(method, path, allowed)
    note_error(error.code)
    return JSONResponse(error.body(), error.http_status, allow_header(allowed))


def allowed_methods(request: Request) -> str:
    """The methods that a path of the app has, as the header Allow says them; "": no such path."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route for route in routes if route.matches(request.scope)[0] is Match.PARTIAL]
    return ", ".join(sorted({method for route in found for method in route.methods or ()}))


def allow_header(allowed: str) -> dict[str, str]:
    """The header of an answer, where there are allowed methods."""
    return {"Allow": allowed} if allowed else {}


SLICE = 64  # elements of a list that are written at once
TURN_S = 0.001  # after which others get their turn


async def json_response(page: Any) -> Response:
    """The page as an answer."""
    return Response(await json_text(page), media_type="application/json")


async def json_text(page: Any) -> str:
    """The page as JSON in ASCII, without spaces."""
    parts, since = list[str](), time.perf_counter()
    for part in json_parts(page):
        parts.append(part)
        if time.perf_counter() - since > TURN_S:
            await asyncio.sleep(0)
            since = time.perf_counter()
    return "".join(parts)


def json_parts(value: Any) -> Iterator[str]:
    """The JSON of a value in pieces, none of them long unless a string is."""
    if isinstance(value, dict) and any(map(_holds, value.values())):
        for place, (key, inner) in enumerate(value.items()):
            yield f"{',' if place else '{'}{_dump(key)}:"
            yield from json_parts(inner)
        yield "}"
    elif isinstance(value, list) and value and _nests(value[0]):
        for place, inner in enumerate(value):
            yield "," if place else "["
            yield from json_parts(inner)
        yield "]"
    elif isinstance(value, list) and len(value) > SLICE:
        for start in range(0, len(value), SLICE):
            yield f"{',' if start else '['}{_dump(value[start : start + SLICE])[1:-1]}"
        yield "]"
    else:
        yield _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _holds(value: Any) -> bool:
    return isinstance(value, dict | list)


def _nests(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_holds, inner))
