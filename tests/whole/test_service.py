"""The whole server on loopback: real HTTP and gRPC, real clients."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import httpx
import openai
import pytest
from asking import (
    ASK,
    MODELS,
    OSM,
    TANH,
    complete,
    events,
    gauge,
    stub_of,
    text_of,
    wait_for_no_streams,
    wait_for_running,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import family, resident_bytes

from clients.grpc_client import GrpcClient
from clients.http_client import AsyncHttpClient, HttpClient
from serve.engine.engine import Engine
from serve.engine.stream import Stream
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.runtime.vocabulary import Vocabulary
from serve.settings import SHIPPED
from serve.wire import torsor_pb2 as pb

ABLATIONS: dict[str, Any] = {
    OSM: {"name": "no mixing", "edits": [{"target": "mixing", "op": "identity"}]},
    TANH: {"edits": [{"target": "recurrent", "op": "schur", "alpha": 0.9, "zero": ["CC"]}]},
}
EMPTY: dict[str, Any] = {"name": "nothing", "edits": []}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


def refuse(server: Any, path: str, body: Any) -> dict[str, Any]:
    content = json.dumps(body).encode()  # httpx itself could not send a lone surrogate
    answer = httpx.post(server.url + path, content=content, timeout=60)
    assert 400 <= answer.status_code < 500, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error | {"status": answer.status_code}


# --- one seed, one text ---------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ablated", [False, True], ids=["plain", "ablated"])
def test_http_and_grpc_streaming_or_not_write_the_same_text(
    server: Any, model: str, ablated: bool
) -> None:
    options = ASK | {"model": model, "ablation": ABLATIONS[model] if ablated else None}
    expected = text_of(complete(server, **options))
    assert len(expected) == ASK["max_tokens"]
    prompt = options.pop("prompt")
    with HttpClient(server.url) as client:
        assert client.complete(prompt, **options).choices[0].text == expected
        assert "".join(chunk.text for chunk in client.generate(prompt, **options)) == expected
    with GrpcClient(server.grpc_address) as client:
        assert client.complete(prompt, **options).choices[0].text == expected
        assert "".join(chunk.text for chunk in client.generate(prompt, **options)) == expected


@pytest.mark.parametrize("model", MODELS)
def test_the_engine_in_this_process_writes_the_same_text(
    server: Any, device: Device, model: str
) -> None:
    bundle = Bundle(SHIPPED / model, device)
    vocabulary, engine = Vocabulary(bundle.manifest.vocabulary), Engine([bundle])
    forced = vocabulary.encode(ASK["prompt"], "prompt", "error")
    limits = {"max_tokens": ASK["max_tokens"], "seed": ASK["seed"]}
    stream = Stream(bundle, bundle.plain.session, forced, **limits)
    engine.submit([stream])
    while engine.tick():
        pass
    arrived, finished = stream.collect()
    characters = [c for delivery in arrived for c in delivery.characters]
    assert finished and vocabulary.decode(characters) == text_of(complete(server, model=model))


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_the_command_line_prints_the_completion_and_nothing_else(server: Any, wire: str) -> None:
    where = [server.url] if wire == "http" else [server.grpc_address, "--grpc"]
    options = ["--max-tokens", str(ASK["max_tokens"]), "--seed", str(ASK["seed"])]
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "clients.command_line.main",
            "generate",
            ASK["prompt"],
            *options,
            "--url",
            *where,
        ],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout == text_of(complete(server))


async def _stream(url: str, options: dict[str, Any]) -> str:
    async with AsyncHttpClient(url) as client:
        return "".join([chunk.text async for chunk in client.generate(**options)])


def test_the_async_client_writes_the_same_text(server: Any) -> None:
    import asyncio

    assert asyncio.run(_stream(server.url, ASK)) == text_of(complete(server))


@pytest.mark.parametrize("model", MODELS)
def test_the_same_seed_gives_the_same_text_among_31_other_streams(server: Any, model: str) -> None:
    expected = text_of(complete(server, model=model))

    def other(i: int) -> str:
        body = {"model": MODELS[i % 2], "prompt": "KING"[: i % 5], "max_tokens": 60 + 40 * i}
        return text_of(complete(server, **body, seed=i, temperature=0.5 + i / 31, top_k=i % 7))

    with ThreadPoolExecutor(32) as pool:
        others = [pool.submit(other, i) for i in range(31)]
        found = [text_of(complete(server, model=model)) for _ in range(5)]
        assert all(future.result() for future in others)
    assert found == [expected] * 5


@pytest.mark.parametrize("model", MODELS)
def test_an_empty_ablation_changes_no_bit_of_text_or_log_probabilities(
    server: Any, model: str
) -> None:
    plain = complete(server, model=model, logprobs=3)
    empty = complete(server, model=model, logprobs=3, ablation=EMPTY)
    assert plain["choices"] == empty["choices"]
    assert empty["ablation"]["removed"] == []
    body = {"model": model, "text": "To be, or not to be", "ablation": EMPTY, "detail": True}
    page = httpx.post(server.url + "/v1/ablations/score", json=body).json()
    assert page["baseline"] == page["ablated"]
    assert page["delta_bpc"] == page["mean_kl"] == 0


def test_an_unseeded_request_returns_the_seed_that_it_drew(server: Any) -> None:
    first, second = (complete(server, seed=None) for _ in range(2))
    assert text_of(first) != text_of(second)
    assert text_of(complete(server, seed=first["choices"][0]["seed"])) == text_of(first)


def test_each_of_n_choices_has_a_seed_that_writes_it_again(server: Any) -> None:
    page = complete(server, n=4)
    assert [choice["index"] for choice in page["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in page["choices"]}) == 4
    for choice in page["choices"]:
        assert text_of(complete(server, seed=choice["seed"])) == choice["text"]
    assert page["usage"]["completion_tokens"] == 4 * ASK["max_tokens"]


# --- the text -------------------------------------------------------------------------------------


def test_temperature_zero_needs_no_seed(server: Any) -> None:
    greedy = {text_of(complete(server, temperature=0, seed=seed)) for seed in (1, 2)}
    assert greedy == {text_of(complete(server, top_k=1, seed=3))}


def test_a_stop_string_ends_the_text_and_is_named(server: Any) -> None:
    whole = text_of(complete(server))
    stop = whole[50:55]
    choice = complete(server, stop=["@@never@@".replace("@", "&"), stop])["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop" and choice["stop_string"] == stop
    assert choice["text"] == "".join(
        event["choices"][0]["text"] for event in events(server, {"stop": stop})
    )


def test_usage_comes_last_where_it_is_asked_for(server: Any) -> None:
    *_, last = events(server, {"stream_options": {"include_usage": True}})
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 120,
        "total_tokens": 127,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_only_the_last_event_of_a_choice_says_how_it_ended(server: Any) -> None:
    *before, last = events(server, {})
    assert all(event["choices"][0]["finish_reason"] is None for event in before)
    assert last["choices"][0]["finish_reason"] == "length"


def test_log_probabilities_are_the_same_streaming_or_not_and_over_grpc(server: Any) -> None:
    logprobs = complete(server, logprobs=2, echo=True)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert all(p < 0 for p in logprobs["token_logprobs"][1:])
    assert "".join(logprobs["tokens"]) == ASK["prompt"] + text_of(complete(server))
    assert logprobs["text_offset"] == list(range(127))
    parts = [e["choices"][0]["logprobs"] for e in events(server, {"logprobs": 2, "echo": True})]
    for key in logprobs:
        assert [value for part in parts for value in part[key]] == logprobs[key]
    request = pb.GenerateRequest(**ASK, logprobs=2, echo=True)
    with grpc.insecure_channel(server.grpc_address) as channel:
        chunks = list(stub_of(channel).Generate(request))
    characters = [c for chunk in chunks for c in chunk.characters]
    assert [c.text for c in characters] == logprobs["tokens"]
    assert [c.logprob for c in characters[1:]] == logprobs["token_logprobs"][1:]
    assert dict(characters[5].top_logprobs) == logprobs["top_logprobs"][5]


def test_echo_without_new_characters_scores_the_prompt(server: Any) -> None:
    page = complete(server, prompt="To be, or not to be", max_tokens=0, echo=True, logprobs=0)
    found = page["choices"][0]["logprobs"]["token_logprobs"]
    body = {"text": "To be, or not to be", "detail": True}
    score = httpx.post(server.url + "/v1/ablations/score", json=body).json()
    assert found[1:] == score["baseline"]["logprobs"][1:]


def test_a_logit_bias_forbids_and_forces(server: Any) -> None:
    characters = complete(server, logprobs=1)["choices"][0]["logprobs"]["tokens"]
    assert "e" in characters
    vocabulary = json.loads((SHIPPED / OSM / "manifest.json").read_text())["vocabulary"]
    e = str(vocabulary.index("e"))
    assert "e" not in text_of(complete(server, logit_bias={e: -100}))
    assert set(text_of(complete(server, logit_bias={e: 100}))) == {"e"}


def test_unknown_characters_can_be_skipped(server: Any) -> None:
    skipped = complete(server, prompt="ROÉMEO:\n", unknown="skip")
    assert text_of(skipped) == text_of(complete(server))


# --- ablations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_a_pair_is_the_plain_and_the_ablated_completion(server: Any, model: str) -> None:
    body = ASK | {"model": model, "ablation": ABLATIONS[model]}
    page = httpx.post(server.url + "/v1/ablations/generate", json=body, timeout=60).json()
    baseline = text_of(complete(server, model=model))
    ablated = text_of(complete(server, model=model, ablation=ABLATIONS[model]))
    assert (page["baseline"]["text"], page["ablated"]["text"]) == (baseline, ablated)
    first = page["first_difference"]
    assert baseline[:first] == ablated[:first] and baseline[first] != ablated[first]
    assert 0 < page["ablation"]["removed"][0]["mass"] < 2
    options = dict(body)
    prompt, ablation = options.pop("prompt"), options.pop("ablation")
    for client in (HttpClient(server.url), GrpcClient(server.grpc_address)):
        with client:
            chunks = list(client.generate_pair(prompt, ablation, **options))
        for branch, text in (("baseline", baseline), ("ablated", ablated)):
            assert "".join(c.text for c in chunks if c.branch == branch) == text


@pytest.mark.parametrize("model", MODELS)
def test_http_and_grpc_score_alike(server: Any, model: str) -> None:
    text = (
        "Speak, speak.\n\nFirst Citizen:\nYou are all resolved rather to die than to famish?\n" * 3
    )
    options: dict[str, Any] = {"model": model, "ablation": ABLATIONS[model], "detail": True}
    with HttpClient(server.url) as http, GrpcClient(server.grpc_address) as grpc_client:
        found = http.score(text, **options)
        assert grpc_client.score(text, **options) == found
        assert http.structure(model) == grpc_client.structure(model)
        assert http.models() == grpc_client.models()
    assert found.delta_bpc is not None and found.delta_bpc > 0.1


def test_the_structure_names_every_target_with_its_spectrum(server: Any) -> None:
    page = httpx.get(f"{server.url}/v1/models/{TANH}/structure", timeout=60).json()
    targets = {target["name"]: target for target in page["targets"]}
    assert set(targets) == {"recurrent", "input", "readout"}
    recurrent = targets["recurrent"]
    moduli = [abs(complex(*value)) for value in recurrent["eigenvalues"]]
    assert len(moduli) == 256 and recurrent["n_R"] + recurrent["n_C"] == 256
    assert recurrent["backward_error"] < 1e-12


# --- other people's clients -----------------------------------------------------------------------


def test_the_openai_client_streams_and_completes(server: Any) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
        assert {model.id for model in client.models.list()} == set(MODELS)
        options: dict[str, Any] = ASK | {"model": OSM}
        whole = client.completions.create(**options)
        pieces = [p.choices[0].text for p in client.completions.create(**options, stream=True)]
        assert "".join(pieces) == whole.choices[0].text == text_of(complete(server))
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.completions.create(**options, temperature=-1)
        with pytest.raises(openai.NotFoundError, match="gpt-2"):
            client.completions.create(model="gpt-2", prompt="A")


def test_grpc_health_and_reflection_answer(server: Any) -> None:
    with grpc.insecure_channel(server.grpc_address) as channel:
        for service in ("", "torsor.v1.Torsor"):
            request = health_pb2.HealthCheckRequest(service=service)
            checks: Any = health_pb2_grpc.HealthStub(channel)
            answer: Any = checks.Check(request, timeout=10)
            assert answer.status == answer.SERVING
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        (listed,) = stub.ServerReflectionInfo(iter([ask]), timeout=10)
        names = {service.name for service in listed.list_services_response.service}
        assert "torsor.v1.Torsor" in names


def test_health_says_what_really_runs(server: Any) -> None:
    page = httpx.get(server.url + "/readyz").json()
    assert page["ready"] is True
    assert {model["id"] for model in page["models"]} == set(MODELS)
    assert all(model["provider"].endswith("ExecutionProvider") for model in page["models"])
    assert httpx.get(server.url + "/livez").status_code == 200
    paths = httpx.get(server.url + "/docs.json").json()["paths"]
    assert "/v1/completions" in paths


def test_the_page_is_ours_and_calls_nobody(server: Any) -> None:
    answer = httpx.get(server.url + "/")
    assert answer.status_code == 200 and "Torsor" in answer.text
    outside = [w for w in answer.text.split('"') if w.startswith(("http://", "https://", "//"))]
    assert all(w.startswith(("http://127.0.0.1", "http://localhost")) for w in outside), outside


# --- bad input ------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "Caf\N{LATIN SMALL LETTER E WITH ACUTE}"}, "prompt"),
    ({"prompt": 3}, "prompt"),
    ({"prompt": ["a", 2]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [1, 65]}, "prompt"),
    ({"prompt": ["a", "\N{EM DASH}"]}, "prompt[1]"),
    ({"prompt": ["a"] * 129}, "n"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": "12"}, "max_tokens"),
    ({"temperature": -0.5}, "temperature"),
    ({"temperature": 1e9}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"top_k": -3}, "top_k"),
    ({"n": 0}, "n"),
    ({"seed": 2**63}, "seed"),
    ({"logprobs": 99}, "logprobs"),
    ({"logit_bias": {"9" * 5000: 1.0}}, "logit_bias"),
    ({"ablation": {"\ud800": 1}}, "ablation.\\ud800"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"x" * 5000: 1}, "x" * 199 + "\N{HORIZONTAL ELLIPSIS}"),
    ({"n": 100, "max_tokens": 100_000}, "max_tokens"),
    ({"logprobs": 1, "max_tokens": 200_000}, "logprobs"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 99}, "stop"),
    ({"unknown": "ignore"}, "unknown"),
    ({"best_of": 3}, "best_of"),
    ({"min_tokens": 17}, "min_tokens"),
    ({"repetition_penalty": 1.2}, "repetition_penalty"),
    ({"stop_token_ids": [3]}, "stop_token_ids"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"temprature": 1}, "temprature"),
    ({"logit_bias": {"65": 1}}, "logit_bias"),
    ({"logit_bias": {str(i): -100 for i in range(65)}}, "logit_bias"),
    ({"ablation": []}, "ablation"),
    ({"ablation": {"edit": []}}, "ablation.edit"),
    ({"ablation": {"edits": [{"target": "nowhere", "op": "zero"}]}}, "ablation.edits[0].target"),
    ({"ablation": {"edits": [{"target": "mixing", "op": "explode"}]}}, "ablation.edits[0].op"),
    (
        {
            "ablation": {
                "edits": [{"target": "mixing", "op": "schur", "alpha": 2.0, "zero": ["CC"]}]
            }
        },
        "ablation.edits[0].alpha",
    ),
    (
        {"ablation": {"edits": [{"target": "mixing", "op": "identity"}] * 2}},
        "ablation.edits[1]",  # the second one changes nothing
    ),
]


@pytest.mark.parametrize(("body", "field"), BAD, ids=[field[:40] for _, field in BAD])
def test_a_bad_field_is_named_over_http_and_grpc(
    server: Any, body: dict[str, Any], field: str
) -> None:
    error = refuse(server, "/v1/completions", {"model": OSM} | body)
    assert error["status"] == 400 and error["code"] == "invalid_request"
    assert error["param"] == field
    assert "expected" in error["message"] or "unknown field" in error["message"]
    try:
        edits = body.get("ablation", {}).get("edits", [])
        fields = body | (
            {"ablation": pb.Ablation(edits=[pb.Edit(**e) for e in edits])} if edits else {}
        )
        request = pb.GenerateRequest(**({"model": OSM} | fields))
    except (TypeError, ValueError, AttributeError):
        return  # protobuf refuses it before it is sent
    with grpc.insecure_channel(server.grpc_address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            list(stub_of(channel).Generate(request, timeout=20))
    call: Any = caught.value
    assert call.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert dict(call.trailing_metadata())["torsor-field"] == field
    assert call.details() == error["message"]


def test_null_means_left_out_as_openais_clients_mean_it(server: Any) -> None:
    nothing = dict.fromkeys(("temperature", "top_p", "n", "stop", "echo", "stream", "logit_bias"))
    assert text_of(complete(server, **nothing)) == text_of(complete(server))


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/completions", "POST"),
        ("GET", "/v1/completions", "POST"),
        ("PUT", "/v1/sweeps", "GET, HEAD, POST"),
        ("PATCH", "/v1/sweeps/one", "DELETE, GET, HEAD"),
        ("GET", "/tokenize", "POST"),
        ("GET", "/generate", "POST"),
        ("DELETE", "/v2/health/live", "GET, HEAD"),
        ("GET", "/v1/nothing", None),
        ("POST", "/v1/a\nb", None),
        ("GET", "/v2/nothing", None),
        ("GET", "/nothing", None),
        ("GET", "/a\nb", None),
    ],
)
def test_a_wrong_method_or_path_is_an_error_of_our_shape(
    server: Any, method: str, path: str, allowed: str | None
) -> None:
    answer = httpx.request(method, server.url + quote(path))
    assert answer.status_code == (405 if allowed else 404)
    assert answer.headers.get("Allow") == allowed and len(answer.headers["x-request-id"]) == 32
    error = answer.json()["error"]
    message = error if path.startswith("/v2") else error["message"]
    shown = path.replace("\n", "\\n")
    assert message.startswith(f"found {method} {shown}") and "/docs.json" in message
    if not path.startswith("/v2"):
        assert error["code"] == ("method_not_allowed" if allowed else "not_found")


def test_the_report_of_an_ablation_comes_once_a_stream(server: Any) -> None:
    found = events(server, {"model": OSM, "ablation": ABLATIONS[OSM], "max_tokens": 2000})
    assert len(found) > 1
    assert found[0]["ablation"]["removed"] and not any("ablation" in e for e in found[1:])


def test_an_unknown_model_is_not_found(server: Any) -> None:
    error = refuse(server, "/v1/completions", ASK | {"model": "gpt-2"})
    assert error["status"] == 404 and error["param"] == "model" and OSM in error["message"]
    assert httpx.get(server.url + "/v1/models/gpt-2/structure").status_code == 404


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff", b"null", b'"text"'])
def test_a_body_that_is_no_json_object_is_refused(server: Any, content: bytes) -> None:
    answer = httpx.post(server.url + "/v1/completions", content=content)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_request"


def test_a_body_that_is_too_large_is_refused(server: Any) -> None:
    content = b'{"prompt": "' + b"a" * (17 << 20) + b'"}'
    answer = httpx.post(server.url + "/v1/completions", content=content, timeout=60)
    assert answer.status_code == 413


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
FIELDS = ("model", "prompt", "max_tokens", "temperature", "top_k", "n", "seed", "stop", "ablation")


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), json_values, max_size=4))
def test_no_json_makes_the_server_fail(
    server: Any, http: httpx.Client, body: dict[str, Any]
) -> None:
    for path in ("/v1/completions", "/v1/ablations/generate", "/v1/ablations/score"):
        content = json.dumps({"max_tokens": 1} | body).encode()
        answer = http.post(server.url + path, content=content)
        assert answer.status_code in (200, 400, 404), (body, answer.text)


# --- clients that go away -------------------------------------------------------------------------


def disconnect_http(server: Any) -> None:
    body = ASK | {"model": TANH, "max_tokens": 200_000, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
        text = ""
        for line in answer.iter_lines():
            if line.startswith("data: "):
                text += json.loads(line[6:])["choices"][0]["text"]
            if len(text) >= 3:
                return


def test_100_clients_that_disconnect_leave_no_stream_within_a_second(server: Any) -> None:
    cancelled = gauge(server, "torsor_streams_total")
    with ThreadPoolExecutor(25) as pool:
        list(pool.map(lambda _: disconnect_http(server), range(100)))
    wait_for_no_streams(server, within_s=1.0)
    assert gauge(server, "torsor_streams_total") == cancelled + 100


def test_clients_that_do_not_stream_are_missed_too(server: Any) -> None:
    body = ASK | {"model": TANH, "max_tokens": 500_000}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + "/v1/completions", json=body, timeout=0.5)
    wait_for_no_streams(server, within_s=1.0)


def test_cancelled_and_overdue_grpc_calls_free_their_slots(server: Any) -> None:
    request = pb.GenerateRequest(**ASK | {"model": TANH, "max_tokens": 500_000})
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = stub_of(channel)
        call = stub.Generate(request)
        assert next(call).text
        call.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(request, timeout=0.5))
        status: Any = caught.value
        assert status.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_for_no_streams(server, within_s=1.0)


# --- starting and stopping ------------------------------------------------------------------------


def serve(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_a_busy_port_is_an_error(server: Any, tmp_path: Path) -> None:
    port = server.url.rsplit(":", 1)[1]
    found = serve("--port", port, "--grpc-port", "0")
    assert found.returncode == 1 and "--port" in found.stderr and "Traceback" not in found.stderr
    found = serve("--port", "1", "--grpc-port", server.grpc_address.rsplit(":", 1)[1])
    assert found.returncode == 1 and "--grpc-port" in found.stderr


def test_a_broken_bundle_is_named_and_nothing_starts(tmp_path: Path) -> None:
    import shutil

    bundle = tmp_path / "broken"
    shutil.copytree(SHIPPED / TANH, bundle)
    weights = bundle / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    for found in (serve(str(bundle)), serve(str(SHIPPED / OSM), str(bundle))):
        assert found.returncode == 1
        assert found.stderr.startswith(f"torsor serve: {weights}: size")
        assert found.stderr.count("\n") == 1
    found = serve(str(tmp_path / "nowhere"))
    assert found.returncode == 1 and "no such folder" in found.stderr


def test_bentoml_itself_refuses_a_broken_bundle_in_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "TORSOR_BUNDLES": str(tmp_path / "nowhere")}
    found = subprocess.run(
        [sys.executable, "-m", "bentoml", "serve", "serve.service:Torsor", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd=SHIPPED.parent.parent,
    )
    assert found.returncode != 0
    assert "torsor serve: " in found.stderr and "no such folder" in found.stderr


def assert_drains(server: Any) -> None:
    """While its streams run on, a server that is stopping says so, over HTTP and gRPC."""
    deadline = time.monotonic() + 5
    while httpx.get(server.url + "/readyz", timeout=5).status_code != 503:
        assert time.monotonic() < deadline
    answer = httpx.post(server.url + "/v1/completions", json=ASK, timeout=5)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "unavailable"


@pytest.mark.slow
def test_sigterm_lets_running_streams_finish_and_exits_with_zero(
    start_server: Any, tmp_path: Path
) -> None:
    with start_server(tmp_path, str(SHIPPED / TANH)) as server:
        found: list[str] = []
        request = pb.GenerateRequest(**ASK | {"max_tokens": 60_000})

        def stream_http() -> None:
            pieces = events(server, {"max_tokens": 60_000})
            found.append("".join(piece["choices"][0]["text"] for piece in pieces))

        def stream_grpc() -> None:
            with grpc.insecure_channel(server.grpc_address) as channel:
                stub = stub_of(channel)
                found.append("".join(chunk.text for chunk in stub.Generate(request)))

        threads = [threading.Thread(target=work) for work in (stream_http, stream_grpc)]
        for thread in threads:
            thread.start()
        wait_for_running(server, 2)
        server.process.send_signal(signal.SIGTERM)
        assert_drains(server)
        assert server.process.wait(60) == 0
        for thread in threads:
            thread.join(30)
    assert len(found) == 2 and found[0] == found[1] and len(found[0]) == 60_000


@pytest.mark.slow
def test_after_the_grace_a_stream_ends_with_an_error_event(
    start_server: Any, tmp_path: Path
) -> None:
    arguments = (str(SHIPPED / TANH), "--grace-s", "0.5")
    with start_server(tmp_path, *arguments) as server:
        lines: list[str] = []

        def stream() -> None:
            body, url = ASK | {"max_tokens": 900_000, "stream": True}, server.url
            with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as answer:
                lines.extend(line for line in answer.iter_lines() if line)

        thread = threading.Thread(target=stream)
        thread.start()
        wait_for_running(server, 1)
        assert server.stop(signal.SIGTERM) == 0
        thread.join(30)
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "unavailable"


@pytest.mark.slow
def test_a_full_queue_answers_429_with_retry_after(start_server: Any, tmp_path: Path) -> None:
    arguments = (str(SHIPPED / TANH), "--max-streams", "1", "--max-waiting", "2")
    request = pb.GenerateRequest(**ASK | {"max_tokens": 400_000})
    with start_server(tmp_path, *arguments) as server:
        with grpc.insecure_channel(server.grpc_address) as channel:
            stub = stub_of(channel)
            running = stub.Generate(request)
            assert next(running).text
            waiting = stub.Generate(pb.GenerateRequest(**ASK, n=2))
            deadline = time.monotonic() + 20
            while gauge(server, "torsor_streams_waiting") < 2:
                assert time.monotonic() < deadline
            answer = httpx.post(server.url + "/v1/completions", json=ASK)
            assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "queue_full"
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.Generate(pb.GenerateRequest(**ASK)))
            status: Any = caught.value
            assert status.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "max_waiting" in refuse(server, "/v1/completions", ASK | {"n": 3})["message"]
            running.cancel()
            assert "".join(chunk.text for chunk in waiting)
        assert text_of(complete(server))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_server_scores_the_test_text_as_the_manifest_says(
    server: Any, data_dir: Path, model: str
) -> None:
    """Torch in training and the served graph read 55,770 characters as one stream, and agree."""
    text = (data_dir / "tinyshakespeare" / "input.txt").read_text()
    train, valid = int(len(text) * 0.9), int(len(text) * 0.05)
    with HttpClient(server.url) as client:
        score = client.score(text[train + valid :], model=model)
    manifest = json.loads((SHIPPED / model / "manifest.json").read_text())
    assert score.baseline.bpc == pytest.approx(manifest["training"]["test_bpc"], abs=1e-5)


def test_a_request_that_has_been_answered_leaves_nothing_behind(server: Any) -> None:
    """BentoML's timers kept 5 KB of every request for eleven minutes."""

    def resident() -> int:
        return sum(map(resident_bytes, family(server.process.pid)))

    with httpx.Client(base_url=server.url) as client:

        def ask(times: int) -> None:
            for _ in range(times):
                assert client.get("/livez").status_code == 200

        ask(300)
        before = resident()
        ask(1500)
        assert resident() - before < 4 << 20
