import asyncio
import threading
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.grpc_api import structs
from serve.grpc_api.structs import SHORT, make_struct, to_struct

numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    numbers | st.booleans() | st.none() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
pages = st.dictionaries(st.text(), values)


@settings(max_examples=40)
@given(pages)
def test_a_struct_holds_what_protobufs_own_json_reader_makes_of_a_page(page: Any) -> None:
    assert to_struct(page) == ParseDict(page, Struct())
    assert asyncio.run(make_struct(page)) == to_struct(page)


def test_a_long_page_is_made_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = list[bool](), structs.to_struct

    def noted(page: dict[str, Any]) -> Struct:
        seen.append(threading.current_thread() is threading.main_thread())
        return real(page)

    monkeypatch.setattr(structs, "to_struct", noted)
    for page in ({"a": [0] * (SHORT - 10)}, {"a": [0] * SHORT}, {"a": {"b": [[0] * SHORT]}}):
        assert MessageToDict(asyncio.run(make_struct(page))) == page
    assert seen == [True, False, False]


def test_the_length_of_a_page_is_found_without_going_through_all_of_it() -> None:
    def endless() -> Any:
        yield from [0] * (SHORT + 1)
        raise AssertionError("more is looked at than tells a long page")

    class Page(list[int]):
        def __iter__(self) -> Any:
            return endless()

    assert structs._room({"a": Page([0]), "b": 1}, SHORT) == 0
