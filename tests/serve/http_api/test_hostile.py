"""What a hostile or just a large request may cost: work is counted, not timed."""

import asyncio
import json
import math
import re
import threading
from collections.abc import Iterator
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError, model_validator

from serve.http_api.body import parse_body
from serve.offload import LARGE
from serve.runtime.vocabulary import SLICE, Vocabulary
from serve.wire.errors import MAX_FIELD, MAX_MESSAGE, RequestError
from serve.wire.open_inference import InferRequest
from serve.wire.preview import shown
from serve.wire.queries import CompareRequest, SweepRequest, TrialsRequest
from serve.wire.requests import CompletionRequest, DetokenizeRequest, parse_request
from serve.wire.validation import Strict


class Closed(str):
    """A text that may be cut, and not be gone through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("every character is looked at")


def printable_by_definition(text: str, length: int) -> str:
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= length else shown[: length - 1] + "…"


def test_an_error_looks_at_no_more_of_a_text_than_it_shows() -> None:
    error = RequestError("not_found", Closed("a" * 5_000), Closed("b" * 5_000))
    assert error.message == "a" * (MAX_MESSAGE - 1) + "…"
    assert error.field == "b" * (MAX_FIELD - 1) + "…"


@given(st.integers(0, 12), st.text("a\n\ud800é…", max_size=12))
def test_an_error_shows_what_it_would_show_of_the_whole_text(padding: int, end: str) -> None:
    for length in (MAX_MESSAGE, MAX_FIELD):
        text = "a" * (length - padding) + end
        error = RequestError("not_found", text, text)
        assert error.message == printable_by_definition(text, MAX_MESSAGE)
        assert error.field == printable_by_definition(text, MAX_FIELD)


# --- wrong items ----------------------------------------------------------------------------------

COLLECTIONS = ("list", "dict", "tuple", "set", "frozenset", "generator")
MANY = 500
WRONG: list[tuple[type[Strict], dict[str, Any]]] = [
    (CompletionRequest, {"stop": [1] * MANY}),
    (CompletionRequest, {"logit_bias": {str(i): "x" for i in range(MANY)}}),
    (CompletionRequest, {"stop_token_ids": ["a"] * MANY}),
    (CompletionRequest, {"stream_options": {str(i): 1 for i in range(MANY)}}),
    (CompletionRequest, {str(i): 1 for i in range(MANY)}),
    (DetokenizeRequest, {"tokens": [-1] * MANY}),
    (CompareRequest, {"ablations": [1] * MANY}),
    (SweepRequest, {"text": "a", "ablations": [1] * MANY}),
    (SweepRequest, {"text": "a", "grid": {"edits": [1] * MANY}}),
    (SweepRequest, {"text": "a", "grid": {"edits": [{}] * MANY}}),
    (SweepRequest, {"text": "a", "grid": {"edits": [{}], "order": [1] * MANY}}),
    (SweepRequest, {"text": "a", "grid": {"edits": [{}], "axes": {str(i): 1 for i in range(99)}}}),
    (TrialsRequest, {"trials": {"inputs": [], "targets": [], "mask": [[2.0] * MANY] * MANY}}),
    (InferRequest, {"inputs": [1] * MANY}),
    (InferRequest, {"inputs": [{}] * MANY}),
    (InferRequest, {"inputs": [], "outputs": [{}] * MANY}),
    *(
        (InferRequest, {"inputs": [{"name": "a", "datatype": "FP32", "shape": [size] * MANY}]})
        for size in (1.5, 999999999999, 1)
    ),
]


@pytest.mark.parametrize(("kind", "body"), WRONG)
def test_the_first_wrong_item_of_a_body_ends_its_check(kind: type[Strict], body: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    # One error a field at most, and one a branch of a union: never one an item
    assert caught.value.error_count() <= 4
    with pytest.raises(RequestError) as told:
        parse_request(kind, body)
    assert told.value.code == "invalid_request" and told.value.field


def test_every_list_and_dict_of_every_request_ends_at_its_first_wrong_item() -> None:
    kinds = list(all_kinds(Strict))
    assert {kind for kind, _ in WRONG} < set(kinds)
    for kind in kinds:
        for schema in inner_schemas(kind.__pydantic_core_schema__):
            if schema.get("type") in COLLECTIONS:
                assert schema.get("fail_fast") is True, (kind, schema)


def all_kinds(kind: type[Strict]) -> Iterator[type[Strict]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from all_kinds(inner)


def inner_schemas(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    values = schema.values() if isinstance(schema, dict) else schema
    if isinstance(schema, dict | list | tuple):
        for value in values:
            yield from inner_schemas(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=30),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner),
)


class Word:
    """A constant as JSON writes it."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __repr__(self) -> str:
        return self.word


