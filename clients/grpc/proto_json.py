"""JSON as protobuf messages and back, as strict as HTTP: kinds aren't converted into each other.

protobuf's own reader takes "0.9" for a number, 3.0 for a whole one and null for nothing.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from clients.errors import ServerError, UnfitRequest
from serve.wire.codec import Json, JsonObject
from serve.wire.edit_fields import ABLATION_KEYS, edit_keys, stray_key
from serve.wire.preview import shown

Filled = TypeVar("Filled", bound=Message)
STRUCT = Struct.DESCRIPTOR.full_name
EDIT, ABLATION = "torsor.v1.Edit", "torsor.v1.Ablation"
MAX_WHOLE = 2**63  # an int64 is below it
KINDS = {  # of protobuf: type in Python, as a sentence says it
    FieldDescriptor.CPPTYPE_STRING: (str, "a text; put it in quotes"),
    FieldDescriptor.CPPTYPE_BOOL: (bool, "true or false, without quotes"),
    FieldDescriptor.CPPTYPE_DOUBLE: (float, "a number, without quotes"),
    FieldDescriptor.CPPTYPE_INT64: (int, "a whole number of 64 bits, without quotes or point"),
}


def fill(message: Filled, body: JsonObject) -> Filled:
    """The message of a request's JSON. `ServerError` for what HTTP would refuse: a key that isn't
    known, or a value of another kind; its place is named as HTTP names it."""
    kind: Any = message.DESCRIPTOR  # of two types, by what protobuf runs on
    _check_object(kind, body, "")
    try:
        return json_format.ParseDict(body, message)
    except (json_format.ParseError, TypeError, ValueError) as error:  # all that is known is checked
        reason = str(error).splitlines()[0].rstrip(".")
        raise UnfitRequest("request", f"found {reason}, expected what gRPC can carry") from None


def json_of(message: Message) -> JsonObject:
    """A message as JSON; its keys in order of the alphabet, as protobuf's maps keep none."""
    found: JsonObject = _ordered(json_format.MessageToDict(message))
    return found


def _ordered(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


def _check_object(kind: Descriptor, value: Json, place: str) -> None:
    if not isinstance(value, Mapping):
        raise _refusal(place, f"found {shown(value)}, expected an object; give it its keys")
    known = {EDIT: edit_keys(value), ABLATION: ABLATION_KEYS}.get(kind.full_name)
    within = f"{place}." if place else ""
    if stray := stray_key(value, known or tuple(kind.fields_by_name)):
        key, expected, remedy = stray
        raise _refusal(f"{within}{key:.60}", f"found this key, expected {expected}; {remedy}")
    for key, inner in value.items():
        _check_field(kind.fields_by_name[key], inner, f"{within}{key}")


def _check_field(field: FieldDescriptor, value: Json, place: str) -> None:
    inside = field.message_type
    if inside is not None and inside.GetOptions().map_entry:
        for key, item in value.items():
            _check_value(inside.fields_by_name["value"], item, f"{place}.{key}")
    elif not field.is_repeated:
        _check_value(field, value, place)
    elif not isinstance(value, list):
        raise _refusal(place, f"found {shown(value)}, expected a list; put it in brackets")
    elif not value and _is_of(field, EDIT):  # to protobuf it is no list
        raise _refusal(place, "found an empty list, expected some entries; leave the key out")
    else:
        for index, item in enumerate(value):
            _check_value(field, item, f"{place}[{index}]")


def _check_value(field: FieldDescriptor, value: Json, place: str) -> None:
    if field.message_type is not None:
        if field.message_type.full_name != STRUCT:
            _check_object(field.message_type, value, place)
        return
    kind, expected = KINDS[field.cpp_type]
    fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if isinstance(value, bool) and kind is not bool:
        fits = False
    if fits and kind is int:
        fits = -MAX_WHOLE <= value < MAX_WHOLE
    if fits and kind is float and isinstance(value, int):
        fits = abs(value) < 2**1023
    if not fits:
        raise _refusal(place, f"found {shown(value)}, expected {expected}")


def _is_of(field: FieldDescriptor, kind: str) -> bool:
    holder = field.containing_type
    return holder is not None and holder.full_name == kind


def _refusal(place: str, problem: str) -> ServerError:
    return ServerError("invalid_request", f"{place}: {problem}", place)
