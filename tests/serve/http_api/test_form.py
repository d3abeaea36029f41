"""Forms of /generate and /score: the same as JSON; broken ones are 400, and nothing is 500."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from serve.http_api.form import FORMS, read_form_or_json
from serve.wire.errors import RequestError
from serve.wire.requests import ScoreRequest, TextRequest

EDITS = {"edits": [{"target": "mixing", "op": "identity"}]}
ASKED = {"prompt": "5", "max_tokens": 20, "seed": 1, "unknown": "skip", "ablation": EDITS}
ASKED |= {"stop": "x", "temperature": 0.5, "echo": True}


def as_fields(asked: dict[str, Any]) -> dict[str, str]:
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in asked.items()}


def read(kind: Any, content: bytes, media: str) -> Any:
    async def receive() -> Message:
        return {"type": "http.request", "body": content, "more_body": False}

    headers = [(b"content-type", media.encode("latin-1"))]
    scope = {"type": "http", "method": "POST", "path": "/generate", "headers": headers}
    return asyncio.run(read_form_or_json(Request(scope, receive), kind))


@pytest.mark.parametrize("way", ["multipart", "urlencoded"])
def test_a_form_asks_what_json_asks(server: Any, way: str) -> None:
    fields = as_fields(ASKED | {"prompt": "ROMEO:", "unknown": "error"})
    files = {name: (None, value) for name, value in fields.items()}
    form: dict[str, Any] = {"files": files} if way == "multipart" else {"data": fields}
    found = httpx.post(server.url + "/generate", **form)
    asked = ASKED | {"prompt": "ROMEO:", "unknown": "error"}
    assert found.status_code == 200
    assert found.text == httpx.post(server.url + "/generate", json=asked).text


def test_fields_that_may_be_texts_are_and_others_are_json() -> None:
    content = str(httpx.QueryParams(as_fields(ASKED))).encode()
    assert read(TextRequest, content, FORMS[1]) == TextRequest.model_validate(ASKED)


def test_json_that_is_called_a_form_is_json() -> None:
    assert read(TextRequest, b' {"prompt": "A"}', FORMS[1]).prompt == "A"
    assert read(TextRequest, b"", FORMS[0]) == TextRequest.model_validate({})


@pytest.mark.parametrize("media", [*FORMS, f"{FORMS[0]}; boundary=a", f"{FORMS[0]}; boundary="])
@given(st.binary(max_size=200) | st.just(b"--a\r\n\r\n--a--") | st.just(b"--a--\r\n"))
def test_what_is_no_form_is_refused_and_no_mistake_of_ours(media: str, content: bytes) -> None:
    try:
        read(ScoreRequest, content, media)
    except RequestError as error:
        assert error.code == "invalid_request"


def test_files_and_other_types_are_refused_by_name(server: Any) -> None:
    url = server.url + "/score"
    for found, status, said in (
        (httpx.post(url, files={"text": ("name", b"abc")}), 400, "Too many files"),
        (httpx.post(url, data={"text": "A", "detail": "x"}), 400, "detail: found 'x', expected J"),
        (httpx.post(url, data={"text": "A", "more": "x"}), 400, "more: unknown field"),
        (httpx.post(url, content=b"x", headers={"Content-Type": "image/png"}), 415, "image/png"),
    ):
        assert found.status_code == status
        assert said in found.json()["error"]["message"]
