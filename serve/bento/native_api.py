"""Endpoints of BentoML's own clients: text as it is written, and scores.

They are routes of ours: BentoML would check a long body on the event loop, answer a broken form
with an error of its own, and swallow a generator's exception after the first chunk, so that the
client would see a whole text where now the connection breaks.
"""

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from serve.http_api.disconnect import cancel_on_disconnect
from serve.http_api.form import read_form_or_json
from serve.http_api.responses import json_response
from serve.http_api.routes import ModelsOf, Route
from serve.models import Models
from serve.queries import score as scoring
from serve.queries.generate import Generation, open_generation
from serve.wire.query_responses import ScoreResult
from serve.wire.requests import ScoreRequest, TextRequest


async def generate(models_of: ModelsOf, http: Request) -> Response:
    """Text as it is written."""
    return await text_stream(models_of(), http, await read_form_or_json(http, TextRequest))


async def score_text(models_of: ModelsOf, http: Request) -> Response:
    """Bits per character of a text."""
    request = await read_form_or_json(http, ScoreRequest)
    return await score_response(models_of(), http, request)


async def text_stream(models: Models, http: Request, request: TextRequest) -> Response:
    """The text of one prompt in chunks."""
    generation = await cancel_on_disconnect(http, open_generation(models, request))
    texts = _texts(generation)
    try:
        first = await cancel_on_disconnect(http, _next(texts))
    except BaseException:
        generation.close()
        raise
    return StreamingResponse(_after(first, texts), media_type="text/plain")


async def score_response(models: Models, http: Request, request: ScoreRequest) -> Response:
    """The score of a text."""
    return await json_response(await cancel_on_disconnect(http, scoring.score(models, request)))


async def _texts(generation: Generation) -> AsyncIterator[str]:
    try:
        async for chunk in generation.chunks():
            yield chunk.text
    finally:
        generation.close()


async def _next(texts: AsyncIterator[str]) -> str:
    return await anext(texts)


async def _after(first: str, texts: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for text in texts:
        yield text


FORM = "BentoML's own form: "
ROUTES = (
    Route(
        *("POST", "/generate", generate),
        asks=TextRequest,
        media="text/plain",
        summary=f"{FORM}{TextRequest.__doc__}",
        about="The text, as it is written.",
        takes_forms=True,
    ),
    Route(
        *("POST", "/score", score_text),
        asks=ScoreRequest,
        answers=ScoreResult,
        summary=f"{FORM}{ScoreRequest.__doc__}",
        takes_forms=True,
    ),
)
