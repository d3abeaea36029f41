"""Requests that offer HTTP/2, as Java's client does: answered like the same without the offer."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serve.bento.head_limits import HeadLimits

MODEL = "osm-rnn-shakespeare"
HTTP2 = {
    "Connection": "Upgrade, HTTP2-Settings",
    "Upgrade": "h2c",
    "HTTP2-Settings": "AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA",
}
WEB_SOCKET = {
    "Connection": "keep-alive, Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
OFFERS = {name.lower() for offer in (HTTP2, WEB_SOCKET) for name in offer}


async def echo(request: Request) -> Response:
    body = (await request.body()).decode()
    others = {name: value for name, value in request.headers.items() if name not in OFFERS}
    return JSONResponse([request.method, request.url.path, request.url.query, others, body])


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a server that says what it has been asked."""
    app = Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])])
    options: Any = {"port": 0, "log_level": "critical", "lifespan": "off", "access_log": False}
    server = uvicorn.Server(uvicorn.Config(app, http=HeadLimits, **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def request_bytes(
    method: str, path: str, body: bytes | None, chunked: bool, *, offer: dict[str, str]
) -> bytes:
    headers = {"Host": "here", "X-Own": "a, b"} | offer
    content = body or b""
    if body is not None and chunked:
        headers["Transfer-Encoding"] = "chunked"
        halves = [half for half in (body[: len(body) // 2], body[len(body) // 2 :]) if half]
        content = b"".join(b"%x\r\n%s\r\n" % (len(half), half) for half in halves) + b"0\r\n\r\n"
    elif body is not None:
        headers["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + content


def answers(port: int, sent: bytes, cuts: list[int], num_answers: int) -> list[Any]:
    """What comes back for bytes that arrive in pieces on one connection."""
    places = [0, *sorted(cut % len(sent) for cut in cuts), len(sent)]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, end in zip(places, places[1:], strict=False):
            connection.sendall(sent[start:end])
            time.sleep(0.002)
        with connection.makefile("rb") as arriving:
            return [one_answer(arriving) for _ in range(num_answers)]


def one_answer(arriving: BinaryIO) -> tuple[int, Any]:
    status = int(arriving.readline().split()[1])
    length = int(http.client.parse_headers(arriving)["content-length"])
    return status, json.loads(arriving.read(length))


asked = st.tuples(
    st.sampled_from(["GET", "POST"]),
    st.sampled_from(["/", "/a/b?c=d"]),
    st.none() | st.binary(max_size=40).map(lambda content: content.hex().encode()),
    st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(asked, st.sampled_from([HTTP2, WEB_SOCKET]), st.lists(st.integers(0, 999), max_size=3))
def test_an_offer_changes_no_answer(
    port: int, request: Any, offer: dict[str, str], cuts: list[int]
) -> None:
    plain = answers(port, request_bytes(*request, offer={}), [], 1)
    assert plain[0][0] == 200 and plain[0][1][-1] == (request[2] or b"").decode()
    assert answers(port, request_bytes(*request, offer=offer), cuts, 1) == plain


def test_a_connection_goes_on_after_an_offer(port: int) -> None:
    """Java's client offers on every request; one after the other, and all at once."""
    one: list[Any] = [("POST", f"/{number}", b"body %d" % number, False) for number in range(3)]
    plain = [answers(port, request_bytes(*request, offer={}), [], 1)[0] for request in one]
    sent = b"".join(request_bytes(*request, offer=HTTP2) for request in one)
    assert answers(port, sent, [], 3) == plain
    after = request_bytes(*one[0], offer=HTTP2) + request_bytes(*one[1], offer={})
    assert answers(port, after, [len(after) - 3], 2) == plain[:2]


def test_what_follows_an_offer_is_checked_like_anything_else(port: int) -> None:
    sent = request_bytes("POST", "/", None, False, offer=HTTP2)
    broken = sent.replace(b"Host:", b"Transfer-Encoding: chunked\r\nHost:") + b"no length\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(broken)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("offer", [{}, HTTP2])
def test_a_request_for_a_tunnel_is_refused(port: int, offer: dict[str, str]) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request_bytes("CONNECT", "/a", None, False, offer=offer))
        assert connection.recv(100).startswith(b"HTTP/1.1 405 ")


def test_the_server_answers_an_offer(server: Any) -> None:
    url = urlsplit(server.url)
    body = json.dumps({"model": MODEL, "prompt": "ROMEO:", "max_tokens": 5, "seed": 1})
    texts = []
    for headers in ({}, HTTP2, WEB_SOCKET):
        connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=30)
        for _ in range(2):
            kind = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", body, kind | headers)
            answer = connection.getresponse()
            assert answer.status == 200
            texts.append(json.loads(answer.read())["choices"][0]["text"])
        connection.close()
    assert len(set(texts)) == 1
    assert "Unsupported upgrade" not in server.log.read_text()
