"""Pages of JSON as protobuf's Struct, whose numbers are doubles; long ones off the event loop."""

from typing import Any

from google.protobuf.struct_pb2 import Struct

from serve.offload import by_size

SHORT = 500  # values, which take about a millisecond


async def make_struct(page: dict[str, Any]) -> Struct:
    """The page as a Struct; a long one is made off the event loop."""
    return await by_size(SHORT - _room(page, SHORT), to_struct, page, small=SHORT - 1)


def to_struct(page: dict[str, Any]) -> Struct:
    """The page as a Struct."""
    struct = Struct()
    struct.update(page)
    return struct


def _room(value: Any, room: int) -> int:
    """What is left of room for so many values once these have taken theirs; at least 0."""
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            if room <= 0:
                break
            room = _room(inner, room)
    return max(0, room - 1)
