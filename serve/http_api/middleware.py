"""Gateway over HTTP: every request gets its id, is admitted by its key, leaves a line in the log.

Routes of our own are answered here, around BentoML: a request passes some twenty coroutines of
BentoML's and Starlette's on its way to a handler, which read nothing there that we need and cost
more than a short text: 1.1 ms, and 16 KB for as long as the request is open.

Plain ASGI: a chunk of a stream costs a look at its type and two at the clock, but no task, queue or
copy.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.cancel import WriteTimeout
from serve.gateway.admission import Gateway
from serve.gateway.keys import Key
from serve.gateway.request_log import RequestRecord, note_error
from serve.http_api.body import bounded
from serve.http_api.responses import error_response, missing_response
from serve.http_api.routes import Dispatcher
from serve.wire.errors import RequestError

OPEN = ("/", "/livez", "/readyz", "/health", "/healthz", "/metrics", "/docs.json")  # need no key
OPEN_FOLDER = "/static_content/"  # of BentoML's own page
QUIET = ("/livez", "/readyz", "/health", "/healthz", "/metrics")  # asked every few seconds
Headings = Mapping[str, str]


class GatewayMiddleware:
    """ASGI middleware around BentoML's `app`; `own` routes are answered without it.

    `around` may wrap all of it, such as to let in other origins, before keys are asked for.
    """

    def __init__(
        self,
        app: ASGIApp,
        gateway: Gateway,
        own: Dispatcher,
        around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    ) -> None:
        self._app, self._gateway, self._own = app, gateway, own
        self._let_in = around(self._serve)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer why not."""
        await (self._let_in if scope["type"] == "http" else self._app)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        path = scope["path"]
        method = f"{scope['method']} {path}"
        with self._gateway.open("http", method, headers, path in QUIET) as call:
            is_own = self._own.takes(path)
            write_timeout = WriteTimeout(self._gateway.write_timeout_s)
            outgoing = Outgoing(call, scope, send, write_timeout)
            try:
                with self._place(scope["method"], path, headers) as call.key:
                    if not is_own:  # our handlers look themselves
                        receive = bounded(receive, headers.get("content-length"))
                    with write_timeout:
                        await (self._own if is_own else self._app)(scope, receive, outgoing)
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


def needs_key(method: str, path: str) -> bool:
    """Whether a path is only for who has a key: all but probes and static pages."""
    is_open = path in OPEN or path.startswith(OPEN_FOLDER)
    return not (is_open and method in ("GET", "HEAD"))


class Outgoing:
    """A `send` with the request's id in the answer's headers, which notes the status and its waits.

    BentoML's router says in plain text that there is no such path: that becomes an error of ours.
    """

    __slots__ = ("_call", "_is_replaced", "_write_timeout", "_scope", "_send")

    def __init__(
        self, call: RequestRecord, scope: Scope, send: Send, write_timeout: WriteTimeout
    ) -> None:
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
