"""The HTTP side: OpenAI's completions, and the ablation queries beside them.

What the fields mean and what goes wrong stands in serve/wire; what happens in serve/writing.py and
serve/scoring.py. Here is only how answers look on this wire.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
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
from serve.bodies import read_request
from serve.call import current_call, note_error
from serve.comparison import compare
from serve.docs import documented
from serve.edits import symmetries
from serve.event_response import EventResponse, until_gone
from serve.host import Host
from serve.limits import all_limits
from serve.long_json import json_response
from serve.missing import allowed_methods, missing_response
from serve.scoring import score
from serve.trial_query import answer_trials
from serve.wire import pages, query_pages
from serve.wire.errors import RequestError
from serve.wire.queries import CompareRequest, TrialsRequest
from serve.wire.requests import CompletionRequest, PairRequest, ScoreRequest
from serve.writing import open_writing

PAGE = Path(__file__).parent.parent / "clients" / "playground" / "index.html"
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
NOT_ALLOWED = 405
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
        request = await read_request(http, CompletionRequest)
        writing = await unless_gone(http, open_writing(host_of(), request))
        if request.stream:
            return EventResponse(writing, completion_events(writing, request))
        page = await unless_gone(http, whole_completion(writing), writing.close)
        return await json_response(page)

    @app.post("/v1/ablations/generate", **documented(pages.PairPage, PairRequest, streams=True))
    async def generate(http: Request) -> Response:
        request = await read_request(http, PairRequest)
        writing = await unless_gone(http, open_writing(host_of(), request, paired=True))
        if request.stream:
            return EventResponse(writing, pair_events(writing))
        page = await unless_gone(http, whole_pair(writing), writing.close)
        return await json_response(page)

    @app.post("/v1/ablations/score", **documented(query_pages.ScorePage, ScoreRequest))
    async def score_text(http: Request) -> Response:
        request = await read_request(http, ScoreRequest)
        return await json_response(await unless_gone(http, score(host_of(), request)))

    for add_paths in more:
        add_paths(app, host_of)
    _add_queries(app, host_of)

    @app.api_route("/v1/{path:path}", methods=METHODS, include_in_schema=False)
    async def nothing(path: str, http: Request) -> Response:
        return missing_response(http.method, http.url.path, allowed_methods(http))

    return app


def _add_queries(app: FastAPI, host_of: Callable[[], Host]) -> None:
    @app.get("/v1/ablations/schema", **documented(query_pages.SchemaPage))
    async def schema() -> Json:
        return ablation_schema()

    @app.post("/v1/ablations/compare", **documented(query_pages.ComparePage, CompareRequest))
    async def compare_next(http: Request) -> Response:
        request = await read_request(http, CompareRequest)
        return await json_response(await unless_gone(http, compare(host_of(), request)))

    @app.post("/v1/ablations/trials", **documented(query_pages.TrialsPage, TrialsRequest))
    async def trials(http: Request) -> Response:
        request = await read_request(http, TrialsRequest)
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
        allowed = allowed_methods(request) if error.status_code == NOT_ALLOWED else ""
        return missing_response(request.method, request.url.path, allowed)

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
