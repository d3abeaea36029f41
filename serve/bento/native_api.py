"""Endpoints of BentoML's own clients: text as it is written, and scores.

JSON is answered by routes of ours, for BentoML would check a long body on the event loop; forms go
to the service's methods. Either way the answer is a response of our own, which BentoML hands on as
it is: it swallows a generator's exception after the first chunk, and the client would see a whole
text where now the connection breaks.
"""

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from serve.http_api.body import parse_body, read_body
from serve.http_api.disconnect import cancel_on_disconnect
from serve.http_api.responses import json_response
from serve.http_api.routes import ModelsOf, Route
from serve.models import Models
from serve.queries import score as scoring
from serve.queries.generate import Generation, open_generation
from serve.wire import query_responses as query_pages
from serve.wire.requests import ScoreRequest, TextRequest

EMPTY_BODY = b"{}"  # BentoML takes a missing body for {}


async def generate(models_of: ModelsOf, http: Request) -> Response:
    """Text as it is written."""
    content = await read_body(http) or EMPTY_BODY
    return await text_stream(models_of(), http, await parse_body(content, TextRequest))


async def score_text(models_of: ModelsOf, http: Request) -> Response:
    """Bits per character of a text."""
    content = await read_body(http) or EMPTY_BODY
    return await score_page(models_of(), http, await parse_body(content, ScoreRequest))


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


async def score_page(models: Models, http: Request, request: ScoreRequest) -> Response:
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
        answers=query_pages.ScorePage,
        summary=f"{FORM}{ScoreRequest.__doc__}",
        takes_forms=True,
    ),
)
