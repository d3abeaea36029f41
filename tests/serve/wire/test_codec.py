"""JSON of responses: what is written is read again, from every carrier that a wire has."""

import asyncio
import dataclasses
import json
import math
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import jsonschema_rs
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.grpc_api.structs import to_struct
from serve.http_api.openapi import schema_of
from serve.http_api.responses import json_text
from serve.wire import open_inference, query_responses, responses
from serve.wire.codec import from_json, shallow, to_json, whole
from serve.wire.query_responses import SweepPoint, point_json
from serve.wire.responses import Spectrum, Usage

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**53), 2**53)  # a protobuf Struct holds doubles
NAMES = st.text("abcδ", max_size=3).map("x_".__add__)  # no field is called so
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    Any: JSON,
    bool: st.booleans(),
    complex: st.complex_numbers(allow_nan=False, allow_infinity=False),
    float: FLOATS,
    int: INTEGERS,
    str: st.text(max_size=5),
    types.NoneType: st.none(),
}
KINDS = [
    value
    for module in (responses, query_responses, open_inference)
    for value in vars(module).values()
    if dataclasses.is_dataclass(value) and value.__module__ == module.__name__
]


def drawn(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as responses declare it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if origin in (Union, types.UnionType):
        return st.one_of([drawn(one) for one in arguments])
    if origin is dict:
        return st.dictionaries(NAMES, drawn(arguments[1]), max_size=2)
    if origin is tuple and arguments[-1] is ...:
        return st.lists(drawn(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(drawn, arguments))
    return st.builds(kind, **{name: drawn(hint) for name, hint in get_type_hints(kind).items()})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
@settings(max_examples=25)
@given(st.data())
def test_a_response_is_read_as_it_was_written(kind: Any, data: Any) -> None:
    value = data.draw(drawn(kind))
    text = asyncio.run(json_text(value))
    assert json.loads(text) == json.loads(json.dumps(to_json(value)))
    assert from_json(kind, json.loads(text)) == value
    assert from_json(kind, MessageToDict(to_struct(value))) == value  # as gRPC carries it
    jsonschema_rs.validate(schema_of(kind), json.loads(text))


@given(drawn(SweepPoint))
def test_a_point_says_no_more_than_it_knows(point: SweepPoint) -> None:
    page = point_json(point)
    assert from_json(SweepPoint, page).error == point.error
    if point.error is not None:
        assert set(page) == {"index", "name", "error", "seconds"}
    else:
        assert ("controls" in page) == ("controls_mean" in page) == bool(point.controls)
        assert {"mass", "delta", "per_mass", "ablation"} <= set(page)


@given(JSON)
def test_whole_numbers_are_integers_wherever_any_json_may_stand(value: Any) -> None:
    assert whole(json.loads(json.dumps(value), parse_int=float)) == value
    carried = whole(MessageToDict(to_struct({"x": value}))["x"])
    assert json.dumps(carried, sort_keys=True) == json.dumps(value, sort_keys=True)


USAGE = {"prompt_tokens": 1.0, "completion_tokens": 2, "total_tokens": 3}


@pytest.mark.parametrize("told", [{}, {"prompt_tokens_details": None}, {"more": [1]}])
def test_keys_may_be_missing_where_there_is_a_default_and_others_are_passed_over(told: Any) -> None:
    usage = from_json(Usage, USAGE | told)
    assert usage == Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3, cached_tokens=0)
    assert type(usage.prompt_tokens) is int


@pytest.mark.parametrize(
    "wrong",
    [
        *({"prompt_tokens": found} for found in (1.5, True, "1", None, math.inf, [1])),
        {"prompt_tokens_details": 3},
    ],
)
def test_what_is_of_another_kind_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="found .*, expected"):
        from_json(Usage, USAGE | wrong)
    missing = {key: value for key, value in USAGE.items() if key != "total_tokens"}
    with pytest.raises(KeyError, match="total_tokens"):
        from_json(Usage, missing)


@pytest.mark.parametrize("value", [[], "abc", 3, None])
def test_a_response_is_an_object(value: Any) -> None:
    with pytest.raises(TypeError, match="expected an object"):
        from_json(Spectrum, value)


def test_only_json_and_responses_are_written() -> None:
    for value in (object(), {1, 2}, b"x"):
        with pytest.raises(TypeError, match="expected JSON or a response"):
            to_json({"x": [value]})
    assert shallow(1 + 2j) == [1.0, 2.0]
