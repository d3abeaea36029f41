import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.http_api import body
from serve.http_api.body import decode_in_slices

numbers = st.integers() | st.floats() | st.booleans() | st.none()
values = st.recursive(
    numbers | st.text(),
    lambda inner: (
        st.lists(inner) | st.lists(numbers, min_size=5) | st.dictionaries(st.text(), inner)
    ),
)
broken = st.text('[]{},:"1-.e \\ntrulNa', max_size=30)


def outcome(load: Any, content: bytes) -> Any:
    """The value as text, which tells 1 from 1.0 and knows NaN; or the error."""
    try:
        return repr(load(content))
    except ValueError as error:
        return type(error), str(error)


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "SLICE", 3)


@given(values, st.sampled_from([None, 1]), st.booleans())
def test_what_is_parsed_in_slices_is_what_is_parsed_in_one_piece(
    value: Any, indent: int | None, is_ascii: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    for content in (text.encode("utf-8", "surrogatepass"), text.encode("utf-16", "surrogatepass")):
        assert outcome(decode_in_slices, content) == outcome(json.loads, content)


@given(st.lists(broken | st.sampled_from(["[", "]", ",", "1", " ", '"']), max_size=12).map("".join))
def test_what_is_no_json_has_the_same_error(text: str) -> None:
    content = text.encode()
    assert outcome(decode_in_slices, content) == outcome(json.loads, content)


@pytest.mark.parametrize(
    "text",
    ["[1,2,3,4,]", "[1,2,3,4,,5]", "[,1,2,3,4]", "[1,2,3,4, ,5]", "[1,2,3,4 5]", "[[1,2,3,4],]"],
)
def test_a_comma_too_much_is_an_error_wherever_the_slices_end(text: str) -> None:
    found = outcome(decode_in_slices, text.encode())
    assert found == outcome(json.loads, text.encode()) and found[0] is json.JSONDecodeError


def test_no_slice_is_much_longer_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "SLICE", 100)
    content = json.dumps({"prompt": [*range(2_000)], "more": [[0.5] * 500, [math.pi]]}).encode()
    expected, lengths, real = json.loads(content), list[int](), json.loads

    def noted(text: Any) -> Any:
        lengths.append(len(text))
        return real(text)

    monkeypatch.setattr(json, "loads", noted)
    assert decode_in_slices(content) == expected
    assert max(lengths) <= 130 and sum(lengths) > 0.8 * len(content)


def test_what_is_nested_too_deep_for_one_is_too_deep_for_both() -> None:
    for depth in (500, 200_000):
        content = b"[" * depth + b"]" * depth
        try:
            expected: Any = json.loads(content)
        except RecursionError:
            with pytest.raises(RecursionError):
                decode_in_slices(content)
        else:
            assert decode_in_slices(content) == expected
