"""Routes: one table of methods, paths and handlers; dispatch, 404, 405 and /docs.json come from it.

    Route("POST", "/v1/ablations/score", score_text, asks=ScoreRequest, answers=ScorePage)

A handler takes the function that gives the served models, and the request; names in a path, such
as {model}, stand in `http.path_params`. It answers a response or raises a `RequestError`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from serve.http_api.responses import answer_to, missing_response
from serve.models import Models

ModelsOf = Callable[[], Models]  # raises `RequestError` while there are none
Handler = Callable[[ModelsOf, Request], Awaitable[Response]]
OWN = ("/v1/", "/v2/")  # below these nothing is BentoML's


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path, what answers them, and what /docs.json says of them."""

    method: str
    path: str
    handler: Handler
    asks: Any = None  # the body's model; None: there is none
    answers: Any = None  # the answer's shape, where it is JSON
    status: int = 200  # of a good answer
    media: str = ""  # of an answer that isn't JSON, or needn't be
    numbers: tuple[str, ...] = ()  # in the query string
    summary: str = ""  # in place of the handler's name
    about: str = ""  # the good answer, in place of its shape's docstring
    fails: bool = True  # False: it has no errors of its own
    is_shown: bool = True  # in /docs.json
    takes_forms: bool = False  # beside JSON; a missing body stands for an empty one

    @property
    def parameters(self) -> list[str]:
        """The names in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


class RouteTable:
    """The routes by path; what has no names in it is found at once."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._fixed: dict[str, dict[str, Route]] = {}
        self._named: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            paths = self._named if route.parameters else self._fixed
            methods = paths.setdefault(route.path, {})
            if route.method in methods:
                raise ValueError(f"found two routes of {route.method} {route.path}")
            methods[route.method] = route

    def find(self, path: str) -> tuple[Mapping[str, Route], dict[str, str]]:
        """The routes of a path by method, and the values of its names; none where there is none."""
        if (methods := self._fixed.get(path)) is not None:
            return methods, {}
        given = path.split("/")
        for pattern, methods in self._named.items():
            if (values := _values(pattern.split("/"), given)) is not None:
                return methods, values
        return {}, {}


class Dispatcher:
    """ASGI app: the handler of a request's method and path answers; errors have one shape."""

    def __init__(self, table: RouteTable, models_of: ModelsOf) -> None:
        self._table, self._models_of = table, models_of

    def takes(self, path: str) -> bool:
        """Whether this app is to answer; else BentoML is."""
        methods, _ = self._table.find(path)
        return bool(methods) or path.startswith(OWN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        methods, values = self._table.find(scope["path"])
        scope["path_params"] = values
        http = Request(scope, receive, send)
        if (route := _route_of(methods, scope["method"])) is None:
            allowed = ", ".join(sorted({*methods, *({"HEAD"} if "GET" in methods else ())}))
            answer: Response = missing_response(scope["method"], scope["path"], allowed)
        else:
            scope["route"] = route
            answer = await self._answer(route, http)
        if scope["method"] == "HEAD" and not isinstance(answer, FileResponse):
            await send_head(answer, send)  # files know how themselves
        else:
            await answer(scope, receive, send)

    async def _answer(self, route: Route, http: Request) -> Response:
        try:
            return await route.handler(self._models_of, http)
        except Exception as error:
            return answer_to(error, http)


async def send_head(answer: Response, send: Send) -> None:
    """The answer to HEAD: status and headers of GET's; what it would stream isn't begun."""
    start = {"type": "http.response.start", "status": answer.status_code}
    await send({**start, "headers": answer.raw_headers})
    await send({"type": "http.response.body", "body": b""})


def _route_of(methods: Mapping[str, Route], method: str) -> Route | None:
    return methods.get("GET" if method == "HEAD" else method)


def _values(pattern: list[str], given: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(given):
        return None
    pairs = list(zip(pattern, given, strict=True))
    if any(not one if part.startswith("{") else part != one for part, one in pairs):
        return None
    return {part[1:-1]: one for part, one in pairs if part.startswith("{")}
