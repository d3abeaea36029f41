"""The HTTP side: OpenAI's completions, and the ablation queries beside them.

What the fields mean and what goes wrong stands in serve/wire; what happens in serve/writing.py and
serve/scoring.py. Here is only how answers look on this wire.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from serve import metrics
from serve.host import Host
from serve.scoring import score
from serve.wire.errors import RETRY_AFTER_S, RequestError
from serve.wire.requests import CompletionRequest, PairRequest, ScoreRequest, parse_request
from serve.writing import ABLATED, BASELINE, Piece, Writing, open_writing

PAGE = Path(__file__).parent.parent / "clients" / "playground" / "index.html"
MAX_BODY_BYTES = 16 << 20
CLIENT_GONE = 499  # nginx's status for it; nobody reads the answer
DONE = "data: [DONE]\n\n"

Json = dict[str, Any]
Answer = TypeVar("Answer")


def make_app(host_of: Callable[[], Host]) -> FastAPI:
    """The ASGI app; `host_of` gives the host, or raises `RequestError` while there is none."""
    app = FastAPI(title="Torsor", docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(RequestError)
    async def show(request: Request, error: RequestError) -> Response:
        del request
        return error_response(error)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE)

    @app.get("/v1/models")
    async def models() -> Json:
        host = host_of()
        data = [host.describe(bundle) for bundle in host.bundles.values()]
        return {"object": "list", "data": data}

    @app.get("/v1/models/{model}")
    async def model(model: str) -> Json:
        return host_of().describe(host_of().bundle(model))

    @app.get("/v1/models/{model}/structure")
    async def structure(model: str) -> Json:
        host = host_of()
        bundle = host.bundle(model)
        return {"model": bundle.name, "targets": await host.structure(bundle)}

    @app.post("/v1/completions", openapi_extra=_body_schema(CompletionRequest))
    async def completions(http: Request) -> Response:
        request = parse_request(CompletionRequest, await read_json(http))
        writing = await open_writing(host_of(), request)
        if request.stream:
            return event_stream(writing, completion_events(writing, request))
        return await unless_gone(http, whole_completion(writing), writing.close)

    @app.post("/v1/ablations/generate", openapi_extra=_body_schema(PairRequest))
    async def generate(http: Request) -> Response:
        request = parse_request(PairRequest, await read_json(http))
        writing = await open_writing(host_of(), request, paired=True)
        if request.stream:
            return event_stream(writing, pair_events(writing))
        return await unless_gone(http, whole_pair(writing), writing.close)

    @app.post("/v1/ablations/score", openapi_extra=_body_schema(ScoreRequest))
    async def score_text(http: Request) -> Response:
        request = parse_request(ScoreRequest, await read_json(http))
        return await unless_gone(http, score(host_of(), request))

    @app.api_route("/v1/{path:path}", methods=["GET", "POST"], include_in_schema=False)
    async def nothing(path: str) -> Response:
        raise RequestError("not_found", f"path: found /v1/{path}, expected a path of /docs.json")

    return app


def error_response(error: RequestError) -> JSONResponse:
    """The error as an answer of its own."""
    retry = {"Retry-After": str(RETRY_AFTER_S)} if error.code == "queue_full" else {}
    return JSONResponse(error.body(), error.http_status, retry)


async def read_json(http: Request) -> Any:
    """The body, parsed; `RequestError` if it is too large or not JSON."""
    content = bytearray()
    async for chunk in http.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise RequestError("too_large", f"body: expected at most {MAX_BODY_BYTES} bytes")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RequestError("invalid_request", f"body: found no JSON ({error})", "body") from None


async def unless_gone(
    http: Request, work: Coroutine[Any, Any, Json], close: Callable[[], None] = lambda: None
) -> Response:
    """The answer of `work`, or nothing if the client goes away first; work is then cancelled."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(http))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(await task) if task.done() else Response(status_code=CLIENT_GONE)
    finally:
        task.cancel()
        gone.cancel()
        close()


def event_stream(writing: Writing, events: AsyncIterator[str]) -> StreamingResponse:
    """Server-sent events; an error after the start is an event of its own, and then the end."""

    async def guarded() -> AsyncIterator[str]:
        try:
            async for event in events:
                yield event
        except RequestError as error:
            yield _event(error.body())
        except Exception:
            metrics.log.exception("a stream failed")
            yield _event(RequestError("internal", "the server failed; see its log").body())
        finally:
            writing.close()

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(guarded(), media_type="text/event-stream", headers=headers)


