"""Sweeps over HTTP.

    POST   /v1/sweeps                          start one: 202, Location
    GET    /v1/sweeps                          all of them
    GET    /v1/sweeps/{id}                     how far it is
    GET    /v1/sweeps/{id}/points?start=&limit=
    GET    /v1/sweeps/{id}/events?start=       points as they are done, then the sweep (SSE)
    GET    /v1/sweeps/{id}/results.jsonl       and .csv: the points so far, as a file
    DELETE /v1/sweeps/{id}                     cancel it; one that has ended is forgotten

With API keys, a sweep is seen by the key that started it and by those that may manage.
"""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from serve.gateway.keys import Key
from serve.gateway.request_log import current_key
from serve.http_api.body import read_request
from serve.http_api.completions import DONE
from serve.http_api.disconnect import cancel_on_disconnect
from serve.http_api.openapi import documented
from serve.http_api.sse import EventResponse
from serve.models import Models
from serve.sweeps.jobs import POINTS_AT_ONCE, Sweeps, sweeps_of
from serve.wire import query_responses as pages
from serve.wire.errors import invalid
from serve.wire.limits import MAX_POINTS
from serve.wire.queries import SweepRequest

KEEP_ALIVE_S = 15.0
ALIVE = ": waiting\n\n"

Json = dict[str, Any]


class Watching:
    """An answer that ends without having to close anything."""

    def close(self) -> None:
        """Nothing: a sweep goes on without those who watch it."""


def add_sweep_paths(app: FastAPI, models_of: Callable[[], Models]) -> None:
    """Add the paths to the app."""

    def sweeps() -> Sweeps:
        return sweeps_of(models_of())

    @app.post("/v1/ablations/sweep", status_code=202, include_in_schema=False)  # beside the others
    @app.post("/v1/sweeps", status_code=202, **_accepted())
    async def start(http: Request) -> Response:
        request = await read_request(http, SweepRequest)
        page = await cancel_on_disconnect(http, sweeps().submit(request, current_key()))
        return Response(
            json.dumps(page), 202, {"Location": f"/v1/sweeps/{page['id']}"}, "application/json"
        )

    @app.get("/v1/sweeps", **documented(pages.SweepsPage))
    async def every() -> Json:
        return {"sweeps": await sweeps().pages(current_key())}

    @app.get("/v1/sweeps/{id}", **documented(pages.SweepPage))
    async def one(id: str) -> Json:
        return await sweeps().page(id, current_key())

    @app.delete("/v1/sweeps/{id}", **documented(pages.CancelledSweepPage))
    async def cancel(id: str) -> Json:
        return await sweeps().cancel(id, current_key())

    _add_points(app, sweeps)


def _add_points(app: FastAPI, sweeps: Callable[[], Sweeps]) -> None:
    @app.get("/v1/sweeps/{id}/points", **_asking(pages.SweepPointsPage, "start", "limit"))
    async def points(http: Request, id: str) -> Response:
        start = asked(http, "start", 0, 0, MAX_POINTS)
        limit = asked(http, "limit", POINTS_AT_ONCE, 1, MAX_POINTS)
        found = await sweeps().points(id, current_key(), start, limit)
        after = found[-1][0] + 1 if found else start
        texts = ",".join(text for _, text in found)
        return Response(f'{{"points":[{texts}],"next":{after}}}', media_type="application/json")

    @app.get("/v1/sweeps/{id}/events", **_asking(None, "start", kind="text/event-stream"))
    async def events(http: Request, id: str) -> Response:
        start = first_wanted(http)
        await sweeps().page(id, current_key())  # an error now has a status of its own
        watched = sweeps().watch(id, current_key(), start, KEEP_ALIVE_S)
        return EventResponse(Watching(), event_texts(watched))

    @app.get("/v1/sweeps/{id}/results.jsonl", **_asking(None, kind="application/jsonl"))
    async def lines(id: str) -> Response:
        key, held = current_key(), sweeps()
        await held.page(id, key)
        texts = (text + "\n" async for _, text in every_point(held, id, key))
        return _file(texts, f"{id}.jsonl", "application/jsonl")

    @app.get("/v1/sweeps/{id}/results.csv", **_asking(None, kind="text/csv"))
    async def table(id: str) -> Response:
        key, held = current_key(), sweeps()
        query = (await held.page(id, key))["query"]

        async def texts() -> AsyncIterator[str]:
            yield pages.csv_text([*pages.csv_columns(query)])
            async for _, text in every_point(held, id, key):
                yield pages.csv_line(query, json.loads(text))

        return _file(texts(), f"{id}.csv", "text/csv")


async def event_texts(
    watched: AsyncIterator[tuple[int, str] | Json | None],
) -> AsyncIterator[str]:
    """Server-sent events: a point with its index as id, a comment, or the sweep and the end."""
    async for item in watched:
        if item is None:
            yield ALIVE
        elif isinstance(item, dict):
            yield f"data: {json.dumps({'sweep': item})}\n\n{DONE}"
        else:
            yield f'id: {item[0]}\ndata: {{"point":{item[1]}}}\n\n'


async def every_point(sweeps: Sweeps, id: str, key: Key | None) -> AsyncIterator[tuple[int, str]]:
    """The points that there are, page by page."""
    start = 0
    while found := await sweeps.points(id, key, start, POINTS_AT_ONCE):
        for point in found:
            yield point
        start = found[-1][0] + 1


def first_wanted(http: Request) -> int:
    """The point that events begin with: `start`, else the one after Last-Event-ID."""
    last = http.headers.get("last-event-id", "")
    after = int(last) + 1 if last.isascii() and last.isdigit() and len(last) < 10 else 0
    return asked(http, "start", after, 0, MAX_POINTS)


def asked(http: Request, name: str, default: int, least: int, most: int) -> int:
    """A whole number from the query string; `RequestError` for anything else."""
    text = http.query_params.get(name)
    if text is None:
        return default
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    if not is_number or not least <= int(text) <= most:
        raise invalid(name, f"found {text!r:.40}, expected a whole number, {least} to {most}")
    return int(text)


def _file(texts: AsyncIterator[str], name: str, kind: str) -> Response:
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(texts, headers=disposition, media_type=kind)


def _accepted() -> Json:
    told = documented(pages.SweepPage, SweepRequest)
    told["responses"][202] = told["responses"].pop(200)
    return told


def _asking(answer: Any, *numbers: str, kind: str = "") -> Json:
    told = documented(answer or pages.SweepPointPage)
    if answer is None:
        shown = {"description": "The points.", "content": {kind: {"schema": {"type": "string"}}}}
        told["responses"][200] = shown
    whole = {"type": "integer", "minimum": 0, "maximum": MAX_POINTS}
    limits = {"start": whole, "limit": whole | {"minimum": 1}}
    told["openapi_extra"] = {
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": limits[name]}
            for name in numbers
        ]
    }
    return told
