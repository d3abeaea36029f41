"""HTTP clients against a server on loopback that answers what a test scripts; errors of all."""

import asyncio
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from clients.errors import ConnectionFailed, ServerError, StreamBroken, UnexpectedAnswer
from clients.http_client import AsyncHttpClient, HttpClient
from clients.results import join_completion, join_pair

USAGE = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
EDITS = {"edits": [{"target": "recurrent", "op": "zero"}]}
MODEL = {
    "id": "osm",
    "root": "osm",
    "max_model_len": 1000,
    "symbols": "characters",
    "family": "osm-rnn",
    "config": {},
    "num_parameters": 77_000,
    "vocabulary_size": 65,
    "task": None,
    "device": "cpu",
    "provider": "CPUExecutionProvider",
    "kernels": "standard operators",
    "targets": [],
    "training": {},
}
STRUCTURE = {"model": "osm", "targets": []}
ALONE = dict.fromkeys(("ablated", "delta_bpc", "mean_kl", "kl", "ablation"))
SCORE = {"model": "osm", "num_characters": 2, "baseline": {"bpc": 2.0}, **ALONE}
CHOICE = {"index": 0, "text": "abc", "finish_reason": "stop", "seed": 3}
HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 5, "model": "osm"}
COMPLETION = {**HEAD, "choices": [CHOICE], "usage": USAGE, "ablation": None}
FULL = {"message": "queue: found 256 waiting, expected fewer: try again", "type": "server_error"}
Answer = Callable[[BaseHTTPRequestHandler], None]


def sse(*pages: Any) -> bytes:
    """Pages as events; a str stands for itself."""
    texts = (p if isinstance(p, str) else json.dumps(p, ensure_ascii=False) for p in pages)
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def event(text: str, usage: Any = None) -> dict[str, Any]:
    """A streamed completion's event."""
    choice = {**CHOICE, "text": text, "finish_reason": "stop" if usage else None}
    return {**HEAD, "choices": [choice], "usage": usage}


PAIR = {"model": "osm", "seed": 3, "ablation": EDITS, "first_difference": 1, "usage": USAGE}
PAIR_EVENTS = sse(
    {"branch": "baseline", "text": "ab"},
    {"branch": "ablated", "text": "ax"},
    {"summary": PAIR},
    "[DONE]",
)


class Stub(ThreadingHTTPServer):
    """Answers each path as `answers` says, and keeps the bodies it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Answer] = {}
        self.bodies: list[Any] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_GET(self) -> None:
        self.server.answers[self.path](self)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(json.loads(content))
        self.server.answers[self.path](self)

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


def answer(page: Any, status: int = 200, **headers: str) -> Answer:
    """One whole answer; bytes stand for themselves."""
    content = page if isinstance(page, bytes) else json.dumps(page).encode()

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)

    return send


def pour(gone: threading.Event) -> Answer:
    """An endless stream; `gone` is set when the client has left."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while not gone.wait(0.002):
                handler.wfile.write(sse(event("a")))
        except OSError:
            gone.set()

    return send


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def client(stub: Stub) -> Iterator[HttpClient]:
    with HttpClient(stub.url) as client:
        yield client


def script(stub: Stub) -> None:
    """The whole server's answers."""

    def complete(handler: BaseHTTPRequestHandler) -> None:
        streams = stub.bodies[-1].get("stream")
        answer(sse(event("ab"), event("c", USAGE), "[DONE]") if streams else COMPLETION)(handler)

    stub.answers = {
        "/v1/models": answer({"object": "list", "data": [MODEL]}),
        "/v1/models/osm/structure": answer(STRUCTURE),
        "/v1/completions": complete,
        "/v1/ablations/generate": answer(PAIR_EVENTS),
        "/v1/ablations/score": answer(SCORE),
    }


async def ask_all(client: AsyncHttpClient) -> list[Any]:
    async with client:
        return [
            await client.models(),
            await client.structure(),
            await client.complete("x", stop="!"),
            join_completion([chunk async for chunk in client.generate("x", stop=["!"])]),
            join_pair([chunk async for chunk in client.generate_pair("x", EDITS, seed=3)]),
            await client.score("ab", EDITS, detail=True),
        ]


def test_sync_and_async_ask_alike_and_give_equal_results(stub: Stub, client: HttpClient) -> None:
    script(stub)
    results = [
        client.models(),
        client.structure(),
        client.complete("x", stop="!"),
        join_completion(client.generate("x", stop=["!"])),
        join_pair(client.generate_pair("x", EDITS, seed=3)),
        client.score("ab", EDITS, detail=True),
    ]
    bodies, stub.bodies = stub.bodies, []
    assert results == asyncio.run(ask_all(AsyncHttpClient(stub.url)))
    assert results[2] == results[3]  # at once and streamed
    assert bodies == stub.bodies


