"""What errors look like over HTTP: every one has the shape of serve/wire/errors.py."""

import math
from collections.abc import Awaitable

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from serve import metrics
from serve.gateway.request_log import note_error
from serve.http_api.disconnect import ClientGone
from serve.http_api.missing import allowed_methods, missing_response
from serve.wire.errors import RequestError

NOT_ALLOWED = 405
CLIENT_GONE = 499  # nginx's status for it; nobody reads the answer


def explain_errors(app: FastAPI) -> None:
    """Let an app answer all errors as `answer_to` does."""

    async def explain(request: Request, error: Exception) -> Response:
        return answer_to(error, request)

    for kind in (RequestError, ClientGone, ClientDisconnect, HTTPException, Exception):
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
        case ClientGone() | ClientDisconnect():
            return Response(status_code=CLIENT_GONE)
        case HTTPException():
            allowed = allowed_methods(request) if error.status_code == NOT_ALLOWED else ""
            return missing_response(request.method, request.url.path, allowed)
    metrics.log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(RequestError("internal", "the server failed; see its log"))


def error_response(error: RequestError) -> JSONResponse:
    """The error as an answer of its own."""
    note_error(error.code)
    headers = {"WWW-Authenticate": "Bearer"} if error.code == "unauthenticated" else {}
    if error.retry_after_s is not None:  # whole seconds, so that it really fits then
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return JSONResponse(error.body(), error.http_status, headers)
