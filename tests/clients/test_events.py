"""Server-sent events, cut anywhere."""

import json
from typing import Any

import pytest

from clients.answers import CompletionEvents, read_pair_event
from clients.errors import ServerError, StreamBroken, UnexpectedAnswer
from clients.http.events import EventStream
from clients.results import Chunk

HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 5, "model": "m"}


def event(text: str) -> Any:
    return {**HEAD, "choices": [{"index": 0, "text": text, "seed": 1}], "usage": None}


def encode(page: Any) -> str:
    return f"data: {json.dumps(page, ensure_ascii=False)}"


def read(content: bytes, size: int) -> list[Chunk]:
    stream = EventStream("here", CompletionEvents().read)
    pieces = (content[i : i + size] for i in range(0, len(content), size))
    chunks = [chunk for piece in pieces for chunk in stream.feed(piece)]
    stream.end()
    return chunks


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_whole_wherever_pieces_end(size: int, newline: str) -> None:
    texts = ["a", "é→", "\u2028\x85\x0b\r\n", "", "data: [DONE]"]
    lines = [": alive", "", "event: message"]
    for text in texts:
        lines += [encode(event(text)), ""]
    content = newline.join([*lines, "data:[DONE]", "", ""]).encode()
    assert [chunk.text for chunk in read(content, size)] == texts


def test_an_event_may_take_several_lines() -> None:
    lines = json.dumps(event("ab"), indent=1).splitlines()
    content = "\n".join(f"data: {line}" for line in lines) + "\n\ndata: [DONE]\n\n"
    assert [chunk.text for chunk in read(content.encode(), 5)] == ["ab"]


@pytest.mark.parametrize("tail", ["", "data: [DONE]", "data: [DONE]\n", 'data: {"choices": ['])
def test_a_stream_without_its_end_is_broken(tail: str) -> None:
    with pytest.raises(StreamBroken, match=r"without \[DONE\]"):
        read(f"{encode(event('a'))}\n\n{tail}".encode(), 9)


def test_text_before_an_error_event_is_delivered() -> None:
    problem = {"message": "seed 3: found NaN", "type": "server_error", "param": None}
    error = {"error": {**problem, "code": "model_error"}}
    stream = EventStream("here", CompletionEvents().read)
    chunks = stream.feed(f"{encode(event('a'))}\n\n{encode(error)}\n\n".encode())
    assert next(chunks).text == "a"
    with pytest.raises(ServerError, match="found NaN") as caught:
        next(chunks)
    assert caught.value.code == "model_error"


@pytest.mark.parametrize("data", ["{", "[]", "3", "{}", '{"choices": [{}]}', '{"error": "no"}'])
def test_an_event_of_another_shape_is_unexpected(data: str) -> None:
    with pytest.raises(UnexpectedAnswer, match="here: found the event"):
        read(f"data: {data}\n\n".encode(), 100)


def test_the_summary_quotes_an_ablation_of_an_earlier_event() -> None:
    usage = {"prompt_tokens": 0, "completion_tokens": 1, "total_tokens": 1}
    events = CompletionEvents()
    events.read({**event("a"), "ablation": {"name": "n", "removed": [{"mass": 1.0}]}})
    (chunk,) = events.read({**HEAD, "choices": [], "usage": usage, "ablation": None})
    assert chunk.summary is not None and chunk.summary.usage.total_tokens == 1
    assert chunk.summary.ablation == {"name": "n", "removed": [{"mass": 1}]}


def test_a_usage_beside_a_choice_gives_text_and_summary() -> None:
    usage = {"prompt_tokens": 0, "completion_tokens": 1, "total_tokens": 1}
    text, end = CompletionEvents().read({**event("a"), "usage": usage})
    assert text.text == "a" and text.summary is None and end.summary is not None


def test_pair_events_name_their_branch() -> None:
    page = {"branch": "ablated", "text": "a", "finish_reason": "stop"}
    assert read_pair_event(page) == [Chunk(text="a", branch="ablated", finish_reason="stop")]
