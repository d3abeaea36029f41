"""The HTTP side: OpenAI's completions, and the ablation queries beside them.

What the fields mean and what goes wrong stands in serve/wire; what happens in serve/writing.py and
serve/scoring.py. Here is only how answers look on this wire.
"""

import asyncio
import json
import math
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from serve import metrics
from serve.ablation_page import ablation_schema
from serve.answers import (
    Json,
    completion_events,
    pair_events,
    whole_completion,
    whole_pair,
)
from serve.call import current_call, note_error
from serve.comparison import compare
from serve.docs import documented
from serve.edits import symmetries
from serve.event_response import EventResponse, until_gone
from serve.host import Host
from serve.json_weight import require_light
from serve.limits import BODY_TIMEOUT_S, MAX_BODY_BYTES, all_limits
from serve.long_json import json_response
from serve.scoring import score
from serve.trial_query import answer_trials
from serve.wire import pages, query_pages
from serve.wire.errors import RequestError
from serve.wire.queries import CompareRequest, TrialsRequest
from serve.wire.requests import CompletionRequest, PairRequest, ScoreRequest, parse_request
from serve.writing import open_writing

PAGE = Path(__file__).parent.parent / "clients" / "playground" / "index.html"
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
CLIENT_GONE = 499  # nginx's status for it; nobody reads the answer

Answer = TypeVar("Answer")
AddPaths = Callable[[FastAPI, Callable[[], Host]], None]


class ClientGone(Exception):
    """The client has closed the connection before its answer was ready."""


def make_app(host_of: Callable[[], Host], more: Sequence[AddPaths] = ()) -> FastAPI:
    """The ASGI app; `host_of` gives the host, or raises `RequestError` while there is none.

    `more` paths are added below /v1 beside ours.
    """
    app = FastAPI(title="Torsor", docs_url=None, redoc_url=None, openapi_url=None)

    explain_errors(app)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE)

    _add_models(app, host_of)

    @app.post(
        "/v1/completions",
        **documented(pages.CompletionPage, CompletionRequest, streams=True),
    )
    async def completions(http: Request) -> Response:
        request = parse_request(CompletionRequest, await read_json(http))
        writing = await unless_gone(http, open_writing(host_of(), request))
        if request.stream:
            return EventResponse(writing, completion_events(writing, request))
        page = await unless_gone(http, whole_completion(writing), writing.close)
        return await json_response(page)

    @app.post("/v1/ablations/generate", **documented(pages.PairPage, PairRequest, streams=True))
    async def generate(http: Request) -> Response:
        request = parse_request(PairRequest, await read_json(http))
        writing = await unless_gone(http, open_writing(host_of(), request, paired=True))
        if request.stream:
            return EventResponse(writing, pair_events(writing))
        page = await unless_gone(http, whole_pair(writing), writing.close)
        return await json_response(page)

    @app.post("/v1/ablations/score", **documented(query_pages.ScorePage, ScoreRequest))
    async def score_text(http: Request) -> Response:
        request = parse_request(ScoreRequest, await read_json(http))
        return await json_response(await unless_gone(http, score(host_of(), request)))

    for add_paths in more:
        add_paths(app, host_of)
    _add_queries(app, host_of)

    @app.api_route("/v1/{path:path}", methods=METHODS, include_in_schema=False)
    async def nothing(path: str) -> Response:
        raise HTTPException(404, "there is no such method or path")

    return app


def _add_queries(app: FastAPI, host_of: Callable[[], Host]) -> None:
    @app.get("/v1/ablations/schema", **documented(query_pages.SchemaPage))
    async def schema() -> Json:
        return ablation_schema()

    @app.post("/v1/ablations/compare", **documented(query_pages.ComparePage, CompareRequest))
    async def compare_next(http: Request) -> Response:
        request = parse_request(CompareRequest, await read_json(http))
        return await json_response(await unless_gone(http, compare(host_of(), request)))

    @app.post("/v1/ablations/trials", **documented(query_pages.TrialsPage, TrialsRequest))
    async def trials(http: Request) -> Response:
        request = parse_request(TrialsRequest, await read_json(http))
        return await json_response(await unless_gone(http, answer_trials(host_of(), request)))


