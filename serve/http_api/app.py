"""The HTTP side: OpenAI's completions, and the ablation queries beside them.

What the fields mean and what goes wrong stands in serve/wire; what happens in
serve/queries/generate.py and serve/queries/score.py. Here is only how answers look on this wire.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response

from serve.ablation.apply import symmetries
from serve.ablation.parse import ablation_schema
from serve.gateway.request_log import current_key
from serve.http_api.body import read_request
from serve.http_api.completions import (
    Json,
    completion_events,
    pair_events,
    whole_completion,
    whole_pair,
)
from serve.http_api.disconnect import cancel_on_disconnect
from serve.http_api.openapi import documented
from serve.http_api.responses import (
    allowed_methods,
    explain_errors,
    json_response,
    missing_response,
)
from serve.http_api.sse import EventResponse
from serve.models import Models
from serve.queries.compare import compare
from serve.queries.generate import open_generation
from serve.queries.score import score
from serve.queries.trials import answer_trials
from serve.wire import query_responses as query_pages
from serve.wire import responses as pages
from serve.wire.limits import all_limits
from serve.wire.queries import CompareRequest, TrialsRequest
from serve.wire.requests import CompletionRequest, PairRequest, ScoreRequest

PAGE = Path(__file__).parent.parent.parent / "clients" / "playground" / "index.html"
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

AddPaths = Callable[[FastAPI, Callable[[], Models]], None]


def make_app(models_of: Callable[[], Models], more: Sequence[AddPaths] = ()) -> FastAPI:
    """The ASGI app; `models_of` gives the host, or raises `RequestError` while there is none.

    `more` paths are added below /v1 beside ours.
    """
    app = FastAPI(title="Torsor", docs_url=None, redoc_url=None, openapi_url=None)

    explain_errors(app)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE)

    _add_models(app, models_of)

    @app.post(
        "/v1/completions",
        **documented(pages.CompletionPage, CompletionRequest, streams=True),
    )
    async def completions(http: Request) -> Response:
        request = await read_request(http, CompletionRequest)
        generation = await cancel_on_disconnect(http, open_generation(models_of(), request))
        if request.stream:
            return EventResponse(generation, completion_events(generation, request.wants_usage))
        page = await cancel_on_disconnect(http, whole_completion(generation), generation.close)
        return await json_response(page)

    @app.post("/v1/ablations/generate", **documented(pages.PairPage, PairRequest, streams=True))
    async def generate(http: Request) -> Response:
        request = await read_request(http, PairRequest)
        generation = await cancel_on_disconnect(
            http, open_generation(models_of(), request, paired=True)
        )
        if request.stream:
            return EventResponse(generation, pair_events(generation))
        page = await cancel_on_disconnect(http, whole_pair(generation), generation.close)
        return await json_response(page)

    @app.post("/v1/ablations/score", **documented(query_pages.ScorePage, ScoreRequest))
    async def score_text(http: Request) -> Response:
        request = await read_request(http, ScoreRequest)
        return await json_response(await cancel_on_disconnect(http, score(models_of(), request)))

    for add_paths in more:
        add_paths(app, models_of)
    _add_queries(app, models_of)

    @app.api_route("/v1/{path:path}", methods=METHODS, include_in_schema=False)
    async def nothing(path: str, http: Request) -> Response:
        return missing_response(http.method, http.url.path, allowed_methods(http))

    return app


def _add_queries(app: FastAPI, models_of: Callable[[], Models]) -> None:
    @app.get("/v1/ablations/schema", **documented(query_pages.SchemaPage))
    async def schema() -> Json:
        return ablation_schema()

    @app.post("/v1/ablations/compare", **documented(query_pages.ComparePage, CompareRequest))
    async def compare_next(http: Request) -> Response:
        request = await read_request(http, CompareRequest)
        return await json_response(await cancel_on_disconnect(http, compare(models_of(), request)))

    @app.post("/v1/ablations/trials", **documented(query_pages.TrialsPage, TrialsRequest))
    async def trials(http: Request) -> Response:
        request = await read_request(http, TrialsRequest)
        return await json_response(
            await cancel_on_disconnect(http, answer_trials(models_of(), request))
        )


def _add_models(app: FastAPI, models_of: Callable[[], Models]) -> None:
    @app.get("/v1/models", **documented(pages.ModelsPage))
    async def models() -> Json:
        models = models_of()
        data = [models.describe(bundle) for bundle in models.bundles.values()]
        return {"object": "list", "data": data}

    @app.get("/v1/limits", **documented(pages.LimitsPage))
    async def limits() -> Json:
        key = current_key()
        limits = all_limits(asdict(models_of().engine.limits))
        return {"limits": limits, "key": None if key is None else key.page()}

    @app.get("/v1/models/{model}", **documented(pages.ModelPage))
    async def model(model: str) -> Json:
        return models_of().describe(models_of().bundle(model))

    @app.get("/v1/models/{model}/structure", **documented(pages.StructurePage))
    async def structure(model: str) -> Json:
        models = models_of()
        bundle = models.bundle(model)
        found = {
            "targets": await models.structure(bundle),
            "symmetries": symmetries(bundle.manifest),
        }
        return {"model": bundle.name, **found}