async def completion_events(writing: Writing, request: CompletionRequest) -> AsyncIterator[str]:
    """One event a piece, then usage if asked for, then [DONE]."""
    head = _completion_head(writing)
    offsets = [_first_offset(request)] * request.n
    async for piece in writing.pieces():
        choice = completion_choice(piece, offsets[piece.index], request.logprobs)
        offsets[piece.index] += len(piece.text)
        yield _event({**head, "choices": [choice]})
    if request.stream_options is not None and request.stream_options.include_usage:
        yield _event({**head, "choices": [], "usage": writing.usage})
    yield DONE


async def whole_completion(writing: Writing) -> Json:
    """The answer of a request that doesn't stream."""
    request, parts = writing.request, dict[int, list[Piece]]()
    async for piece in writing.pieces():
        parts.setdefault(piece.index, []).append(piece)
    choices = [
        completion_choice(join_pieces(parts[i]), _first_offset(request), request.logprobs)
        for i in range(request.n)
    ]
    return {**_completion_head(writing), "choices": choices, "usage": writing.usage}


def join_pieces(pieces: list[Piece]) -> Piece:
    """Consecutive pieces of one choice as one."""
    last = pieces[-1]
    characters = [c for piece in pieces for c in piece.characters or []]
    return Piece(
        index=last.index,
        branch=last.branch,
        text="".join(piece.text for piece in pieces),
        characters=None if last.characters is None else characters,
        finish_reason=last.finish_reason,
        stop=last.stop,
        seed=last.seed,
    )


def completion_choice(piece: Piece, offset: int, logprobs: int | None) -> Json:
    """A piece as OpenAI's clients read a choice; `offset` is the place of its first character."""
    return {
        "index": piece.index,
        "text": piece.text,
        "finish_reason": piece.finish_reason,
        "stop_string": piece.stop,
        "seed": piece.seed,
        "logprobs": None if logprobs is None else _logprobs(piece, offset, logprobs),
    }


async def pair_events(writing: Writing) -> AsyncIterator[str]:
    """One event a piece of either branch, then the summary, then [DONE]."""
    async for piece in writing.pieces():
        yield _event(
            {
                "index": piece.index,
                "branch": piece.branch,
                "text": piece.text,
                "finish_reason": piece.finish_reason,
            }
        )
    yield _event({"summary": pair_summary(writing)})
    yield DONE


async def whole_pair(writing: Writing) -> Json:
    """Both texts, and where they first differ."""
    ends: dict[str, str | None] = {}
    async for piece in writing.pieces():
        ends[piece.branch] = piece.finish_reason
    texts = {c.branch: "".join(c.text) for c in writing.choices[:2]}
    branches = {
        branch: {"text": texts[branch], "finish_reason": ends[branch]}
        for branch in (BASELINE, ABLATED)
    }
    return {**pair_summary(writing), **branches}


def pair_summary(writing: Writing) -> Json:
    """What a paired generation has shown."""
    return {
        "model": writing.bundle.name,
        "seed": writing.seed,
        "ablation": writing.variant.report,
        "first_difference": writing.first_difference,
        "usage": writing.usage,
    }


def _completion_head(writing: Writing) -> Json:
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": writing.bundle.name,
        "ablation": writing.variant.report,
    }


def _first_offset(request: Any) -> int:
    return 0 if request.echo else len(request.prompt)


def _logprobs(piece: Piece, offset: int, top: int) -> Json:
    characters = piece.characters or []
    tops = [c.top if c.logprob is not None else None for c in characters]
    return {
        "tokens": [c.text for c in characters],
        "token_logprobs": [c.logprob for c in characters],
        "top_logprobs": tops if top else None,
        "text_offset": [offset + i for i in range(len(characters))],
    }


def _event(page: Json) -> str:
    return f"data: {json.dumps(page, separators=(',', ':'))}\n\n"


def _body_schema(kind: type[BaseModel]) -> Json:
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


async def _disconnected(http: Request) -> None:
    receive: Callable[[], Awaitable[Any]] = http.receive
    while (await receive())["type"] != "http.disconnect":
        pass
