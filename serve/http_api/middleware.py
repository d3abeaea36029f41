"""The short way to what answers requests, around the frameworks.

A request passes some twenty coroutines of BentoML's, Starlette's and FastAPI's on its way to our
function. They read nothing there that we need, and cost more than a short text: 1.1 ms, and 16 KB
for as long as the request is open. Paths without names in them, whose function takes the request as
it is, are answered here; everything else about them, such as their documentation, is FastAPI's.

The way in over HTTP: every request gets its id, passes the gate, and leaves a line in the log.

Plain ASGI: a chunk of a stream costs a look at its type and two at the clock, but no task, queue or
copy.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from bentoml._internal.configuration.containers import BentoMLContainer
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.cancel import WriteTimeout
from serve.gateway.admission import Gateway
from serve.gateway.keys import Key
from serve.gateway.request_log import Call, note_error
from serve.http_api.body import bounded
from serve.http_api.responses import error_response, missing_response, or_error
from serve.wire.errors import RequestError

Paths = Mapping[tuple[str, str], ASGIApp]  # by method and path


def direct_paths(app: FastAPI, more: Sequence[Route] = ()) -> Paths:
    """The paths of an app that can be answered without it, and those of more routes.

    Where BentoML is set to let in other origins (CORS), they are let in here too.
    """
    routes = [r for r in app.routes if isinstance(r, APIRoute) and takes_request(r)]
    found = {(method, r.path): Direct(r) for r in (*routes, *more) for method in r.methods or ()}
    if not BentoMLContainer.http.cors.enabled.get():
        return found
    options: Any = BentoMLContainer.access_control_options.get()
    return {asked: CORSMiddleware(answer, **options) for asked, answer in found.items()}


def takes_request(route: Route) -> bool:
    """Whether a function asks for nothing but the request, and answers with a whole response."""
    signature = inspect.signature(route.endpoint)
    asked = [parameter.annotation for parameter in signature.parameters.values()]
    return "{" not in route.path and asked == [Request] and signature.return_annotation is Response


class Direct:
    """A route's function as an ASGI app; its errors look as they do everywhere."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._answer: Callable[[Request], Awaitable[Response]] = route.endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["route"] = self._route
        http = Request(scope, receive, send)
        answer = await or_error(http, self._answer(http))
        await answer(scope, receive, send)


OPEN = ("/", "/livez", "/readyz", "/healthz", "/metrics", "/docs.json")  # need no key
OPEN_FOLDER = "/static_content/"  # of BentoML's own page
QUIET = ("/livez", "/readyz", "/healthz", "/metrics")  # asked every few seconds
Headings = Mapping[str, str]


class GatewayMiddleware:
    """ASGI middleware around everything that answers; some paths are answered `direct`ly."""

    def __init__(self, app: ASGIApp, gateway: Gateway, direct: Callable[[], Paths] = dict) -> None:
        self._app, self._gateway, self._direct = app, gateway, direct()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer why not."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        path = scope["path"]
        method = f"{scope['method']} {path}"
        with self._gateway.open("http", method, headers, path in QUIET) as call:
            app = self._way(scope["method"], path, headers.get("content-type", ""))
            write_timeout = WriteTimeout(self._gateway.write_timeout_s)
            outgoing = Outgoing(call, scope, send, write_timeout)
            try:
                with self._place(scope["method"], path, headers) as call.key:
                    if app is self._app:  # the others look themselves
                        receive = bounded(receive, headers.get("content-length"))
                    with write_timeout:
                        await app(scope, receive, outgoing)
                    if write_timeout.has_cancelled:
                        call.error = "timeout"
            except RequestError as error:
                if call.status is None:
                    await error_response(error)(scope, receive, outgoing)
                note_error(error.code)  # an answer that has begun ends here, and is not whole
            finally:
                call.route = getattr(scope.get("route"), "path", None)  # where a router found one

    def _place(
        self, asked: str, path: str, headers: Headings
    ) -> AbstractContextManager[Key | None]:
        return self._gateway.admit(headers) if needs_key(asked, path) else nullcontext()

    def _way(self, method: str, path: str, kind: str) -> ASGIApp:
        """What answers: forms, which BentoML's own paths take too, go the long way."""
        direct = self._direct.get((method, path))
        return self._app if direct is None or (kind and "json" not in kind) else direct


def needs_key(method: str, path: str) -> bool:
    """Whether a path is only for who has a key: all but probes and static pages."""
    is_open = path in OPEN or path.startswith(OPEN_FOLDER)
    return not (is_open and method in ("GET", "HEAD"))


class Outgoing:
    """A `send` with the request's id in the answer's headers, which notes the status and its waits.

    BentoML's router says in plain text that there is no such path: that becomes an error of ours.
    """

    __slots__ = ("_call", "_is_replaced", "_write_timeout", "_scope", "_send")

    def __init__(self, call: Call, scope: Scope, send: Send, write_timeout: WriteTimeout) -> None:
        self._call, self._scope, self._send, self._write_timeout = call, scope, send, write_timeout
        self._is_replaced = False

    async def __call__(self, message: Message) -> None:
        """Send a message of an answer, or what has taken its place."""
        if self._is_replaced:
            return
        if message["type"] == "http.response.start":
            request_id = (b"x-request-id", self._call.request_id.encode())
            message = {**message, "headers": [*message.get("headers", ()), request_id]}
            self._call.status = message["status"]
            if self._call.status in (404, 405):
                headers = Headers(raw=message["headers"])
                if headers.get("content-type", "").startswith("text/plain"):
                    return await self._replace(headers.get("allow", ""))
        self._write_timeout.begin()  # and not `_write`: a stream has many chunks
        await self._send(message)
        self._write_timeout.end()

    async def _write(self, message: Message) -> None:
        self._write_timeout.begin()
        await self._send(message)
        self._write_timeout.end()

    async def _replace(self, allowed: str) -> None:
        self._is_replaced = True
        method, path = self._scope["method"], self._scope["path"]
        answer = missing_response(method, path, allowed)
        answer.headers["x-request-id"] = self._call.request_id
        start = {"type": "http.response.start", "status": self._call.status}
        await self._write({**start, "headers": answer.raw_headers})
        body = b"" if method == "HEAD" else answer.body
        await self._write({"type": "http.response.body", "body": body})
