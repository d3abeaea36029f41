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
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from serve.gateway.keys import Key
from serve.gateway.request_log import current_key
from serve.http_api.body import read_request
from serve.http_api.completions import DONE, event_text
from serve.http_api.disconnect import cancel_on_disconnect
from serve.http_api.responses import json_response
from serve.http_api.routes import ModelsOf, Route
from serve.http_api.sse import EventResponse
from serve.sweeps.jobs import POINTS_AT_ONCE, Sweeps, sweeps_of
from serve.wire import query_responses as responses
from serve.wire.errors import invalid
from serve.wire.limits import MAX_POINTS
from serve.wire.queries import SweepRequest

KEEP_ALIVE_S = 15.0
ALIVE = ": waiting\n\n"
JSON_LINES, CSV = "application/jsonl", "text/csv"


async def start(models_of: ModelsOf, http: Request) -> Response:
    """Start a sweep."""
    request = await read_request(http, SweepRequest)
    work = sweeps_of(models_of()).submit(request, current_key())
    sweep = await cancel_on_disconnect(http, work)
    return await json_response(sweep, 202, {"Location": f"/v1/sweeps/{sweep.id}"})


async def every(models_of: ModelsOf, http: Request) -> Response:
    """The sweeps that the key may see."""
    del http
    known = await sweeps_of(models_of()).every(current_key())
    return await json_response(responses.Sweeps(sweeps=known))


async def one(models_of: ModelsOf, http: Request) -> Response:
    """A sweep and how far it is."""
    return await json_response(
        await sweeps_of(models_of()).get(http.path_params["id"], current_key())
    )


async def cancel(models_of: ModelsOf, http: Request) -> Response:
    """Cancel a sweep, or forget one that has ended."""
    return await json_response(
        await sweeps_of(models_of()).cancel(http.path_params["id"], current_key())
    )


async def points(models_of: ModelsOf, http: Request) -> Response:
    """Points in order, from `start` on."""
    start = asked(http, "start", 0, 0, MAX_POINTS)
    limit = asked(http, "limit", POINTS_AT_ONCE, 1, MAX_POINTS)
    sweeps, id = sweeps_of(models_of()), http.path_params["id"]
    found = await sweeps.points(id, current_key(), start, limit)
    after = found[-1][0] + 1 if found else start
    texts = ",".join(text for _, text in found)
    return Response(f'{{"points":[{texts}],"next":{after}}}', media_type="application/json")


async def events(models_of: ModelsOf, http: Request) -> Response:
    """The points as they are done, then the sweep."""
    start, id = first_wanted(http), http.path_params["id"]
    sweeps = sweeps_of(models_of())
    await sweeps.get(id, current_key())  # an error now has a status of its own
    return EventResponse(event_texts(sweeps.watch(id, current_key(), start, KEEP_ALIVE_S)))


async def lines(models_of: ModelsOf, http: Request) -> Response:
    """The points so far as JSON, one a line."""
    key, sweeps, id = current_key(), sweeps_of(models_of()), http.path_params["id"]
    await sweeps.get(id, key)
    texts = (text + "\n" async for _, text in every_point(sweeps, id, key))
    return _file(texts, f"{id}.jsonl", JSON_LINES)


async def table(models_of: ModelsOf, http: Request) -> Response:
    """The points so far as a table."""
    key, sweeps, id = current_key(), sweeps_of(models_of()), http.path_params["id"]
    query = (await sweeps.get(id, key)).query

    async def texts() -> AsyncIterator[str]:
        yield responses.csv_text([*responses.csv_columns(query)])
        async for _, text in every_point(sweeps, id, key):
            yield responses.csv_line(query, json.loads(text))

    return _file(texts(), f"{id}.csv", CSV)


async def event_texts(
    watched: AsyncIterator[tuple[int, str] | responses.Sweep | None],
) -> AsyncIterator[str]:
    """Server-sent events: a point with its index as id, a comment, or the sweep and the end."""
    async for item in watched:
        if item is None:
            yield ALIVE
        elif isinstance(item, responses.Sweep):
            yield event_text({"sweep": item}) + DONE
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


SWEEPS = "/v1/sweeps"
POINTS = "The points."
ROUTES = (
    Route("GET", SWEEPS, every, answers=responses.Sweeps),
    Route("POST", SWEEPS, start, asks=SweepRequest, answers=responses.Sweep, status=202),
    Route("POST", "/v1/ablations/sweep", start, is_shown=False),  # beside the other queries
    Route("GET", f"{SWEEPS}/{{id}}", one, answers=responses.Sweep),
    Route("DELETE", f"{SWEEPS}/{{id}}", cancel, answers=responses.Sweep),
    Route(
        *("GET", f"{SWEEPS}/{{id}}/points", points),
        answers=responses.SweepPoints,
        numbers=("start", "limit"),
    ),
    Route(
        *("GET", f"{SWEEPS}/{{id}}/events", events),
        media="text/event-stream",
        numbers=("start",),
        about=POINTS,
    ),
    Route("GET", f"{SWEEPS}/{{id}}/results.jsonl", lines, media=JSON_LINES, about=POINTS),
    Route("GET", f"{SWEEPS}/{{id}}/results.csv", table, media=CSV, about=POINTS),
)
