"""What BentoML's own clients call on the service: text as it is written, and scores.

Both answer with a response of their own, which BentoML hands on as it is. So errors look as they do
everywhere on this server, and one after the first piece of text breaks the connection: a generator
would end as if the text were whole.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from serve.error_answers import answer_to
from serve.gone import unless_gone
from serve.host import Host
from serve.long_json import json_response
from serve.scoring import score
from serve.wire.requests import ScoreRequest, TextRequest
from serve.writing import Writing, open_writing

Fields = dict[str, Any]


async def text_stream(host: Host, http: Request, fields: Fields) -> Any:
    """The text of one prompt in pieces, or an error; `fields` are those of a `TextRequest`."""

    async def answer() -> Response:
        request = TextRequest.model_construct(**fields)
        writing = await unless_gone(http, open_writing(host, request))
        texts = _texts(writing)
        try:
            first = await unless_gone(http, _next(texts))
        except BaseException:
            writing.close()
            raise
        return StreamingResponse(_after(first, texts), media_type="text/plain")

    return await _or_error(http, answer)


async def score_page(host: Host, http: Request, fields: Fields) -> Any:
    """The score of a text, or an error; `fields` are those of a `ScoreRequest`."""

    async def answer() -> Response:
        request = ScoreRequest.model_construct(**fields)
        return await json_response(await unless_gone(http, score(host, request)))

    return await _or_error(http, answer)


async def _texts(writing: Writing) -> AsyncIterator[str]:
    try:
        async for piece in writing.pieces():
            yield piece.text
    finally:
        writing.close()


async def _next(texts: AsyncIterator[str]) -> str:
    return await anext(texts)


async def _after(first: str, texts: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for text in texts:
        yield text


async def _or_error(http: Request, work: Callable[[], Awaitable[Response]]) -> Response:
    try:
        return await work()
    except Exception as error:
        return answer_to(error, http)
