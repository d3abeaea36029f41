"""The short way to what answers requests, around the frameworks.

A request passes some twenty coroutines of BentoML's, Starlette's and FastAPI's on its way to our
function. They read nothing there that we need, and cost more than a short text: 1.1 ms, and 16 KB
for as long as the request is open. Paths without names in them, whose function takes the request as
it is, are answered here; everything else about them, such as their documentation, is FastAPI's.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bentoml._internal.configuration.containers import BentoMLContainer
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.http_api.responses import or_error

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
