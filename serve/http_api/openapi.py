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

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import ComplexSchema, DataclassSchema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serve.http_api.responses import is_open_inference
from serve.http_api.routes import ModelsOf, Route
from serve.wire.codec import JsonObject, Place, places
from serve.wire.limits import MAX_POINTS
from serve.wire.open_inference import InferenceFailure
from serve.wire.responses import Failure

OPENAPI_VERSION = "3.1.0"
FAILED = "What was found, what was expected, and the remedy."
PROBES = ("/livez", "/readyz", "/health")  # they answer alike when they fail
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

    def made_once() -> JsonObject:
        with only_once:
            return make()

    async def docs(models_of: ModelsOf, http: Request) -> Response:
        del models_of, http
        return JSONResponse(await asyncio.to_thread(made_once))

    return Route("GET", "/docs.json", docs, is_shown=False)


def document(routes: Sequence[Route]) -> JsonObject:
    """The whole document."""
    paths: dict[str, JsonObject] = {}
    for route in routes:
        if route.is_shown:
            paths.setdefault(route.path, {})[route.method.lower()] = operation(route)
    return {"openapi": OPENAPI_VERSION, "info": INFO, "paths": paths}


def operation(route: Route) -> JsonObject:
    """The OpenAPI operation of one route."""
    told: JsonObject = {"summary": route.summary or _title(route.handler.__name__)}
    if not route.summary:
        words = re.sub(r"\W", "_", f"{route.handler.__name__}{route.path}")
        told["operationId"] = f"{words}_{route.method.lower()}"
    if parameters := _parameters(route):
        told["parameters"] = parameters
    if route.asks is not None:
        told["requestBody"] = _body(route)
    return {**told, "responses": _responses(route)}


def _parameters(route: Route) -> list[JsonObject]:
    named = [
        {"name": n, "in": "path", "required": True, "schema": TEXT | {"title": _title(n)}}
        for n in route.parameters
    ]
    asked = [
        {"name": n, "in": "query", "required": False, "schema": NUMBERS[n]} for n in route.numbers
    ]
    return named + asked


def _responses(route: Route) -> JsonObject:
    answers, media = route.answers, route.media
    content = {} if answers is None else _json(schema_of(answers))
    content |= _content(media, TEXT) if media else {}
    good = {"description": route.about or answers.__doc__, "content": content}
    if route.path in PROBES:
        return {"200": good, "503": good}
    if not route.fails:
        return {"200": good}
    error = InferenceFailure if is_open_inference(f"{route.path}/") else Failure
    failed = {"description": FAILED, "content": _json(schema_of(error))}
    return {str(route.status): good, "4XX": failed, "5XX": failed}


def _body(route: Route) -> JsonObject:
    # BentoML reads no body as {}: its own endpoints need one only where a field is required.
    kind: type[BaseModel] = route.asks
    needed = not route.takes_forms or any(f.is_required() for f in kind.model_fields.values())
    return {"required": needed, "content": _json(schema_of(kind, "validation"))}


def _title(name: str) -> str:
    return name.replace("_", " ").title()


def _json(schema: JsonObject) -> JsonObject:
    return _content("application/json", schema)


def _content(kind: str, schema: JsonObject) -> JsonObject:
    return {kind: {"schema": schema}}


class _Schemas(GenerateJsonSchema):
    """pydantic's schemas, of responses as serve/wire/codec.py writes them."""

    def dataclass_schema(self, schema: DataclassSchema) -> JsonObject:
        found, moved = super().dataclass_schema(schema), places(schema["cls"])
        for told in found["properties"].values():
            told.pop("default", None)
        needed = [name for name in found["properties"] if name not in moved]
        return found | {"required": needed, PLACES: moved}

    def complex_schema(self, schema: ComplexSchema) -> JsonObject:
        del schema
        return {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}


PLACES = "x-places"


def schema_of(kind: Any, mode: Any = "serialization") -> JsonObject:
    """The JSON Schema of a response; of a request with `mode` "validation"."""
    schema = TypeAdapter(kind).json_schema(mode=mode, schema_generator=_Schemas)
    inlined: JsonObject = _inlined(schema, schema.pop("$defs", {}))
    return inlined


def _inlined(schema: Any, definitions: JsonObject) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    own = {key: value for key, value in schema.items() if key != PLACES}
    found = {key: _inlined(value, definitions) for key, value in own.items()}
    for name, place in schema.get(PLACES, {}).items():
        _move(found["properties"], name, place)
    return found


def _move(properties: JsonObject, name: str, place: Place) -> None:
    """Move a property to where the response has it."""
    if place.way in ("left_out", "sometimes"):
        return
    moved = properties.pop(name)
    if place.way == "inside":
        holder = properties.setdefault(place.key, {"type": "object", "properties": {}})
        holder["properties"][name] = moved
        holder.setdefault("required", []).append(name)
    elif place.way == "flat":
        properties |= moved["anyOf"][0]["properties"]
