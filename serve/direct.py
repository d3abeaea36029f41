"""The short way to what answers requests, around the frameworks.

A request passes some twenty coroutines of BentoML's, Starlette's and FastAPI's on its way to our
function. They read nothing there that we need, and cost more than a short text: 1.1 ms, and 16 KB
for as long as the request is open. Paths without names in them, whose function takes the request as
it is, are answered here; everything else about them, such as their documentation, is FastAPI's.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping

from bentoml._internal.configuration.containers import BentoMLContainer
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.error_answers import answer_to

Paths = Mapping[tuple[str, str], ASGIApp]  # by method and path


def direct_paths(app: FastAPI) -> Paths:
    """The paths of an app that can be answered without it: none where BentoML is set to answer
    other origins (CORS), which it does on the long way."""
    if BentoMLContainer.http.cors.enabled.get():
        return {}
    routes = [route for route in app.routes if isinstance(route, APIRoute) and takes_request(route)]
    return {(method, r.path): Direct(r) for r in routes for method in r.methods or ()}


def takes_request(route: APIRoute) -> bool:
    """Whether a function asks for nothing but the request, and answers with a whole response."""
    signature = inspect.signature(route.endpoint)
    asked = [parameter.annotation for parameter in signature.parameters.values()]
    return "{" not in route.path and asked == [Request] and signature.return_annotation is Response


class Direct:
    """A route's function as an ASGI app; its errors look as they do everywhere."""

    def __init__(self, route: APIRoute) -> None:
        self._route = route
        self._answer: Callable[[Request], Awaitable[Response]] = route.endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["route"] = self._route
        await (await self._respond(Request(scope, receive, send)))(scope, receive, send)

    async def _respond(self, http: Request) -> Response:
        try:
            return await self._answer(http)
        except Exception as error:
            return answer_to(error, http)
