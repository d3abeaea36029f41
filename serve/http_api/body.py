"""Bodies of requests over HTTP: read within their limits, parsed, and checked.

What is large is parsed and checked off the event loop.
"""

import asyncio
import json
from typing import Any

from starlette.requests import Request
from starlette.types import Message, Receive

from serve.http_api.json_weight import require_light
from serve.http_api.sliced_json import load_sliced
from serve.offload import LARGE, by_size
from serve.wire.errors import RequestError
from serve.wire.limits import BODY_TIMEOUT_S, MAX_BODY_BYTES
from serve.wire.requests import Request as Asked
from serve.wire.requests import parse_request


async def read_request(http: Request, kind: type[Asked]) -> Asked:
    """The body as a checked request; `RequestError` if it is none of this kind."""
    return await parse_body(await read_body(http), kind)


async def parse_body(content: bytes, kind: type[Asked]) -> Asked:
    """JSON as a checked request; `RequestError` if it is none, or holds more than one may."""
    await require_light(content)
    return await by_size(len(content), _parse, content, kind)


async def read_body(http: Request) -> bytes:
    """The body; `RequestError` if it is too large or too slow."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read_body(http)
    except TimeoutError:
        sentence = f"body: not whole after {BODY_TIMEOUT_S} s (body_timeout_s); send it faster"
        raise RequestError("timeout", sentence, "body") from None


def _parse(content: bytes, kind: type[Asked]) -> Asked:
    try:
        value: Any = json.loads(content) if len(content) <= LARGE else load_sliced(content)
    except (ValueError, RecursionError) as error:
        raise RequestError("invalid_request", f"body: found no JSON ({error})", "body") from None
    return parse_request(kind, value)


async def _read_body(http: Request) -> bytes:
    content = bytearray()
    async for chunk in http.stream():
        content += chunk
        require_small(len(content))
    return bytes(content)


def bounded(receive: Receive, length: str | None) -> Receive:
    """A `receive` that ends in a `RequestError` where more comes than a body may hold.

    At once where its `length`, the header of that name, says so.
    """
    require_small(int(length) if length and length.isdecimal() else 0)
    taken = 0

    async def receive_some() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        require_small(taken)
        return message

    return receive_some


def require_small(size: int) -> None:
    """`RequestError` for a body of more bytes than one may hold."""
    if size > MAX_BODY_BYTES:
        sentence = f"body: expected at most {MAX_BODY_BYTES} bytes (max_body_bytes)"
        raise RequestError("too_large", f"{sentence}; send less at once", "body")
