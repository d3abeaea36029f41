"""Content-Encoding of bodies: unpacked within the limits, or refused by name."""

import gzip
import json
import zlib
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.http_api.content_encoding import STEP, Unpacker
from serve.wire.errors import RequestError
from serve.wire.limits import MAX_BODY_BYTES

PACK: dict[str, Any] = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress}
BODY = {"prompt": "ROMEO:", "max_tokens": 20, "seed": 1}


def unpack(encoding: str, content: bytes, size: int) -> bytes:
    unpacker, found = Unpacker(encoding), b""
    for start in range(0, len(content), size):
        for part in unpacker.feed(content[start : start + size]):
            assert len(part) <= max(STEP, size)
            found += part
    unpacker.end()
    return found


@pytest.mark.parametrize("encoding", PACK)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3), st.integers(1, 400))
def test_bodies_are_unpacked_wherever_chunks_end(
    encoding: str, parts: list[bytes], size: int
) -> None:
    if encoding == "deflate":
        parts = [b"".join(parts)]
    content = b"".join(map(PACK[encoding], parts))
    assert unpack(encoding, content, size) == b"".join(parts)


@pytest.mark.parametrize("size", [STEP - 1, STEP, STEP + 1, 5 * STEP, 3 * STEP + 77])
def test_nothing_of_a_large_body_is_lost(size: int) -> None:
    content = bytes(size)
    assert unpack("gzip", gzip.compress(content), 1000) == content


@pytest.mark.parametrize("encoding", ["", "identity", " IDENTITY "])
def test_a_plain_body_stays_as_it_is(encoding: str) -> None:
    assert unpack(encoding, b"abc", 2) == b"abc"


@given(st.binary(min_size=1, max_size=100), st.data())
def test_what_is_cut_or_no_gzip_is_refused(content: bytes, data: Any) -> None:
    packed = gzip.compress(content)
    cut = packed[: data.draw(st.integers(1, len(packed) - 1))]
    for wrong in (cut, b"\0" + packed):
        with pytest.raises(RequestError, match="found no gzip data") as error:
            unpack("gzip", wrong, 7)
        assert error.value.code == "invalid_request"


@pytest.mark.parametrize("encoding", PACK)
def test_a_packed_request_is_answered_as_a_plain_one(server: Any, encoding: str) -> None:
    url, headers = server.url + "/v1/completions", {"Content-Encoding": encoding}
    plain = httpx.post(url, json=BODY).json()
    packed = PACK[encoding](json.dumps(BODY).encode())
    found = httpx.post(url, content=packed, headers=headers).json()
    assert found["choices"] == plain["choices"]


def test_other_encodings_are_415_and_limits_count_what_is_unpacked(server: Any) -> None:
    for path in ("/v1/completions", "/score"):
        url = server.url + path
        answer = httpx.post(url, content=b"x", headers={"Content-Encoding": "br, gzip"})
        assert answer.status_code == 415
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_media_type", "content-encoding")
        assert "'br, gzip', expected gzip, deflate or none" in error["message"]
        bomb = gzip.compress(bytes(MAX_BODY_BYTES + 1))
        answer = httpx.post(url, content=bomb, headers={"Content-Encoding": "gzip"}, timeout=30)
        assert answer.status_code == 413 and "max_body_bytes" in answer.text
