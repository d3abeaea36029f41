"""JSON that is long: made in slices, and weighed before it is parsed."""

import asyncio
import json
from typing import Any

import grpc
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.http_api.body import StructureCount
from serve.http_api.responses import ELEMENTS, json_parts, json_text
from serve.wire import torsor_pb2 as pb
from serve.wire import torsor_pb2_grpc as rpc
from serve.wire.limits import MAX_JSON_NUMBERS, MAX_JSON_PARTS

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # what may look like structure, and does not count inside of a string
    | st.text(st.sampled_from('a"\\[]{},:é')),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text('k"\\{', max_size=4), inner)
    ),
    max_leaves=30,
)


def logprobs(count: int) -> dict[str, Any]:
    tops = [{"a": -0.5 - i, "b": -1.5} for i in range(count)]
    return {"tokens": ["a"] * count, "token_logprobs": [-0.5] * count, "top_logprobs": tops}


@given(values)
def test_slices_make_the_text_that_json_makes(value: Any) -> None:
    assert asyncio.run(json_text(value)) == json.dumps(value, separators=(",", ":"))


def test_no_slice_of_a_long_answer_is_long() -> None:
    page = {"choices": [{"index": i, "logprobs": logprobs(1_000)} for i in range(48)], "usage": {}}
    parts = list(json_parts(page))
    assert json.loads("".join(parts)) == page
    assert max(map(len, parts)) < 40 * ELEMENTS


def count(value: Any) -> tuple[int, int]:
    """Strings, lists and objects of a value, and its commas."""
    if isinstance(value, str):
        return 1, 0
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    found = [count(item) for item in inner]
    parts, commas = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0)
    return 1 + parts, max(0, len(value) - 1) + commas


@given(values, st.integers(1, 9))
def test_a_body_weighs_what_it_holds_however_it_is_cut(value: Any, size: int) -> None:
    content, weight = json.dumps(value).encode(), StructureCount()
    for start in range(0, len(content), size):
        weight.add(content[start : start + size])
    assert (weight.num_parts, weight.num_commas) == count(value)


@pytest.mark.parametrize(
    ("content", "limit"),
    [
        (b'{"prompt":[' + b",".join([b"[]"] * (MAX_JSON_PARTS + 1)) + b"]}", "max_json_parts"),
        (b'{"prompt":[' + b"1," * (MAX_JSON_NUMBERS + 1) + b"1]}", "max_json_numbers"),
    ],
)
def test_a_body_that_holds_too_much_is_refused_unparsed(
    server: Any, content: bytes, limit: str
) -> None:
    answer = httpx.post(server.url + "/v1/completions", content=content, timeout=60)
    assert answer.status_code == 400 and f"({limit})" in answer.json()["error"]["message"]
    shown = httpx.get(server.url + "/v1/limits", timeout=60).json()["limits"]
    assert str(int(shown[limit])) in answer.json()["error"]["message"]


def test_a_message_that_holds_too_much_is_refused_too(server: Any) -> None:
    edits = pb.Ablation(edits=[pb.Edit()] * (MAX_JSON_PARTS + 1))
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub: Any = rpc.TorsorStub(channel)  # type: ignore[no-untyped-call]  # generated
        with pytest.raises(grpc.RpcError) as generated:
            list(stub.Generate(pb.GenerateRequest(ablation=edits), timeout=60))
        with pytest.raises(grpc.RpcError) as scored:
            stub.Score(pb.ScoreRequest(text="a", ablation=edits), timeout=60)
    for caught in (generated, scored):
        call: Any = caught.value
        assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "(max_json_parts)" in call.details()
