"""Bodies of requests over HTTP: read within their limits, parsed, and checked.

The JSON parser is one call into C that can't be interrupted and holds the interpreter's lock.
Millions of empty lists in a body of allowed size would hold the event loop for seconds: so what
stands outside of strings is counted first, a window at a time. A prompt of a million token ids
holds it for a tenth of a second: so a large body is parsed in a thread, by the parser's Python form
for the outer shape, and the C form for long lists of numbers, a slice at a time. Values and errors
equal those of `json.loads`.
"""

import asyncio
import json
from collections.abc import Callable
from json.decoder import JSONArray  # type: ignore[attr-defined]  # its stubs lack it
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from starlette.requests import Request
from starlette.types import Message, Receive

from serve.http_api.content_encoding import STEP, Unpacker
from serve.offload import LARGE, offload_if_large
from serve.wire.errors import RequestError, invalid
from serve.wire.limits import (
    BODY_TIMEOUT_S,
    MAX_BODY_BYTES,
    MAX_JSON_NUMBERS,
    MAX_JSON_PARTS,
)
from serve.wire.requests import Request as Asked
from serve.wire.requests import parse_request

SMALL = 1 << 16  # bytes that can't hold much
WINDOW = 1 << 18  # bytes that are counted without a pause


async def read_request(http: Request, kind: type[Asked]) -> Asked:
    """The body as a checked request; `RequestError` if it is none of this kind."""
    return await parse_body(await read_body(http), kind)


async def parse_body(content: bytes, kind: type[Asked]) -> Asked:
    """JSON as a checked request; `RequestError` if it is none, or holds more than one may."""
    await check_structure(content)
    return await offload_if_large(len(content), _parse, content, kind)


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
        value: Any = json.loads(content) if len(content) <= LARGE else decode_in_slices(content)
    except (ValueError, RecursionError) as error:
        raise RequestError("invalid_request", f"body: found no JSON ({error})", "body") from None
    return parse_request(kind, value)


async def _read_body(http: Request) -> bytes:
    unpacker, content = Unpacker(http.headers.get("content-encoding", "")), bytearray()
    async for chunk in http.stream():
        for part in unpacker.feed(chunk):
            content += part
            require_small(len(content))
            if len(part) == STEP:
                await asyncio.sleep(0)
    unpacker.end()
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


async def check_structure(content: bytes) -> None:
    """`RequestError` names the limit that a body's JSON is beyond."""
    if len(content) <= SMALL:
        return
    count = StructureCount()
    for start in range(0, len(content), WINDOW):
        count.add(content[start : start + WINDOW])
        for found, limit, name in (
            (count.num_parts, MAX_JSON_PARTS, "max_json_parts"),
            (count.num_commas, MAX_JSON_NUMBERS, "max_json_numbers"),
        ):
            if found > limit:
                what = name.removeprefix("max_json_")
                what = "strings, lists and objects" if what == "parts" else "values"
                sentence = f"found more than {limit} {what}, expected fewer ({name})"
                raise invalid("body", f"{sentence}; send less at once")
        await asyncio.sleep(0)


class StructureCount:
    """Counts what JSON holds; fed in windows that may end anywhere."""

    def __init__(self) -> None:
        self.num_commas = self._num_quotes = self._num_brackets = 0
        self._escapes = self._inside = False  # the last window ended in a backslash, in a string

    @property
    def num_parts(self) -> int:
        """Strings, lists and objects so far."""
        return self._num_brackets + (self._num_quotes + 1) // 2

    def add(self, window: bytes) -> None:
        """Count one more window."""
        bare = window[1:] if self._escapes and window else window
        bare = bare.replace(b"\\\\", b"")
        self._escapes = bare.endswith(b"\\")
        pieces = bare.replace(b'\\"', b"").split(b'"')
        outside = b" ".join(pieces[self._inside :: 2])
        self._inside ^= len(pieces) % 2 == 0
        self._num_quotes += len(pieces) - 1
        self._num_brackets += outside.count(b"[") + outside.count(b"{")
        self.num_commas += outside.count(b",")


SLICE = 1 << 15  # characters

Scan = Callable[[str, int], tuple[Any, int]]


def decode_in_slices(content: bytes) -> Any:
    """The parsed JSON; `ValueError` or `RecursionError` as `json.loads` raises them."""
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        return _DECODER.decode(text)
    except (ValueError, RecursionError):  # rare: let the standard parser say what is wrong
        return json.loads(content)


class _Decoder(json.JSONDecoder):
    def __init__(self) -> None:
        super().__init__()
        self.parse_array = _array
        self.scan_once = py_make_scanner(self)


def _array(place: tuple[str, int], scan: Scan, *more: Any) -> tuple[list[Any], int]:
    """A list and where it ends; `place` is the text and where its first item begins."""
    text, start = place
    end = text.find("]", start)
    if end < 0 or any(text.find(character, start, end) >= 0 for character in '"[{'):
        found: tuple[list[Any], int] = JSONArray(place, scan, *more)
        return found
    return _numbers(text, start, end), end + 1


def _numbers(text: str, start: int, end: int) -> list[Any]:
    """The items from `start` to `end`, none of which is a string, a list or an object."""
    found = list[Any]()
    while (cut := text.find(",", min(start + SLICE, end), end)) >= 0:
        found += _slice(text[start:cut], True)
        start = cut + 1
    return found + _slice(text[start:end], bool(found))


def _slice(text: str, owed: bool) -> list[Any]:
    items: list[Any] = json.loads(f"[{text}]")
    if owed and not items:
        raise ValueError("nothing between two commas")
    return items


_DECODER = _Decoder()
