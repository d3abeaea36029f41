"""Clients against small servers on loopback that answer what the tests script."""

import asyncio
import json
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from http.server import BaseHTTPRequestHandler
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from clients.errors import (
    ConnectionFailed,
    ServerError,
    StreamBroken,
    TorsorError,
    UnexpectedAnswer,
)
from clients.grpc_client import GrpcClient
from clients.http_client import AsyncHttpClient, HttpClient
from clients.results import Chunk, join_completion, join_pair, to_json
from serve.wire import torsor_pb2 as pb
from serve.wire.torsor_pb2_grpc import add_TorsorServicer_to_server
from tests.fake_servers import (
    EDITS,
    FULL,
    MODEL,
    SEED,
    STRUCTURE,
    Service,
    Stub,
    answer,
    cut,
    pour,
    script,
    sse,
)


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


@pytest.fixture
def service() -> Iterator[tuple[Service, GrpcClient]]:
    servicer = Service()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TorsorServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with GrpcClient(f"127.0.0.1:{port}") as client:
        yield servicer, client
    server.stop(None).wait()


def ask_all(client: HttpClient | GrpcClient) -> list[Any]:
    return [
        client.models(),
        client.structure(),
        client.complete("x", logprobs=2, stop="!", ablation=EDITS),
        join_completion(client.generate("x", logprobs=2, stop=["!"], ablation=EDITS)),
        join_pair(client.generate_pair("x", EDITS, seed=3, logit_bias={"1": -100})),
        client.score("ab", EDITS, detail=True, unknown="skip"),
    ]


async def ask_all_async(client: AsyncHttpClient) -> list[Any]:
    async with client:
        return [
            await client.models(),
            await client.structure(),
            await client.complete("x", logprobs=2, stop="!", ablation=EDITS),
            join_completion([c async for c in client.generate("x", logprobs=2, ablation=EDITS)]),
            join_pair([c async for c in client.generate_pair("x", EDITS, seed=3)]),
            await client.score("ab", EDITS, detail=True),
        ]


def test_http_async_and_grpc_give_equal_results(
    stub: Stub, client: HttpClient, service: tuple[Service, GrpcClient]
) -> None:
    script(stub)
    over_http = ask_all(client)
    assert over_http == ask_all(service[1])
    assert over_http == asyncio.run(ask_all_async(AsyncHttpClient(stub.url)))
    assert over_http[2] == over_http[3]  # at once and streamed


def test_results_hold_what_the_wire_said(stub: Stub, client: HttpClient) -> None:
    script(stub)
    (model,), structure, completion, _, pair, score = ask_all(client)
    assert (model.test_bpc, model.targets) == (2.125, ("recurrent", "readout"))
    assert structure.targets[0].spectrum.eigenvalues[1] == 1 - 1.118j
    assert structure.targets[1].spectrum is None
    assert completion.text == "ab\u2028" and completion.choices[0].seed == SEED
    assert [c.logprob for c in completion.choices[0].characters] == [None, -0.5, -1.5]
    assert completion.ablation["removed"][0]["mass"] == 0.25
    assert (pair.baseline.text, pair.ablated.text, pair.first_difference) == ("abc", "ax", 1)
    assert (pair.seed, score.delta_bpc, score.kl) == (SEED, 0.5, (0.125, 0.375))
    assert json.loads(to_json(structure))["targets"][0]["spectrum"]["eigenvalues"][0] == [1, 1.118]


def test_both_transports_print_alike(
    stub: Stub, client: HttpClient, service: tuple[Service, GrpcClient]
) -> None:
    script(stub)
    for http, over_grpc in zip(ask_all(client), ask_all(service[1]), strict=True):
        assert json.loads(to_json(http)) == json.loads(to_json(over_grpc))
        assert len(to_json(http)) == len(to_json(over_grpc))  # 1000, not 1000.0; order may differ


