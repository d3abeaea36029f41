"""A gRPC message passes the gate first, and is looked at before it is parsed."""

import asyncio
import threading
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from serve.grpc_api import interceptor
from serve.grpc_api.interceptor import SMALL_MESSAGE, parse_message, require_few_fields
from serve.wire import open_inference_pb2 as inference_pb
from serve.wire import torsor_pb2 as pb
from serve.wire.errors import RequestError
from serve.wire.limits import MAX_MESSAGE_FIELDS, MAX_TENSORS

GENERATE, INFER = "/torsor.v1.Torsor/Generate", "/inference.GRPCInferenceService/ModelInfer"
GENERATED: Any = pb.GenerateRequest.DESCRIPTOR
INFERRED: Any = inference_pb.ModelInferRequest.DESCRIPTOR
NO_MESSAGE = b"\xff" * 9
EMPTY_INPUT = b"\x2a\x00"  # an InferInputTensor without anything, of ModelInferRequest

EMPTY_EDIT = b"\x12\x00"  # of Ablation


def inside(tag: bytes, content: bytes) -> bytes:
    """A field of this tag, with a length of three bytes."""
    size = len(content)
    return tag + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + content


def ask(address: str, method: str, content: bytes, key: str | None = None) -> Any:
    """The code and sentence of a failed call with these bytes."""
    headers = () if key is None else (("authorization", f"Bearer {key}"),)
    with grpc.insecure_channel(address) as channel:
        stub: Any = channel.unary_stream(method)
        call = stub(content, timeout=60, metadata=headers)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code().name, str(caught.value.details())


def test_nothing_is_parsed_of_whom_the_gate_does_not_let_in(keyed: Any) -> None:
    server, keys = keyed
    for method in (GENERATE, INFER):
        code, sentence = ask(server.grpc_address, method, NO_MESSAGE)
        assert code == "UNAUTHENTICATED" and sentence.startswith("authorization: found none")
        code, sentence = ask(server.grpc_address, method, NO_MESSAGE, keys["free"])
        assert code == "INVALID_ARGUMENT" and sentence.startswith("message: found none in protobuf")


@pytest.mark.parametrize(
    ("method", "content"),
    [
        (INFER, EMPTY_INPUT * (MAX_MESSAGE_FIELDS + 1)),
        (GENERATE, inside(b"\x72", EMPTY_EDIT * (MAX_MESSAGE_FIELDS + 1))),
    ],
)
def test_a_message_of_too_many_fields_is_refused_unparsed(
    server: Any, method: str, content: bytes
) -> None:
    code, sentence = ask(server.grpc_address, method, content)
    assert code == "INVALID_ARGUMENT" and "(max_message_fields)" in sentence


def test_a_run_has_no_more_tensors_than_are_looked_at(server: Any) -> None:
    head = inference_pb.ModelInferRequest(model_name="osm-rnn-shakespeare").SerializeToString()
    code, sentence = ask(server.grpc_address, INFER, head + EMPTY_INPUT * (MAX_TENSORS + 1))
    assert (code, sentence) == (
        "INVALID_ARGUMENT",
        "inputs: found 257 entries, expected at most 256",
    )


def test_what_is_not_small_is_parsed_off_the_event_loop() -> None:
    seen = list[bool]()

    def parse(content: bytes) -> Message:
        seen.append(threading.current_thread() is threading.main_thread())
        return pb.GenerateRequest.FromString(content)

    for size in (10, SMALL_MESSAGE):
        content = pb.GenerateRequest(prompt="a" * size).SerializeToString()
        assert len(asyncio.run(parse_message(content, parse, GENERATE)).prompt) == size
    assert seen == [True, False]


# --- the weight -----------------------------------------------------------------------------------

edits = st.builds(
    pb.Edit,
    target=st.none() | st.text(max_size=3),
    alpha=st.none() | st.floats(allow_nan=False),
    zero=st.lists(st.text(max_size=3), max_size=3),
    rows=st.lists(st.integers(0, 300), max_size=3),
    like=st.none() | st.just(pb.Edit(op="zero", rows=[1, 2])),
)
requests = st.builds(
    pb.GenerateRequest,
    prompt=st.text(max_size=200),
    seed=st.none() | st.integers(-1, 2**62),
    stop=st.lists(st.text(max_size=3), max_size=3),
    logit_bias=st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=3),
    ablation=st.none() | st.builds(pb.Ablation, edits=st.lists(edits, max_size=4)),
)


def fields_by_definition(message: Message) -> int:
    """Tags on the wire: of a list of numbers one; a map's entry has its key and its value."""
    return sum(tags_of(field, value) for field, value in message.ListFields())


def tags_of(field: Any, value: Any) -> int:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return 3 * len(value)
    if not field.is_repeated:
        return 1 + (fields_by_definition(value) if isinstance(value, Message) else 0)
    if field.is_packed:
        return 1
    return sum(1 + (fields_by_definition(v) if isinstance(v, Message) else 0) for v in value)


@given(requests)
def test_the_weight_of_a_message_is_the_number_of_its_fields(request_: pb.GenerateRequest) -> None:
    content = request_.SerializeToString()
    found = fields_by_definition(request_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interceptor, "MAX_MESSAGE_FIELDS", found)
        require_few_fields(content, GENERATED)
        patch.setattr(interceptor, "MAX_MESSAGE_FIELDS", found - 1)
        if found:
            with pytest.raises(RequestError, match=r"\(max_message_fields\)"):
                require_few_fields(content, GENERATED)


@given(st.binary(max_size=60))
def test_what_is_no_message_is_left_to_the_parser(content: bytes) -> None:
    require_few_fields(content, GENERATED)


def test_what_stands_before_a_broken_end_is_counted() -> None:
    content = EMPTY_INPUT * (MAX_MESSAGE_FIELDS + 1) + b"\xff"
    with pytest.raises(RequestError, match=r"\(max_message_fields\)"):
        require_few_fields(content, INFERRED)
