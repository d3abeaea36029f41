"""JSON, parsed so that other threads get their turn: equal to `json.loads`, value and error.

The standard parser is one call into C that holds the interpreter's lock: for a prompt of a million
token ids a tenth of a second, on an idle machine. Here its Python form walks the outer shape, and
long lists of numbers go through the C form a slice at a time.
"""

import json
from collections.abc import Callable
from json.decoder import JSONArray  # type: ignore[attr-defined]  # its stubs lack it
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

SLICE = 1 << 15  # characters

Scan = Callable[[str, int], tuple[Any, int]]


def load_sliced(content: bytes) -> Any:
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
