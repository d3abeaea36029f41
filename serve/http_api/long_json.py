"""JSON of any length, made in slices: a long answer never holds the event loop for long."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

SLICE = 64  # elements of a list that are written at once
TURN_S = 0.001  # after which others get their turn


async def json_response(page: Any) -> Response:
    """The page as an answer."""
    return Response(await json_text(page), media_type="application/json")


async def json_text(page: Any) -> str:
    """The page as JSON in ASCII, without spaces."""
    parts, since = list[str](), time.perf_counter()
    for part in json_parts(page):
        parts.append(part)
        if time.perf_counter() - since > TURN_S:
            await asyncio.sleep(0)
            since = time.perf_counter()
    return "".join(parts)


def json_parts(value: Any) -> Iterator[str]:
    """The JSON of a value in pieces, none of them long unless a string is."""
    if isinstance(value, dict) and any(map(_holds, value.values())):
        for place, (key, inner) in enumerate(value.items()):
            yield f"{',' if place else '{'}{_dump(key)}:"
            yield from json_parts(inner)
        yield "}"
    elif isinstance(value, list) and value and _nests(value[0]):
        for place, inner in enumerate(value):
            yield "," if place else "["
            yield from json_parts(inner)
        yield "]"
    elif isinstance(value, list) and len(value) > SLICE:
        for start in range(0, len(value), SLICE):
            yield f"{',' if start else '['}{_dump(value[start : start + SLICE])[1:-1]}"
        yield "]"
    else:
        yield _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _holds(value: Any) -> bool:
    return isinstance(value, dict | list)


def _nests(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_holds, inner))
