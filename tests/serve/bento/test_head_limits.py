"""Heads of requests: bytes, number and time of headers are limited before any key is looked at."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from serve.bento import head_limits
from serve.bento.head_limits import HeadLimits
from serve.wire.limits import MAX_HEADER_BYTES, MAX_HEADERS

SOON_S = 0.3


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a server that waits for a head for a moment only."""

    async def length(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    options: Any = {"port": 0, "log_level": "critical", "lifespan": "off", "access_log": False}
    app = Starlette(routes=[Route("/", length, methods=["GET", "POST"])])
    server = uvicorn.Server(uvicorn.Config(app, http=HeadLimits, **options))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_limits, "HEADER_TIMEOUT_S", SOON_S)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
        server.should_exit = True
        thread.join()


def head(*headers: str, first: str = "GET / HTTP/1.1") -> bytes:
    return "\r\n".join([first, "Host: here", *headers, "", ""]).encode()


def answer_of(port: int, content: bytes, size: int = 1 << 16) -> tuple[int, Any]:
    """Status and body of what comes back before the connection ends, or stands still."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        try:
            for start in range(0, len(content), size):
                connection.sendall(content[start : start + size])
        except OSError:
            pass  # the server has heard enough
        found = b""
        while b"\r\n\r\n" not in found and (more := connection.recv(1 << 16)):
            found += more
    lines, _, body = found.partition(b"\r\n\r\n")
    return int(lines.split()[1]), body


@pytest.mark.parametrize("size", [100, 1 << 16, 1 << 20])
@pytest.mark.parametrize("way", ["value", "name", "path", "several"])
def test_a_head_of_too_many_bytes_is_431(port: int, way: str, size: int) -> None:
    large = "a" * (MAX_HEADER_BYTES + 1)
    content = {
        "value": head(f"X-Large: {large}"),
        "name": head(f"{large}: x"),
        "path": head(first=f"GET /{large} HTTP/1.1"),
        "several": head(*(f"X-{i}: {'a' * 2000}" for i in range(40))),
    }[way]
    if size == 100:
        content = content[: MAX_HEADER_BYTES + 300]
    status, body = answer_of(port, content, size)
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (431, "headers_too_large")
    assert f"at most {MAX_HEADER_BYTES} (max_header_bytes)" in error["message"]


def test_too_many_headers_are_431_and_as_many_as_may_be_are_read(port: int) -> None:
    for count, status in ((MAX_HEADERS - 1, 200), (MAX_HEADERS, 431)):
        found, body = answer_of(port, head(*(f"X-{i}: a" for i in range(count))))
        assert found == status
    assert f"found {MAX_HEADERS + 1}, expected at most {MAX_HEADERS} (max_headers)" in str(body)


def test_bodies_do_not_count(port: int) -> None:
    body = b"x" * 300_000
    request = head(f"Content-Length: {len(body)}", first="POST / HTTP/1.1") + body
    for size in (1 << 16, 1 << 20):
        assert answer_of(port, request, size)[0] == 200


@pytest.mark.parametrize("begun", [b"GET", head()[:-2], head() + b"GET / HT"])
def test_a_head_that_trickles_in_is_408(port: int, begun: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(begun)
        since, found = time.monotonic(), b""
        while more := connection.recv(1 << 16):
            found += more
    assert found.split(b"\r\n\r\n")[-2].endswith(b"connection: close") and b" 408 " in found
    assert b"(header_timeout_s); send them faster" in found
    assert time.monotonic() - since > SOON_S / 2


def test_a_connection_that_says_nothing_is_closed_without_a_word(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        assert connection.recv(100) == b""


def test_requests_on_one_connection_each_have_their_time(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(3):
            assert client.post("/", content=b"abc").text == "3"
            time.sleep(SOON_S / 2)


def test_a_large_header_holds_nobody(server: Any) -> None:
    address = urlsplit(server.url)
    assert answer_of(address.port or 0, head("X-Large: " + "a" * (32 << 20)))[0] == 431
    limits = httpx.get(server.url + "/v1/limits").json()["limits"]
    assert {"max_header_bytes", "max_headers", "header_timeout_s"} < set(limits)
