"""The HTTP routes of text and of ablation queries: OpenAI's completions, and ours beside them.

What the fields mean and what goes wrong stands in serve/wire; what happens, in serve/queries. Here
is only how answers look on this wire.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from serve.ablation.parse import ablation_schema
from serve.gateway.request_log import current_key
from serve.http_api.body import read_request
from serve.http_api.completions import completion_events, pair_events, whole_completion, whole_pair
from serve.http_api.disconnect import cancel_on_disconnect
from serve.http_api.responses import json_response
from serve.http_api.routes import ModelsOf, Route
from serve.http_api.sse import EventResponse
from serve.queries import compare as comparison
from serve.queries import score as scoring
from serve.queries.generate import open_generation
from serve.queries.trials import answer_trials
from serve.wire import query_responses, responses
from serve.wire.no_op_fields import StreamOptions
from serve.wire.queries import CompareRequest, TrialsRequest
from serve.wire.requests import CompletionRequest, PairRequest, ScoreRequest

PLAYGROUND = Path(__file__).parent.parent.parent / "clients" / "playground" / "index.html"
EVENTS = "text/event-stream"


async def playground(models_of: ModelsOf, http: Request) -> Response:
    """The page at /."""
    del models_of, http
    return FileResponse(PLAYGROUND)


async def models(models_of: ModelsOf, http: Request) -> Response:
    """The served models."""
    del http
    served = models_of()
    data = tuple(served.describe(bundle) for bundle in served.bundles.values())
    return await json_response(responses.Models(data=data))


async def limits(models_of: ModelsOf, http: Request) -> Response:
    """The limits of the server, and those of the key that asks."""
    del http
    key = current_key()
    found = models_of().limits()
    own = None if key is None else key.page()
    return await json_response(responses.Limits(limits=found, key=own))


async def model(models_of: ModelsOf, http: Request) -> Response:
    """One model."""
    served = models_of()
    return await json_response(served.describe(served.bundle(http.path_params["model"])))


async def structure(models_of: ModelsOf, http: Request) -> Response:
    """The targets and symmetries of a model, which edits may name."""
    served = models_of()
    bundle = served.bundle(http.path_params["model"])
    return await json_response(await served.structure(bundle))


async def completions(models_of: ModelsOf, http: Request) -> Response:
    """Text, whole or as it is written."""
    request = await read_request(http, CompletionRequest)
    generation = await cancel_on_disconnect(http, open_generation(models_of(), request))
    if request.stream:
        events = completion_events(generation, request.stream_options or StreamOptions())
        return EventResponse(events, generation.close)
    whole = whole_completion(generation)
    return await json_response(await cancel_on_disconnect(http, whole, generation.close))


async def generate(models_of: ModelsOf, http: Request) -> Response:
    """The texts of the plain and of the ablated model, under one seed."""
    request = await read_request(http, PairRequest)
    work = open_generation(models_of(), request, paired=True)
    generation = await cancel_on_disconnect(http, work)
    if request.stream:
        return EventResponse(pair_events(generation), generation.close)
    whole = whole_pair(generation)
    return await json_response(await cancel_on_disconnect(http, whole, generation.close))


async def score_text(models_of: ModelsOf, http: Request) -> Response:
    """Bits per character of a text."""
    request = await read_request(http, ScoreRequest)
    work = scoring.score(models_of(), request)
    return await json_response(await cancel_on_disconnect(http, work))


async def schema(models_of: ModelsOf, http: Request) -> Response:
    """The JSON Schema of an ablation."""
    del models_of, http
    return JSONResponse(ablation_schema())


async def compare_next(models_of: ModelsOf, http: Request) -> Response:
    """Distributions of the next character under several ablations."""
    request = await read_request(http, CompareRequest)
    work = comparison.compare(models_of(), request)
    return await json_response(await cancel_on_disconnect(http, work))


async def trials(models_of: ModelsOf, http: Request) -> Response:
    """Scores of a model of a task."""
    request = await read_request(http, TrialsRequest)
    work = answer_trials(models_of(), request)
    return await json_response(await cancel_on_disconnect(http, work))


ROUTES = (
    Route("GET", "/", playground, is_shown=False),
    Route("GET", "/v1/models", models, answers=responses.Models),
    Route("GET", "/v1/limits", limits, answers=responses.Limits),
    Route("GET", "/v1/models/{model}", model, answers=responses.Model),
    Route("GET", "/v1/models/{model}/structure", structure, answers=responses.Structure),
    Route(
        *("POST", "/v1/completions", completions),
        asks=CompletionRequest,
        answers=responses.Completion,
        media=EVENTS,
    ),
    Route(
        *("POST", "/v1/ablations/generate", generate),
        asks=PairRequest,
        answers=responses.Pair,
        media=EVENTS,
    ),
    Route(
        *("POST", "/v1/ablations/score", score_text),
        asks=ScoreRequest,
        answers=query_responses.ScoreResult,
    ),
    Route("GET", "/v1/ablations/schema", schema, answers=query_responses.AblationSchema),
    Route(
        *("POST", "/v1/ablations/compare", compare_next),
        asks=CompareRequest,
        answers=query_responses.Comparison,
    ),
    Route(
        *("POST", "/v1/ablations/trials", trials),
        asks=TrialsRequest,
        answers=query_responses.TrialScores,
    ),
)