def test_requests_hold_only_what_was_given(stub: Stub, client: HttpClient) -> None:
    script(stub)
    client.complete("x", seed=2**63 - 1, temperature=None)
    list(client.generate_pair("x", EDITS, logit_bias={"1": -100}))
    assert stub.bodies == [
        {"prompt": "x", "seed": 2**63 - 1},
        {"prompt": "x", "ablation": EDITS, "logit_bias": {"1": -100}, "stream": True},
    ]


def test_structure_without_a_model_takes_the_first(stub: Stub, client: HttpClient) -> None:
    script(stub)
    stub.answers["/v1/models"] = answer({"data": [MODEL, {**MODEL, "id": "rot"}]})
    assert client.structure().model == "osm"
    stub.answers["/v1/models"] = answer({"data": []})
    with pytest.raises(ServerError, match="found none on the server"):
        client.structure()


def test_a_models_id_is_quoted_in_the_path(stub: Stub, client: HttpClient) -> None:
    stub.answers["/v1/models/a%2Fb%3F/structure"] = answer(STRUCTURE)
    assert client.structure("a/b?").model == "osm"


@pytest.mark.parametrize("code", ["queue_full", "unavailable"])
def test_http_errors_become_server_errors(stub: Stub, client: HttpClient, code: str) -> None:
    page = {"error": {**FULL, "param": None, "code": code}}
    stub.answers["/v1/completions"] = answer(page, 429, Retry_After="1")
    for ask in (client.complete, lambda prompt: list(client.generate(prompt))):
        with pytest.raises(ServerError, match="found 256 waiting") as caught:
            ask("x")
        assert (caught.value.code, caught.value.field) == (code, None)
        assert caught.value.retry_after_s == 1


@pytest.mark.parametrize("status", [200, 307, 404, 502])
@pytest.mark.parametrize("page", [b"<html>", [], {"error": "no"}, {"data": 1}])
def test_other_servers_are_told_apart(
    stub: Stub, client: HttpClient, status: int, page: Any
) -> None:
    stub.answers["/v1/models"] = answer(page, status)
    with pytest.raises(UnexpectedAnswer, match="expected the answer of a torsor server"):
        client.models()


def test_a_stream_that_ends_early_is_broken(stub: Stub, client: HttpClient) -> None:
    stub.answers["/v1/completions"] = answer(sse(event("ab")))
    stream = client.generate("x")
    assert next(stream).text == "ab"
    with pytest.raises(StreamBroken, match=r"without \[DONE\]"):
        next(stream)


def test_an_answer_cut_short_is_broken(stub: Stub, client: HttpClient) -> None:
    stub.answers["/v1/models"] = answer(b"{", Content_Length="100")
    with pytest.raises(StreamBroken, match="lost before the answer was whole"):
        client.models()


def test_silence_is_limited_where_asked(stub: Stub) -> None:
    silence = threading.Event()

    def wait(handler: BaseHTTPRequestHandler) -> None:
        del handler
        silence.wait(5)

    stub.answers["/v1/models"] = wait
    with HttpClient(stub.url, max_silence_s=0.05) as client, pytest.raises(StreamBroken):
        client.models()
    silence.set()


def test_closing_a_stream_early_ends_it_on_the_server(stub: Stub, client: HttpClient) -> None:
    gone = threading.Event()
    stub.answers["/v1/completions"] = pour(gone)
    with closing(client.generate("x")) as stream:
        assert next(stream).text == "a"
    assert gone.wait(2)


def test_closing_an_async_stream_early_ends_it_on_the_server(stub: Stub) -> None:
    gone = threading.Event()
    stub.answers["/v1/completions"] = pour(gone)

    async def leave() -> None:
        async with AsyncHttpClient(stub.url) as client, aclosing(client.generate("x")) as stream:
            assert (await anext(stream)).text == "a"

    asyncio.run(leave())
    assert gone.wait(2)


def test_a_missing_server_is_named_with_the_remedy() -> None:
    with HttpClient("http://127.0.0.1:1") as http, pytest.raises(ConnectionFailed) as caught:
        list(http.generate("x"))
    assert "http://127.0.0.1:1" in str(caught.value) and "torsor serve" in str(caught.value)

    async def ask() -> None:
        async with AsyncHttpClient("http://127.0.0.1:1") as client:
            await client.models()

    with pytest.raises(ConnectionFailed, match="torsor serve"):
        asyncio.run(ask())


def test_an_address_of_another_kind_is_a_value_error() -> None:
    for url in ("localhost:3000", "http://", "http://h:port", "http://[::"):
        with pytest.raises(ValueError, match="expected http://HOST:PORT"):
            HttpClient(url)


def test_errors_survive_pickling() -> None:
    errors: list[Exception] = [
        ServerError("queue_full", "queue: full", None, 1.0),
        ConnectionFailed("a", "b"),
        StreamBroken("a", "b"),
        UnexpectedAnswer("a", "b"),
    ]
    for error in errors:
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