def worded(value: Any) -> Any:
    """The value with JSON's words in the place of Python's constants."""
    if value is None or isinstance(value, bool):
        return Word(json.dumps(value))
    if isinstance(value, float) and not math.isfinite(value):
        return Word(json.dumps(value))
    if isinstance(value, list):
        return [worded(item) for item in value]
    return {key: worded(item) for key, item in value.items()} if isinstance(value, dict) else value


@given(json_values)
def test_what_was_found_is_shown_as_json_has_it(value: Any) -> None:
    if isinstance(value, str):  # its quotes may depend on what is cut
        assert shown(value)[1:] == repr(value)[1:60] or "'" in value
    elif "'" not in "".join(texts(value)):
        assert shown(value) == f"{worded(value)!r:.60}"


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    if isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts(inner)
        yield from value if isinstance(value, dict) else ()


class Unread(list[int]):
    """A list whose items must not be looked at beyond the first hundred."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(100):
            yield 7
        raise AssertionError("more is looked at than is shown")


def test_no_more_of_a_long_list_is_looked_at_than_is_shown() -> None:
    assert shown(Unread()) == repr([7] * 100)[:60]


# --- large bodies ---------------------------------------------------------------------------------


def test_a_large_body_is_read_off_the_event_loop_and_a_small_one_at_once() -> None:
    seen = list[bool]()

    class Noted(Strict):
        prompt: str

        @model_validator(mode="after")
        def _note(self) -> Self:
            seen.append(threading.current_thread() is threading.main_thread())
            return self

    for size in (10, LARGE):
        body = json.dumps({"prompt": "a" * size}).encode()
        assert len(asyncio.run(parse_body(body, Noted)).prompt) == size
    assert seen == [True, False]


def test_a_large_body_has_the_errors_of_a_small_one() -> None:
    for tail in (
        '"prompt": 7}',
        '"max_tokens": -1}',
        '"prompt": [[1], ["a"]]}',
        '"other": 1}',
        "x",
    ):
        told = set[str]()
        for size in (10, LARGE):
            body = f'{{"state": "{"a" * size}", {tail}'.encode()
            with pytest.raises(RequestError) as caught:
                asyncio.run(parse_body(body, CompletionRequest))
            told.add(f"{caught.value.field} {caught.value.message}".split(" (char")[0])
        assert len({re.sub(r"column [0-9]+", "column", text) for text in told}) == 1, told


def test_token_ids_are_checked_in_slices_as_they_are_in_one_piece() -> None:
    vocabulary = Vocabulary(tuple("abc"))
    ids = [0, 1, 2] * SLICE
    assert vocabulary.check(ids, "prompt").tolist() == ids
    assert vocabulary.check([], "prompt").tolist() == []
    for wrong in (3, -1, 2**70):
        ids[-2] = wrong
        with pytest.raises(RequestError, match=f"found token id {wrong} at index {len(ids) - 2}"):
            vocabulary.check(ids, "prompt")
    for other in (True, 1.0, "a"):
        with pytest.raises(RequestError, match="expected a text, a list of texts"):
            parse_request(CompletionRequest, {"prompt": [*ids[:-2], other]})
