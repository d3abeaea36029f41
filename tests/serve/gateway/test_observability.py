"""Request ids, the log, spans and metrics: what operators see, and what nobody may see."""

import asyncio
import functools
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from servers import family

from clients.grpc_client import GrpcClient
from clients.http_client import HttpClient
from serve.gateway.admission import Gateway
from serve.gateway.keys import hash_key
from serve.gateway.log import TextFormatter
from serve.gateway.request_log import RequestRecord, choose_request_id
from serve.gateway.tracing import Tracing
from serve.grpc_api.server import start_grpc_server
from serve.http_api.app import ROUTES
from serve.http_api.middleware import GatewayMiddleware
from serve.http_api.routes import Dispatcher, RouteTable
from serve.models import Models
from serve.wire import torsor_pb2 as pb
from serve.wire import torsor_pb2_grpc as rpc

TANH = "tanh-rnn-shakespeare"
ABLATION = {"edits": [{"target": "recurrent", "op": "schur", "alpha": 0.9, "zero": ["CC"]}]}
PROMPT = "Sweet Montague of secrets"
HEADER = "x-request-id"


def line_of(server: Any, request_id: str) -> dict[str, Any]:
    """The one line that a request has left in the log."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        lines = [json.loads(x) for x in server.log.read_text().splitlines() if x[:1] == "{"]
        found = [line for line in lines if line.get("request_id") == request_id]
        if found:
            (line,) = found
            return dict(line)
        time.sleep(0.05)
    raise AssertionError(f"the request {request_id} left no line")


def bearer(key: str, request_id: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", HEADER: request_id}


def complete(keyed: Any, request_id: str, **body: Any) -> httpx.Response:
    server, keys = keyed
    headers = bearer(keys["free"], request_id)
    body = {"prompt": PROMPT, "max_tokens": 40, "seed": 3} | body
    return httpx.post(server.url + "/v1/completions", json=body, headers=headers, timeout=60)


def stub_of(channel: grpc.Channel) -> Any:
    return rpc.TorsorStub(channel)  # type: ignore[no-untyped-call]  # generated


# --- request ids ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/metrics", "/v1/models", "/v1/no"])
def test_every_answer_over_http_carries_the_id_of_its_request(keyed: Any, path: str) -> None:
    server, keys = keyed
    given = 'an id: "a" = b'
    for key in (keys["free"], "wrong"):
        answer = httpx.get(server.url + path, headers=bearer(key, given))
        assert answer.headers.get_list(HEADER) == [given]
    drawn = {httpx.get(server.url + path).headers[HEADER] for _ in range(2)}
    assert len(drawn) == 2


def test_grpc_answers_the_id_in_its_initial_metadata(keyed: Any) -> None:
    server, keys = keyed
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = stub_of(channel)
        for key in (keys["free"], "wrong"):
            metadata = tuple(bearer(key, "grpc-id").items())
            call = stub.Generate(pb.GenerateRequest(max_tokens=1), metadata=metadata)
            assert dict(call.initial_metadata())[HEADER] == "grpc-id"
            call.cancel()
        ids = set()
        for _ in range(2):
            call = stub.Generate(pb.GenerateRequest(max_tokens=1))
            ids.add(dict(call.initial_metadata())[HEADER])
        assert len(ids) == 2


@pytest.mark.parametrize("given", [None, "", " ", "a\nb", "a\tb", "\u00e9", "a" * 129])
def test_an_id_that_is_not_printable_ascii_is_replaced(given: str | None) -> None:
    found = choose_request_id(given)
    assert found != given and found.isascii() and found.isalnum()
    assert choose_request_id("a" * 128) == "a" * 128


# --- the log --------------------------------------------------------------------------------------


def test_a_stream_leaves_one_line_that_says_what_it_was(keyed: Any) -> None:
    page = complete(keyed, "line-1", ablation=ABLATION, n=2).json()
    line = line_of(keyed[0], "line-1")
    said = {"time", "level", "logger", "message", "queue_s", "first_s", "total_s"}
    assert 0 <= line["queue_s"] <= line["first_s"] <= line["total_s"]
    assert {name: value for name, value in line.items() if name not in said} == {
        "request_id": "line-1",
        "key": "free",
        "wire": "http",
        "method": "POST /v1/completions",
        "status": 200,
        "model": TANH,
        "ablation": page["ablation"]["hash"],
        "streams": 2,
        "prompt_characters": len(PROMPT),
        "written_characters": 80,
        "finish_reason": "length",
        "error": None,
    }


def test_http_and_grpc_streaming_or_not_leave_like_lines(keyed: Any) -> None:
    server, keys = keyed
    complete(keyed, "like-1")
    complete(keyed, "like-2", stream=True)
    with grpc.insecure_channel(server.grpc_address) as channel:
        request = pb.GenerateRequest(prompt=PROMPT, max_tokens=40, seed=3)
        metadata = tuple(bearer(keys["free"], "like-3").items())
        list(stub_of(channel).Generate(request, metadata=metadata))
    lines = [line_of(server, f"like-{i}") for i in (1, 2, 3)]
    assert (lines[2]["wire"], lines[2]["status"]) == ("grpc", "OK")
    apart = ("time", "request_id", "wire", "method", "status", "queue_s", "first_s", "total_s")
    first, *others = [{k: v for k, v in line.items() if k not in apart} for line in lines]
    assert others == [first, first] and first["written_characters"] == 40


def test_a_client_that_leaves_and_an_error_are_said(keyed: Any) -> None:
    server, keys = keyed
    body = {"prompt": PROMPT, "max_tokens": 500_000, "stream": True}
    url, headers = server.url + "/v1/completions", bearer(keys["free"], "left-1")
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
        next(answer.iter_lines())
    with grpc.insecure_channel(server.grpc_address) as channel:
        request = pb.GenerateRequest(prompt=PROMPT, max_tokens=500_000)
        metadata = tuple(bearer(keys["free"], "left-2").items())
        call = stub_of(channel).Generate(request, metadata=metadata)
        assert next(call).text
        call.cancel()
    for request_id, status in (("left-1", 200), ("left-2", "CANCELLED")):
        line = line_of(server, request_id)
        assert line["finish_reason"] == "cancelled" and line["status"] == status
        assert 0 < line["written_characters"] < 500_000
    complete(keyed, "error-1", temperature=-1)
    httpx.get(server.url + "/v1/models", headers=bearer("wrong", "error-2"))
    found = [line_of(server, f"error-{i}") for i in (1, 2)]
    assert [(line["error"], line["status"], line["key"]) for line in found] == [
        ("invalid_request", 400, "free"),
        ("unauthenticated", 401, None),
    ]


def test_no_prompt_text_or_key_reaches_the_log_the_arguments_or_the_environment(keyed: Any) -> None:
    server, keys = keyed
    text = complete(keyed, "secret-1").json()["choices"][0]["text"]
    complete(keyed, "secret-2", prompt=f"{PROMPT}\u00e9")  # an error that quotes
    headers = bearer("torsor-" + "x" * 43, "secret-3")
    httpx.get(server.url + "/v1/models?api_key=torsor-query", headers=headers)
    line_of(server, "secret-3")
    log = server.log.read_text()
    processes = family(server.process.pid)
    assert len(processes) > 1
    for name in ("cmdline", "environ"):
        log += "".join(Path(f"/proc/{pid}/{name}").read_text() for pid in processes)
    secrets = [
        *keys.values(),
        *map(hash_key, keys.values()),
        PROMPT,
        text,
        "x" * 43,
        "torsor-query",
    ]
    assert [secret for secret in secrets if secret in log] == []


def test_probes_leave_no_line(keyed: Any) -> None:
    server, _ = keyed
    for path in ("/livez", "/readyz", "/metrics"):
        httpx.get(server.url + path, headers={HEADER: f"probe{path}"})
    complete(keyed, "after-probes")
    line_of(server, "after-probes")
    assert "probe/" not in server.log.read_text()


def test_a_line_of_text_can_not_be_forged() -> None:
    headers = {HEADER: 'a key=admin "b"'}
    call = RequestRecord(
        "http", "GET /a\n2026 [INFO] request status=200", headers, Tracing(), quiet=True
    )
    record = logging.LogRecord("torsor", logging.INFO, "", 0, "request", None, None)
    record.fields = call.summary()
    line = TextFormatter().format(record)
    assert "\n" not in line and r'request_id="a key=admin \"b\"" key=- wire=http' in line


# --- spans ----------------------------------------------------------------------------------------


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def gateway(spans: InMemorySpanExporter) -> Gateway:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Gateway(tracing=Tracing(provider))


async def ask_app(
    host: Models, gateway: Gateway, path: str, body: dict[str, Any], **headers: str
) -> Any:
    own = Dispatcher(RouteTable(ROUTES), lambda: host)
    app: Any = GatewayMiddleware(own, gateway, own)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(path, json=body, headers=headers)


def test_a_stream_is_one_span_however_many_chunks_it_has(
    host: Models, gateway: Gateway, spans: InMemorySpanExporter
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 3000, "n": 2, "stream": True, "ablation": ABLATION}
    before = time.time_ns()
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    headers = {HEADER: "span-1", "traceparent": parent}
    answer = asyncio.run(ask_app(host, gateway, "/v1/completions", body, **headers))
    assert answer.text.count("data: ") > 6
    found = spans.get_finished_spans()
    assert len(found) == 2
    for span in found:
        said = dict(span.attributes or {})
        queue_s, first_s = said.pop("torsor.queue_s"), said.pop("torsor.first_s")
        assert said.pop("torsor.ablation")
        assert said == {
            "torsor.request_id": "span-1",
            "torsor.wire": "http",
            "torsor.method": "POST /v1/completions",
            "torsor.model": TANH,
            "torsor.prompt_characters": len(PROMPT),
            "torsor.written_characters": 3000,
            "torsor.finish_reason": "length",
        }
        assert span.start_time is not None and span.end_time is not None
        assert before < span.start_time < span.end_time < time.time_ns()
        assert isinstance(queue_s, float) and isinstance(first_s, float)
        assert 0 <= queue_s <= first_s <= (span.end_time - span.start_time) / 1e9 + 1e-3
        assert span.parent is not None and f"{span.parent.trace_id:032x}" == "a" * 32


def test_scores_and_errors_are_spans_of_their_streams(
    host: Models, gateway: Gateway, spans: InMemorySpanExporter
) -> None:
    ask = functools.partial(ask_app, host, gateway)
    asyncio.run(ask("/v1/ablations/score", {"text": PROMPT, "ablation": ABLATION}))
    assert len(spans.get_finished_spans()) == 2
    asyncio.run(ask("/v1/completions", {"prompt": PROMPT, "temperature": -1}))
    assert len(spans.get_finished_spans()) == 2  # no stream, no span


async def over_grpc(host: Models, gateway: Gateway, port: int) -> None:
    server, _ = await start_grpc_server(host, f"127.0.0.1:{port}", gateway)
    try:
        await asyncio.to_thread(ask_and_leave, f"127.0.0.1:{port}")
    finally:
        await server.stop(1)


def ask_and_leave(address: str) -> None:
    with GrpcClient(address) as client:
        client.complete(PROMPT, max_tokens=40)
        stream = client.generate(PROMPT, max_tokens=500_000)
        assert next(stream)
        stream.close()


def test_grpc_makes_one_span_a_stream_too_also_of_one_that_is_left(
    host: Models, gateway: Gateway, spans: InMemorySpanExporter, free_tcp_port: int
) -> None:
    asyncio.run(over_grpc(host, gateway, free_tcp_port))
    found: tuple[ReadableSpan, ...] = spans.get_finished_spans()
    reasons = [dict(span.attributes or {})["torsor.finish_reason"] for span in found]
    assert reasons == ["length", "cancelled"]


@pytest.mark.parametrize(("configured", "expected"), [(False, "False"), (True, "True")])
def test_spans_are_made_where_bentoml_is_told_to(
    tmp_path: Path, configured: bool, expected: str
) -> None:
    tracing = "tracing: {exporter_type: in_memory, sample_rate: 1.0}"
    (tmp_path / "bento.yaml").write_text(f"services: {{torsor: {{{tracing}}}}}\n")
    code = "from serve.service import Torsor; Torsor.inject_config()\n"
    code += "from serve.gateway.tracing import bento_tracing; print(bento_tracing().on)"
    environment = {"BENTOML_HOME": str(tmp_path), "BENTOML_DO_NOT_TRACK": "True"}
    if configured:
        environment["BENTOML_CONFIG"] = str(tmp_path / "bento.yaml")
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert found.stdout.split()[-1:] == [expected], found.stderr


# --- metrics --------------------------------------------------------------------------------------


def metric(server: Any, start: str) -> float:
    lines = httpx.get(server.url + "/metrics", timeout=30).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(start))


def test_metrics_count_runs_sessions_refusals_and_who_left(keyed: Any) -> None:
    server, keys = keyed
    names = {
        "runs": "torsor_batch_fill_count",
        "made": "torsor_ablation_sessions_made_total",
        "kept": "torsor_ablation_sessions",
        "refused": 'torsor_refused_total{code="unauthenticated"}',
        "left": f'torsor_streams_total{{model="{TANH}",reason="cancelled"}}',
    }
    names["kept"] += " "
    before = {name: metric(server, start) for name, start in names.items()}
    edits = {"edits": [{"target": "recurrent", "op": "schur", "alpha": 0.5, "zero": ["CC"]}]}
    for _ in range(2):  # the second takes the session of the first
        assert complete(keyed, "metrics", ablation=edits).status_code == 200
    httpx.get(server.url + "/v1/models")
    with HttpClient(server.url, api_key=keys["free"]) as client:
        stream = client.generate(PROMPT, max_tokens=500_000)
        assert next(stream)
        stream.close()
    deadline = time.monotonic() + 10
    while metric(server, names["left"]) == before["left"] and time.monotonic() < deadline:
        time.sleep(0.05)
    grown = {name: metric(server, start) - before[name] for name, start in names.items()}
    assert grown.pop("runs") > 2
    assert grown == {"made": 1, "kept": 1, "refused": 1, "left": 1}


def test_requests_are_counted_by_what_answers_and_not_by_what_was_asked(keyed: Any) -> None:
    server, keys = keyed
    routes = {
        "completions": 'route="/v1/completions",status="200",wire="http"',
        "structure": 'route="/v1/models/{model}/structure",status="200",wire="http"',
        "unknown model": 'route="/v1/models/{model}/structure",status="404",wire="http"',
        "no route": 'route="none",status="404",wire="http"',
        "grpc": 'route="/torsor.v1.Torsor/Models",status="OK",wire="grpc"',
    }
    names = {name: "torsor_requests_total{" + labels for name, labels in routes.items()}
    before = {name: metric(server, start) for name, start in names.items()}
    assert complete(keyed, "counted").status_code == 200
    headers = {"Authorization": f"Bearer {keys['free']}"}
    with httpx.Client(base_url=server.url, headers=headers) as client:
        for path in (f"/v1/models/{TANH}/structure", "/v1/models/made-up-1/structure"):
            client.get(path)
        for number in range(3):
            client.get(f"/made-up/{number}")
        client.request("MADEUP", "/v1/models")
        page = client.get("/metrics").text
    with GrpcClient(server.grpc_address, api_key=keys["free"]) as grpc_client:
        grpc_client.models()
    assert "made-up" not in page and "MADEUP" not in page

    def grown() -> dict[str, float]:
        return {name: metric(server, start) - before[name] for name, start in names.items()}

    expected = {"completions": 1, "structure": 1, "unknown model": 1, "no route": 3, "grpc": 1}
    deadline = time.monotonic() + 10  # a call counts once it has been answered
    while grown() != expected:
        assert time.monotonic() < deadline, grown()
        time.sleep(0.05)
    assert 'torsor_request_seconds_bucket{le="+Inf",route="/v1/completions",wire="http"}' in page
