"""A path or method that there isn't: which methods there are, and the error that says so."""

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.routing import Match, Route

from serve.gateway.request_log import note_error
from serve.wire.errors import RequestError


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
