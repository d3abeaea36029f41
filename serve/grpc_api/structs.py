"""JSON as protobuf's Struct and back; long ones off the event loop.

A Struct's numbers are doubles, and may be NaN or infinite, which JSON's can't.
"""

import math
from dataclasses import is_dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct, Value

from serve.offload import offload_if_large
from serve.wire.codec import shallow, to_json
from serve.wire.errors import invalid
from serve.wire.preview import shown

SHORT = 500  # values, which take about a millisecond


async def make_struct(response: Any) -> Struct:
    """A response, or other JSON, as a Struct; a long one is made off the event loop."""
    size = SHORT - _room(response, SHORT)
    return await offload_if_large(size, to_struct, response, small=SHORT - 1)


def to_struct(response: Any) -> Struct:
    """A response, or other JSON, as a Struct."""
    struct = Struct()
    struct.update(to_json(response))
    return struct


def _room(value: Any, room: int) -> int:
    """The room for so many values, less those that a value holds; at least 0."""
    if is_dataclass(value):
        value = shallow(value)
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            if room <= 0:
                break
            room = _room(inner, room)
    return max(0, room - 1)


def read_struct(struct: Struct, field: str) -> dict[str, Any]:
    """The JSON object in a field of a request; `RequestError` names a number that isn't finite.

    Its whole numbers are floats: they are for the reader to tell.
    """
    for key, value in struct.fields.items():
        _require_finite(value, f"{field}.{key}")
    found: dict[str, Any] = MessageToDict(struct)
    return found


def _require_finite(value: Value, place: str) -> None:
    kind = value.WhichOneof("kind")
    if kind == "number_value" and not math.isfinite(value.number_value):
        expected = "a finite number; write one, or leave it out"
        raise invalid(place, f"found {shown(value.number_value)}, expected {expected}")
    if kind == "list_value":
        for index, item in enumerate(value.list_value.values):
            _require_finite(item, f"{place}[{index}]")
    if kind == "struct_value":
        for key, item in value.struct_value.fields.items():
            _require_finite(item, f"{place}.{key}")
