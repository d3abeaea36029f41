"""A protobuf Struct as the JSON it stands for. JSON has no NaN and no infinity; a Struct can."""

import math
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct, Value

from serve.wire.errors import invalid
from serve.wire.preview import shown


def read_struct(struct: Struct, field: str) -> dict[str, Any]:
    """The JSON object in a field of a request; `RequestError` names a number that isn't finite.

    Its whole numbers are floats: they are for the reader to tell.
    """
    for key, value in struct.fields.items():
        _require_finite(value, f"{field}.{key}")
    page: dict[str, Any] = MessageToDict(struct)
    return page


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