def test_requests_hold_only_what_was_given(
    stub: Stub, client: HttpClient, service: tuple[Service, GrpcClient]
) -> None:
    script(stub)
    client.complete("x", seed=SEED, temperature=None)
    assert stub.bodies[-1] == {"prompt": "x", "seed": SEED}
    service[1].complete("x", seed=SEED, stop="!", ablation=EDITS)
    request = pb.GenerateRequest(
        prompt="x", seed=SEED, stop=["!"], ablation=json_format.ParseDict(EDITS, pb.Ablation())
    )
    assert service[0].requests[-1] == request


@pytest.mark.parametrize("verb", ["generate", "complete", "generate_pair", "score"])
@pytest.mark.parametrize("kind", [HttpClient, AsyncHttpClient, GrpcClient])
def test_an_unknown_option_is_a_type_error_at_the_call(kind: Any, verb: str) -> None:
    arguments = ("x", EDITS) if verb == "generate_pair" else ("x",)
    result = None
    with pytest.raises(TypeError, match="tempreture"):
        result = getattr(kind(), verb)(*arguments, tempreture=1)
        if asyncio.iscoroutine(result):
            asyncio.run(result)


def test_a_wrong_value_is_refused_before_sending_in_the_servers_words() -> None:
    for client in (HttpClient(), GrpcClient()):
        with client, pytest.raises(ServerError, match="seed: found -1") as caught:
            client.generate("x", seed=-1)
        assert (caught.value.code, caught.value.field) == ("invalid_request", "seed")
        with client, pytest.raises(ServerError, match="prompt") as caught:
            client.generate("\ud800")
        odd = {"edits": [{"target": "r", "op": "schur", "alpha": {1}}]}
        with client, pytest.raises(ServerError) as caught:
            client.generate("x", ablation=odd)
        assert caught.value.field == "ablation"


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
    stub.answers["/v1/completions"] = answer(sse(cut("ab", None)))
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


def test_closing_a_grpc_stream_early_cancels_the_call(service: tuple[Service, GrpcClient]) -> None:
    service[0].gone = gone = threading.Event()
    for chunk in service[1].generate("x"):
        assert chunk.text == "a"
        break
    assert gone.wait(2)


def test_grpc_errors_become_server_errors(service: tuple[Service, GrpcClient]) -> None:
    status = grpc.StatusCode.INVALID_ARGUMENT
    service[0].refusal = (status, "ablation: füge", "invalid_request", "ablation.edits[0].target")
    for ask in (service[1].models, lambda: list(service[1].generate("x"))):
        with pytest.raises(ServerError, match="ablation: füge") as caught:
            ask()
        assert (caught.value.code, caught.value.field) == (
            "invalid_request",
            "ablation.edits[0].target",
        )


def test_a_missing_server_is_named_with_the_remedy() -> None:
    with HttpClient("http://127.0.0.1:1") as http, pytest.raises(ConnectionFailed) as caught:
        list(http.generate("x"))
    assert "http://127.0.0.1:1" in str(caught.value) and "torsor serve" in str(caught.value)
    with GrpcClient("127.0.0.1:1") as over_grpc, pytest.raises(ConnectionFailed, match="serve"):
        over_grpc.models()

    async def ask() -> None:
        async with AsyncHttpClient("http://127.0.0.1:1") as client:
            await client.models()

    with pytest.raises(ConnectionFailed, match="torsor serve"):
        asyncio.run(ask())


def test_an_address_of_another_kind_is_a_value_error() -> None:
    for url in ("localhost:3000", "http://", "http://h:port", "http://[::"):
        with pytest.raises(ValueError, match="expected http://HOST:PORT"):
            HttpClient(url)
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        GrpcClient("http://127.0.0.1:3001")


def test_joining_half_a_stream_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no summary"):
        join_completion([Chunk(text="a")])


def test_errors_survive_pickling() -> None:
    errors: list[TorsorError] = [
        ServerError("queue_full", "queue: full", None, 1.0),
        ConnectionFailed("a", "b"),
        StreamBroken("a", "b"),
        UnexpectedAnswer("a", "b"),
    ]
    for error in errors:
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
