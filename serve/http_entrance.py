"""The way in over HTTP: every request gets its id, passes the gate, and leaves a line in the log.

Plain ASGI: a chunk of a stream costs a look at its type and two at the clock, but no task, queue or
copy.
"""

from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.bodies import bounded
from serve.call import Call, note_error
from serve.direct import Paths
from serve.entrance import Entrance
from serve.error_answers import error_response
from serve.missing import missing_response
from serve.patience import Patience
from serve.wire.errors import RequestError

OPEN = ("/", "/livez", "/readyz", "/healthz", "/metrics", "/docs.json")  # need no key
OPEN_FOLDER = "/static_content/"  # of BentoML's own page
QUIET = ("/livez", "/readyz", "/healthz", "/metrics")  # asked every few seconds


class HttpEntrance:
    """ASGI middleware around everything that answers; some paths are answered `direct`ly."""

    def __init__(
        self, app: ASGIApp, entrance: Entrance, direct: Callable[[], Paths] = dict
    ) -> None:
        self._app, self._entrance, self._direct = app, entrance, direct()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer why not."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        path = scope["path"]
        method = f"{scope['method']} {path}"
        with self._entrance.open("http", method, headers, path in QUIET) as call:
            app = self._way(scope["method"], path, headers.get("content-type", ""))
            patience = Patience(self._entrance.patience_s)
            named = name_answer(call, scope, watch_writes(send, patience))
            try:
                with self._entrance.admit(call, headers, needs_key(scope["method"], path)):
                    if app is self._app:  # the others look themselves
                        receive = bounded(receive, headers.get("content-length"))
                    with patience.watch():
                        await app(scope, receive, named)
                    if patience.is_over:
                        call.error = "timeout"
            except RequestError as error:
                if call.status is None:
                    await error_response(error)(scope, receive, named)
                note_error(error.code)  # an answer that has begun ends here, and is not whole
            finally:
                call.route = getattr(scope.get("route"), "path", None)  # where a router found one

    def _way(self, method: str, path: str, kind: str) -> ASGIApp:
        """What answers: forms, which BentoML's own paths take too, go the long way."""
        direct = self._direct.get((method, path))
        return self._app if direct is None or (kind and "json" not in kind) else direct


def needs_key(method: str, path: str) -> bool:
    """Whether a path is only for who has a key: all but probes and static pages."""
    is_open = path in OPEN or path.startswith(OPEN_FOLDER)
    return not (is_open and method in ("GET", "HEAD"))


def name_answer(call: Call, scope: Scope, send: Send) -> Send:
    """A `send` that puts the request's id into the answer's headers, and notes the status.

    BentoML's router says in plain text that there is no such path: that becomes an error of ours.
    """
    request_id = (b"x-request-id", call.request_id.encode())
    replaced = False

    def named(message: Message) -> Awaitable[None]:
        nonlocal replaced
        if replaced:
            return _nothing()
        if message["type"] == "http.response.start":
            call.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), request_id]}
            if call.status in (404, 405):
                headers = Headers(raw=message["headers"])
                replaced = headers.get("content-type", "").startswith("text/plain")
                if replaced:
                    return _send_missing(call, scope, headers.get("allow", ""), send)
        return send(message)

    return named


def watch_writes(send: Send, patience: Patience) -> Send:
    """A `send` that says when it waits."""

    async def watched(message: Message) -> None:
        patience.begin()
        await send(message)
        patience.end()

    return watched


async def _send_missing(call: Call, scope: Scope, allowed: str, send: Send) -> None:
    answer = missing_response(scope["method"], scope["path"], allowed)
    answer.headers["x-request-id"] = call.request_id
    start = {"type": "http.response.start", "status": call.status, "headers": answer.raw_headers}
    await send(start)
    body = b"" if scope["method"] == "HEAD" else answer.body
    await send({"type": "http.response.body", "body": body})


async def _nothing() -> None:
    """What is left of an answer that another one has taken the place of."""
