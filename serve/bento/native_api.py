"""What BentoML's own clients call on the service: text as it is written, and scores.

Both are answered on the short way (serve/http_api/middleware.py), for BentoML would check a long
body on the event loop; the service's methods answer forms. A response of our own, which BentoML
hands on as it is, because a generator's error after the first piece of text would be an end as if
the text were whole; now it breaks the connection.
"""

from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from serve.http_api.body import parse_body, read_body
from serve.http_api.disconnect import cancel_on_disconnect
from serve.http_api.responses import json_response
from serve.models import Models
from serve.queries.generate import Generation, open_generation
from serve.queries.score import score
from serve.wire.requests import ScoreRequest, TextRequest

NOTHING = b"{}"  # as which BentoML reads no body


def native_routes(models_of: Callable[[], Models]) -> list[Route]:
    """The paths of the service's methods."""

    async def generate(http: Request) -> Response:
        content = await read_body(http) or NOTHING
        return await text_stream(models_of(), http, await parse_body(content, TextRequest))

    async def score_text(http: Request) -> Response:
        content = await read_body(http) or NOTHING
        return await score_page(models_of(), http, await parse_body(content, ScoreRequest))

    return [
        Route("/generate", generate, methods=["POST"]),
        Route("/score", score_text, methods=["POST"]),
    ]


async def text_stream(models: Models, http: Request, request: TextRequest) -> Response:
    """The text of one prompt in pieces."""
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
    return await json_response(await cancel_on_disconnect(http, score(models, request)))


async def _texts(generation: Generation) -> AsyncIterator[str]:
    try:
        async for chunk in generation.pieces():
            yield chunk.text
    finally:
        generation.close()


async def _next(texts: AsyncIterator[str]) -> str:
    return await anext(texts)


async def _after(first: str, texts: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for text in texts:
        yield text
