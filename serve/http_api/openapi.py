"""/docs.json: what every route takes and answers, as OpenAPI says it.

BentoML would write the document in a version whose schemas can't say what ours say, and promise
errors that it doesn't send.
"""

import asyncio
import functools
import re
import threading
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serve.http_api.responses import is_open_inference
from serve.http_api.routes import ModelsOf, Route
from serve.wire import responses as pages
from serve.wire.limits import MAX_POINTS

Json = dict[str, Any]
OPENAPI_VERSION = "3.1.0"
FAILED = "What was found, what was expected, and the remedy."
PROBES = ("/livez", "/readyz")  # they answer alike when they fail
TEXT = {"type": "string"}
WHOLE = {"type": "integer", "minimum": 0, "maximum": MAX_POINTS}
NUMBERS = {"start": WHOLE, "limit": WHOLE | {"minimum": 1}}  # in query strings
INFO = {
    "title": "Torsor",
    "description": "Streams characters and answers ablation queries.",
    "version": "1",
}


def docs_route(routes: Sequence[Route]) -> Route:
    """The route of the document, which is made when it is first asked for, off the event loop."""
    make, only_once = functools.cache(lambda: document(routes)), threading.Lock()

    def made_once() -> Json:
        with only_once:
            return make()

    async def docs(models_of: ModelsOf, http: Request) -> Response:
        del models_of, http
        return JSONResponse(await asyncio.to_thread(made_once))

    return Route("GET", "/docs.json", docs, is_shown=False)


def document(routes: Sequence[Route]) -> Json:
    """The whole document."""
    paths: dict[str, Json] = {}
    for route in routes:
        if route.is_shown:
            paths.setdefault(route.path, {})[route.method.lower()] = operation(route)
    return {"openapi": OPENAPI_VERSION, "info": INFO, "paths": paths}


def operation(route: Route) -> Json:
    """What is said of one route."""
    told: Json = {"summary": route.summary or _title(route.handler.__name__)}
    if not route.summary:
        words = re.sub(r"\W", "_", f"{route.handler.__name__}{route.path}")
        told["operationId"] = f"{words}_{route.method.lower()}"
    if parameters := _parameters(route):
        told["parameters"] = parameters
    if route.asks is not None:
        told["requestBody"] = _body(route)
    return {**told, "responses": _responses(route)}


def _parameters(route: Route) -> list[Json]:
    named = [
        {"name": n, "in": "path", "required": True, "schema": TEXT | {"title": _title(n)}}
        for n in route.parameters
    ]
    asked = [
        {"name": n, "in": "query", "required": False, "schema": NUMBERS[n]} for n in route.numbers
    ]
    return named + asked


def _responses(route: Route) -> Json:
    answers, media = route.answers, route.media
    content = {} if answers is None else _json(_schema(answers))
    content |= _content(media, TEXT) if media else {}
    good = {"description": route.about or answers.__doc__, "content": content}
    if route.path in PROBES:
        return {"200": good, "503": good}
    if not route.fails:
        return {"200": good}
    error = pages.InferenceErrorPage if is_open_inference(f"{route.path}/") else pages.ErrorPage
    failed = {"description": FAILED, "content": _json(_schema(error))}
    return {str(route.status): good, "4XX": failed, "5XX": failed}


def _body(route: Route) -> Json:
    # BentoML reads no body as {}: its own endpoints need one only where a field is required.
    kind: type[BaseModel] = route.asks
    needed = not route.takes_forms or any(f.is_required() for f in kind.model_fields.values())
    return {"required": needed, "content": _json(_schema(kind, "validation"))}


def _title(name: str) -> str:
    return name.replace("_", " ").title()


def _json(schema: Json) -> Json:
    return _content("application/json", schema)


def _content(kind: str, schema: Json) -> Json:
    return {kind: {"schema": schema}}


def _schema(kind: type[BaseModel], mode: Any = "serialization") -> Json:
    schema = kind.model_json_schema(mode=mode)
    inlined: Json = _inlined(schema, schema.pop("$defs", {}))
    return inlined


def _inlined(schema: Any, definitions: Json) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}
