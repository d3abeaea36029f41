"""Trials in nested lists as a safetensors file, which is all that gRPC's Trials takes.

Written here, because a client needs neither NumPy nor safetensors: 8 bytes that say how long the
header is, a header of JSON, and the numbers.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any

from clients.errors import ServerError
from serve.wire.codec import Json, JsonObject

ALIGNMENT = 8  # bytes
TYPES = {"I64": "q", "F32": "f"}  # safetensors' name: that of the module struct


def trials_file(trials: JsonObject, task: JsonObject) -> bytes:
    """The file of `inputs`, `targets` and perhaps `mask`; `ServerError` for what is no number.

    `task` says which of them are whole numbers, as `GET /v1/models` has it.
    """
    wholes = {"inputs": task.get("inputs") == "characters"}
    wholes["targets"] = task.get("targets") == "classes"
    header: dict[str, Any] = {}
    contents = list[bytes]()
    for name, value in trials.items():
        kind = "I64" if wholes.get(name) else "F32"
        content, start = _numbers(name, value, TYPES[kind]), sum(map(len, contents))
        place = [start, start + len(content)]
        header[name] = {"dtype": kind, "shape": _shape(value), "data_offsets": place}
        contents.append(content)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % ALIGNMENT)
    return b"".join([struct.pack("<Q", len(head)), head, *contents])


def _shape(value: Json) -> list[int]:
    return [len(value), *(_shape(value[0]) if value else [])] if isinstance(value, list) else []


def _numbers(name: str, value: Json, kind: str) -> bytes:
    try:
        numbers = list(_flat(value, _shape(value)))
        return struct.pack(f"<{len(numbers)}{kind}", *numbers)
    except OverflowError:
        found = f"trials.{name}: found a number beyond float32, expected at most 3.403e+38"
        raise ServerError("invalid_request", f"{found}; scale it", f"trials.{name}") from None
    except (struct.error, TypeError, ValueError) as error:
        expected = "expected nested lists of numbers, all of one length"
        message = f"trials.{name}: found other data ({error}), {expected}"
        raise ServerError("invalid_request", message, f"trials.{name}") from None


def _flat(value: Json, shape: list[int]) -> Iterator[Any]:
    if isinstance(value, list) != bool(shape) or (shape and len(value) != shape[0]):
        raise ValueError("lists of unequal lengths")
    if not shape:
        yield value
        return
    for item in value:
        yield from _flat(item, shape[1:])
