"""What is asked, as plain JSON, before it is checked and sent: once for HTTP and gRPC.

NumPy's numbers and arrays, and whatever else has `tolist()`, become Python's; tuples become lists.
What JSON can't hold is refused by its place.
"""

import math
import re
from typing import Any

from clients.errors import UnfitRequest
from serve.wire.preview import shown

MAX_DEPTH = 90  # lists and objects within each other; protobuf reads 100
SURROGATE = re.compile("[\ud800-\udfff]")
REMEDY = "a finite number, a text, true, false, null, a list or an object; write it as one of them"


def plain_json(value: Any, place: str, depth: int = MAX_DEPTH) -> Any:
    """A value as JSON has it; `UnfitRequest` for one that it can't hold."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _unfit(place, shown(value), "a finite number; write one, or leave it out")
        return value
    if isinstance(value, str):
        if SURROGATE.search(value):
            raise _unfit(place, f"{value!r:.60}", "a text that UTF-8 can hold; leave it out")
        return value
    if depth == 0:
        expected = f"at most {MAX_DEPTH}; nest less"
        raise _unfit(place, "more lists and objects within each other", expected)
    if isinstance(value, list | tuple):
        return [plain_json(item, f"{place}[{i}]", depth - 1) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {_key(key, place): _inside(item, key, place, depth) for key, item in value.items()}
    raise _unfit(place, f"the {type(value).__name__} {str(value)!r:.60}", REMEDY)


def _inside(item: Any, key: Any, place: str, depth: int) -> Any:
    return plain_json(item, f"{place}.{key}", depth - 1)


def _key(key: Any, place: str) -> str:
    if not isinstance(key, str):
        raise _unfit(place, f"the key {key!r:.60}", "texts as keys; put it in quotes")
    return key


def _unfit(place: str, found: str, expected: str) -> UnfitRequest:
    return UnfitRequest(place, f"found {found}, expected {expected}")
