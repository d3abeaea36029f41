"""/docs.json: what every path takes and answers, as OpenAPI says it.

BentoML would write the document in a version whose schemas can't say what ours say, and promise
errors that it doesn't send; so this is a page of our own, of the app's routes and of BentoML's.
"""

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from serve.models import Models
from serve.wire import query_responses as query_pages
from serve.wire import responses as pages
from serve.wire.requests import ScoreRequest, TextRequest

Json = dict[str, Any]
OPENAPI_VERSION = "3.1.0"
FAILED = "What was found, what was expected, and the remedy."

_unmade: list[tuple[Json, type[BaseModel], Any]] = []  # schemas that nobody has asked for yet


def documented(
    answer: type[BaseModel],
    asked: type[BaseModel] | None = None,
    *,
    streams: bool = False,
    error: type[BaseModel] = pages.ErrorPage,
) -> Json:
    """What a FastAPI route is told of its answers, of its body, and of its errors."""
    told: Json = {"response_model": None, "responses": _responses(answer, streams, error)}
    if asked is not None:
        told["openapi_extra"] = {"requestBody": _body(asked)}
    return told


def add_docs(app: FastAPI, models_of: Callable[[], Models]) -> None:
    """Add /docs.json, once all other routes are there."""
    del models_of

    @functools.cache
    def document() -> Json:
        _make_schemas()
        page = get_openapi(
            title="Torsor",
            version="1",
            openapi_version=OPENAPI_VERSION,
            description="Streams characters and answers ablation queries.",
            routes=app.routes,
        )
        others = _bentoml_paths()
        _make_schemas()
        return {**page, "paths": page["paths"] | others}

    only_once = threading.Lock()

    def made_once() -> Json:
        with only_once:
            return document()

    @app.get("/docs.json", include_in_schema=False)
    async def docs() -> Json:
        return await asyncio.to_thread(made_once)


def _bentoml_paths() -> Json:
    """The native endpoints and the probes, which are no routes of the app."""
    failed = {"description": FAILED, "content": _json(_schema(pages.ErrorPage))}
    text = {"description": "The text, as it is written.", "content": _content("text/plain", _TEXT)}
    scored = {
        "description": query_pages.ScorePage.__doc__,
        "content": _json(_schema(query_pages.ScorePage)),
    }
    ready = {"content": _json(_schema(pages.ReadinessPage)), "description": "What runs."}
    metrics = {"description": "Prometheus.", "content": _content("text/plain", _TEXT)}
    probe = {"responses": {"200": ready, "503": ready}}
    return {
        "/generate": _native(TextRequest, text, failed),
        "/score": _native(ScoreRequest, scored, failed),
        "/livez": {"get": {"summary": "Whether the process is whole", **probe}},
        "/readyz": {"get": {"summary": "Whether it takes requests", **probe}},
        "/metrics": {"get": {"summary": "Counters and times", "responses": {"200": metrics}}},
    }


def _native(asked: type[BaseModel], answer: Json, failed: Json) -> Json:
    fields = asked.model_fields.values()  # no body is {}
    return {
        "post": {
            "summary": f"BentoML's own form: {asked.__doc__}",
            "requestBody": _body(asked, any(field.is_required() for field in fields)),
            "responses": {"200": answer, "4XX": failed, "5XX": failed},
        }
    }


def _responses(
    answer: type[BaseModel], streams: bool, error: type[BaseModel]
) -> dict[int | str, Json]:
    content = _json(_schema(answer))
    if streams:
        content |= _content("text/event-stream", _TEXT)
    failed = {"description": FAILED, "content": _json(_schema(error))}
    return {
        200: {"description": answer.__doc__, "content": content},
        "4XX": failed,
        "5XX": failed,
    }


def _body(kind: type[BaseModel], required: bool = True) -> Json:
    return {"required": required, "content": _json(_schema(kind, "validation"))}


def _json(schema: Json) -> Json:
    return _content("application/json", schema)


def _content(kind: str, schema: Json) -> Json:
    return {kind: {"schema": schema}}


def _schema(kind: type[BaseModel], mode: Any = "serialization") -> Json:
    """The schema of a model, empty until `_make_schemas`: all of them cost a start 0.2 s."""
    schema: Json = {}
    _unmade.append((schema, kind, mode))
    return schema


def _make_schemas() -> None:
    while _unmade:
        empty, kind, mode = _unmade.pop()
        schema = kind.model_json_schema(mode=mode)
        empty |= _inlined(schema, schema.pop("$defs", {}))


def _inlined(schema: Any, definitions: Json) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}


_TEXT = {"type": "string"}
