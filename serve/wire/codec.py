"""JSON of responses: dataclasses as JSON values, and JSON values as dataclasses.

    to_json(from_json(kind, value)) == value        for a value that says all that the kind declares

A field is a key of its own name, unless it is declared as

    left_out(default)   a key that is missing where the field has its default
    sometimes(default)  a key that only some of the responses have
    inside(key)         a key in the object `key`
    flat()              an object whose keys stand among the holder's own; none of them for None
    rest()              a dict whose keys stand among the holder's own

A complex number is [real, imaginary]. Whole numbers are int wherever any JSON may stand: protobuf's
Struct has doubles only, and both wires give equal values.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Json = Any  # any JSON value
JsonObject = dict[str, Any]
Kind = TypeVar("Kind")
Read = Callable[[Any], Any]
PLACE = "place"  # of a field in JSON, in its metadata
MAX_WHOLE = 2**53  # above it a double does not hold every integer


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a field in JSON that is not a key of its own name."""

    way: str  # left_out, sometimes, inside, flat or rest
    key: str = ""


def left_out(default: Any) -> Any:
    """A field whose key is missing where it has its default."""
    return dataclasses.field(default=default, metadata={PLACE: Place("left_out")})


def sometimes(default: Any) -> Any:
    """A field whose key only some of the responses have."""
    return dataclasses.field(default=default, metadata={PLACE: Place("sometimes")})


def inside(key: str, default: Any = dataclasses.MISSING) -> Any:
    """A field whose key stands in the object `key`."""
    return dataclasses.field(default=default, metadata={PLACE: Place("inside", key)})


def flat() -> Any:
    """A field whose own fields stand among the holder's; None: none of them do."""
    return dataclasses.field(default=None, metadata={PLACE: Place("flat")})


def rest() -> Any:
    """A field, a dict, whose entries stand among the holder's."""
    return dataclasses.field(default_factory=dict, metadata={PLACE: Place("rest")})


def places(kind: Any) -> dict[str, Place]:
    """The fields of a dataclass that don't stand under their own names."""
    named = {field.name: field.metadata.get(PLACE) for field in dataclasses.fields(kind)}
    return {name: place for name, place in named.items() if place is not None}


def to_json(value: Any) -> Any:
    """The JSON value of a response, or of anything that holds some."""
    if isinstance(value, dict):
        return {key: to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    return value if isinstance(value, float | int | str | None) else to_json(shallow(value))


def shallow(value: Any) -> Any:
    """The JSON form of a dataclass or a complex number; serves as `default` of `json.dumps`.

    A dataclass becomes a dict of its values as they are. TypeError for anything else.
    """
    if isinstance(value, complex):
        return [value.real, value.imag]
    found: dict[str, Any] = {}
    kind: Any = type(value)
    for name, place, default in _writing(kind):
        inner = getattr(value, name)
        if (
            place is None
            or place.way == "sometimes"
            or (place.way == "left_out" and inner != default)
        ):
            found[name] = inner
        elif place.way == "inside":
            found.setdefault(place.key, {})[name] = inner
        elif place.way == "flat" and inner is not None:
            found |= shallow(inner)
        elif place.way == "rest":
            found |= inner
    return found


def from_json(kind: type[Kind], value: Any) -> Kind:
    """The response of this kind in a JSON value; keys that it doesn't declare are passed over.

    Raises KeyError, TypeError or ValueError where the value isn't of this kind.
    """
    hashable: Any = kind
    found: Kind = _reader(hashable)(value)
    return found


def whole(value: Any) -> Any:
    """Any JSON value with its whole numbers as int."""
    if isinstance(value, Mapping):
        return {key: whole(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [whole(inner) for inner in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_WHOLE
    return int(value) if is_whole else value


@cache
def _writing(kind: Any) -> list[tuple[str, Place | None, Any]]:
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"found a value of type {kind.__name__}, expected JSON or a response")
    own = places(kind)
    return [(field.name, own.get(field.name), field.default) for field in dataclasses.fields(kind)]


@cache
def _reader(kind: Any) -> Read:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if origin in (Union, types.UnionType):
        (inner,) = (_reader(one) for one in arguments if one is not types.NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin is dict:
        return _dict_reader(_reader(arguments[1]))
    return _response_reader(kind)


def _tuple_reader(arguments: tuple[Any, ...]) -> Read:
    item, count = _reader(arguments[0]), None if arguments[-1] is ... else len(arguments)

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or count not in (None, len(value)):
            raise TypeError(f"found {value!r:.80}, expected a list")
        return tuple(map(item, value))

    return read


def _dict_reader(item: Read) -> Read:
    def read(value: Any) -> Any:
        return {key: item(inner) for key, inner in _object(value).items()}

    return read


def _response_reader(kind: Any) -> Read:
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    parts = [_field_reader(field, hints[field.name], kind) for field in fields]

    def read(value: Any) -> Any:
        given = _object(value)
        return kind(**{name: found for part in parts for name, found in part(given)})

    return read


def _field_reader(field: Any, hint: Any, kind: Any) -> Callable[[Mapping[str, Any]], Any]:
    """Gives a field's name and value, or nothing where its default is to stand."""
    name, read, place = field.name, _reader(hint), field.metadata.get(PLACE)
    is_needed = field.default is field.default_factory is dataclasses.MISSING

    def read_key(given: Mapping[str, Any]) -> list[tuple[str, Any]]:
        return [(name, read(given[name]))] if is_needed or name in given else []

    match place:
        case Place("inside", key):
            return lambda given: read_key(
                _object(given[key] if is_needed else given.get(key) or {})
            )
        case Place("flat"):
            (inner,) = (one for one in get_args(hint) if one is not types.NoneType)
            first = dataclasses.fields(inner)[0].name
            return lambda given: [(name, read(given))] if first in given else []
        case Place("rest"):
            own = {one.name for one in dataclasses.fields(kind)}
            return lambda given: [(name, {k: whole(v) for k, v in given.items() if k not in own})]
    return read_key


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"found {value!r:.80}, expected an object")
    return value


def _integer(value: Any) -> int:
    number = whole(value)
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"found {value!r:.80}, expected a whole number")
    return number


def _float(value: Any) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise TypeError(f"found {value!r:.80}, expected a number")
    return float(value)


def _complex(value: Any) -> complex:
    real, imaginary = value
    return complex(_float(real), _float(imaginary))


def _exactly(kind: type[Any]) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"found {value!r:.80}, expected {kind.__name__}")
        return value

    return read


SIMPLE: dict[Any, Read] = {
    Any: whole,
    int: _integer,
    float: _float,
    complex: _complex,
    str: _exactly(str),
    bool: _exactly(bool),
    types.NoneType: _exactly(types.NoneType),
}