def _add_models(app: FastAPI, host_of: Callable[[], Host]) -> None:
    @app.get("/v1/models", **documented(pages.ModelsPage))
    async def models() -> Json:
        host = host_of()
        data = [host.describe(bundle) for bundle in host.bundles.values()]
        return {"object": "list", "data": data}

    @app.get("/v1/limits", **documented(pages.LimitsPage))
    async def limits() -> Json:
        call = current_call()
        key = None if call is None or call.key is None else call.key.page()
        return {"limits": all_limits(host_of().engine.limits), "key": key}

    @app.get("/v1/models/{model}", **documented(pages.ModelPage))
    async def model(model: str) -> Json:
        return host_of().describe(host_of().bundle(model))

    @app.get("/v1/models/{model}/structure", **documented(pages.StructurePage))
    async def structure(model: str) -> Json:
        host = host_of()
        bundle = host.bundle(model)
        found = {"targets": await host.structure(bundle), "symmetries": symmetries(bundle.manifest)}
        return {"model": bundle.name, **found}


def explain_errors(app: FastAPI) -> None:
    """Give every error the shape of serve/wire/errors.py."""

    @app.exception_handler(RequestError)
    async def show(request: Request, error: RequestError) -> Response:
        del request
        return error_response(error)

    @app.exception_handler(ClientGone)
    @app.exception_handler(ClientDisconnect)
    async def forget(request: Request, error: Exception) -> Response:
        del request, error
        return Response(status_code=CLIENT_GONE)

    @app.exception_handler(AnyHTTPException)
    async def explain(request: Request, error: AnyHTTPException) -> Response:
        note_error("not_found")
        sentence = f"found {request.method} {request.url.path}: {error.detail}"
        body = RequestError("not_found", f"{sentence}; /docs.json lists methods and paths").body()
        return JSONResponse(body, error.status_code)

    @app.exception_handler(Exception)
    async def own_up(request: Request, error: Exception) -> Response:
        metrics.log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(RequestError("internal", "the server failed; see its log"))


def error_response(error: RequestError) -> JSONResponse:
    """The error as an answer of its own."""
    note_error(error.code)
    headers = {"WWW-Authenticate": "Bearer"} if error.code == "unauthenticated" else {}
    if error.retry_after_s is not None:  # whole seconds, so that it really fits then
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return JSONResponse(error.body(), error.http_status, headers)


async def read_body(http: Request) -> bytes:
    """The body; `RequestError` if it is too large or too slow."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read_body(http)
    except TimeoutError:
        sentence = f"body: not whole after {BODY_TIMEOUT_S} s (body_timeout_s); send it faster"
        raise RequestError("timeout", sentence, "body") from None


async def read_json(http: Request) -> Any:
    """The body, parsed; `RequestError` if it is too large, too slow, or not JSON."""
    return await parse_json(await read_body(http))


async def parse_json(content: bytes) -> Any:
    """JSON, parsed; `RequestError` if it is none, or holds more than a request may."""
    await require_light(content)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RequestError("invalid_request", f"body: found no JSON ({error})", "body") from None
    await asyncio.sleep(0)  # it may have been long; and what follows may be
    return value


async def unless_gone(
    http: Request, work: Coroutine[Any, Any, Answer], close: Callable[[], None] = lambda: None
) -> Answer:
    """The answer of `work`; `ClientGone` if the client goes away first: work is then cancelled."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(until_gone(http.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return await task
    finally:
        task.cancel()
        gone.cancel()
        close()


async def _read_body(http: Request) -> bytes:
    content = bytearray()
    async for chunk in http.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            sentence = f"body: expected at most {MAX_BODY_BYTES} bytes (max_body_bytes)"
            raise RequestError("too_large", f"{sentence}; send less at once", "body")
    return bytes(content)
