"""One stream leaves the numbers, the engine breaks, the server is told to hurry: over the wire."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from asking import (
    ASK,
    complete,
    gauge,
    stub_of,
    text_of,
    wait_for_no_streams,
    wait_for_running,
)
from edited_models import edited
from servers import family, free_port

from clients.http_client import HttpClient
from serve.manifest.read import read_manifest, write_manifest
from serve.settings import SHIPPED
from serve.wire import torsor_pb2 as pb

OSM, TANH = "osm-rnn-shakespeare", "tanh-rnn-shakespeare"
VOCABULARY = "".join(read_manifest(SHIPPED / OSM).vocabulary)
WRITTEN = "torsor_written_characters_total"
POISON = "$"  # the character that drives the sick model out of the numbers


def poison(weights: dict[str, Any]) -> None:
    weights["input"][VOCABULARY.index(POISON)] *= np.float32(1e38)


def level(weights: dict[str, Any]) -> None:
    weights["readout.prototypes"][:] = weights["readout.bias"][:] = 0


def bundle_of(folder: Path, name: str, change: Any) -> str:
    edited(folder, change)
    write_manifest(folder, dataclasses.replace(read_manifest(folder), name=name))
    return str(folder)


@pytest.fixture(scope="module")
def odd(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Serves a model that one character makes overflow, and one whose logits are all equal."""
    folder = tmp_path_factory.mktemp("odd")
    sick = bundle_of(folder / "sick", "sick", poison)
    even = bundle_of(folder / "even", "even", level)
    with start_server(folder, sick, even) as found:
        yield found


def lines_of(server: Any, body: dict[str, Any]) -> list[Any]:
    """The events of a stream; [DONE] as text."""
    found = []
    url, ask = server.url + "/v1/completions", ASK | body | {"stream": True}
    with httpx.stream("POST", url, json=ask, timeout=60) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line:
                data = line.removeprefix("data: ")
                found.append(data if data == "[DONE]" else json.loads(data))
    return found


def test_greedy_text_takes_the_lowest_of_equal_logits(odd: Any) -> None:
    for seed in (1, 2):
        ask = {"model": "even", "temperature": 0, "seed": seed}
        assert set(text_of(complete(odd, **ask))) == {VOCABULARY[0]}
        assert set(text_of(complete(odd, **ask, logit_bias={"0": -100}))) == {VOCABULARY[1]}
        assert set(text_of(complete(odd, **ask | {"temperature": 1}, top_k=1))) == {VOCABULARY[0]}


def test_a_stream_that_overflows_ends_alone(odd: Any) -> None:
    ask = {"model": "sick", "max_tokens": 2_000, "logprobs": 1}
    expected = complete(odd, **ask)["choices"]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(complete(odd, **ask)["choices"]))
    thread.start()
    for _ in range(3):
        body = ASK | {"model": "sick", "prompt": f"ROMEO{POISON}"}
        answer = httpx.post(odd.url + "/v1/completions", json=body, timeout=60)
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "model_error"
    thread.join(60)
    assert found == [expected]
    assert complete(odd, **ask)["choices"] == expected  # in slots that the sick ones had
    assert httpx.get(odd.url + "/readyz", timeout=60).status_code == 200


def test_an_error_after_the_first_event_is_an_event_and_then_the_end(odd: Any) -> None:
    place = str(VOCABULARY.index(POISON))
    for seed in range(100):  # until one writes some text before the poison
        bias = {place: 8.0 + seed % 8}
        ask = {"model": "sick", "logit_bias": bias, "seed": seed, "max_tokens": 500}
        *before, last = lines_of(odd, ask)
        if before and last != "[DONE]":
            break
    assert last["error"]["code"] == "model_error" and len(before) >= 1
    text = "".join(event["choices"][0]["text"] for event in before)
    assert text.index(POISON) == len(text) - 1  # what came before, and nothing after
    ends = [event["choices"][0]["finish_reason"] for event in before]
    assert set(ends[:-1]) <= {None} and ends[-1] in (None, "error")
    with grpc.insecure_channel(odd.grpc_address) as channel:
        call, chunks = stub_of(channel).Generate(pb.GenerateRequest(**ASK | ask)), []
        with pytest.raises(grpc.RpcError) as caught:
            chunks.extend(call)  # keeps none of them when it raises
        status: Any = caught.value
    assert status.code() is grpc.StatusCode.INTERNAL
    assert dict(status.trailing_metadata())["torsor-code"] == "model_error"
    assert gauge(odd, "torsor_errors_total") > 0


def test_a_choice_that_overflows_stops_no_other_choice(odd: Any) -> None:
    ask = {"model": "sick", "max_tokens": 2_000}
    *events, last = lines_of(odd, ask | {"prompt": ["ROMEO", f"ROMEO{POISON}"]})
    assert last["error"]["code"] == "model_error"
    pieces = [event["choices"][0] for event in events]
    good, bad = ([p for p in pieces if p["index"] == index] for index in range(2))
    assert "".join(p["text"] for p in good) == text_of(complete(odd, **ask, prompt="ROMEO"))
    assert [good[-1]["finish_reason"], bad[-1]["finish_reason"]] == ["length", "error"]


def test_an_answer_in_one_page_fails_with_its_first_choice(odd: Any) -> None:
    body = ASK | {"model": "sick", "max_tokens": 400_000, "prompt": ["ROMEO", f"ROMEO{POISON}"]}
    before = gauge(odd, WRITTEN)
    answer = httpx.post(odd.url + "/v1/completions", json=body, timeout=60)
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "model_error"
    wait_for_no_streams(odd, 10)
    assert gauge(odd, WRITTEN) - before < 200_000  # and the other one is ended


def test_a_model_that_overflows_again_and_again_is_unready_until_a_good_stream(
    odd: Any,
) -> None:
    body = ASK | {"model": "sick", "prompt": POISON}
    for _ in range(5):
        assert httpx.post(odd.url + "/v1/completions", json=body, timeout=60).status_code == 500
    assert readiness(odd) == {"sick": False, "even": True}
    for model, status in (("sick", 503), ("even", 200)):
        path = f"/v2/models/{model}/ready"
        assert httpx.get(odd.url + path, timeout=60).status_code == status
    assert httpx.get(odd.url + "/livez", timeout=60).status_code == 200
    assert text_of(complete(odd, model="sick"))
    assert readiness(odd) == {"sick": True, "even": True}


def readiness(server: Any) -> dict[str, bool]:
    """Of each model, on a server that is ready for one of them at least."""
    answer = httpx.get(server.url + "/readyz", timeout=60)
    assert answer.status_code == 200
    models = answer.json()["models"]
    assert all(model["ready"] != ("not finite" in model.get("reason", "")) for model in models)
    return {model["id"]: model["ready"] for model in models}


# --- life cycle -----------------------------------------------------------------------------------

FAULT = """
import os, sys

if "worker" in " ".join(sys.orig_argv):
    sys.path.insert(0, {root!r})
    from serve.engine.engine import Engine

    groups = Engine._groups

    def broken(engine):
        if any(stream.seed == 666 for stream in engine._running):
            raise RuntimeError("made to fail")
        return groups(engine)

    Engine._groups = broken
"""


@pytest.mark.slow
def test_an_engine_that_breaks_takes_the_process_down_and_another_one_takes_over(
    start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULT.format(root=str(SHIPPED.parent.parent)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with start_server(tmp_path, str(SHIPPED / TANH)) as server:
        expected = text_of(complete(server))
        answer = httpx.post(server.url + "/v1/completions", json=ASK | {"seed": 666}, timeout=60)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "unavailable"
        assert "failed" in answer.json()["error"]["message"]
        down = {path: probe(server, path) for path in ("/livez", "/readyz")}
        assert set(down.values()) <= {503, None}  # None: the process has ended already
        deadline = time.monotonic() + 60
        while probe(server, "/readyz") != 200:
            assert time.monotonic() < deadline, server.log.read_text()
            time.sleep(0.1)
        assert text_of(complete(server)) == expected
        assert server.stop() == 0


def probe(server: Any, path: str) -> int | None:
    try:
        return httpx.get(server.url + path, timeout=5).status_code
    except httpx.TransportError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_a_second_signal_hurries(start_server: Any, tmp_path: Path, wire: str) -> None:
    arguments = (str(SHIPPED / TANH), "--grace-s", "300", "--total-timeout-s", "300")
    ends: list[str] = []

    def read(server: Any) -> None:
        body = {"max_tokens": 900_000}
        if wire == "http":
            ends.append(lines_of(server, body)[-1]["error"]["code"])
            return
        with grpc.insecure_channel(server.grpc_address) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                for _ in stub_of(channel).Generate(pb.GenerateRequest(**ASK | body)):
                    pass
            status: Any = caught.value
            ends.append(dict(status.trailing_metadata())["torsor-code"])

    with start_server(tmp_path, *arguments) as server:
        thread = threading.Thread(target=read, args=(server,))
        thread.start()
        wait_for_running(server, 1)
        server.process.send_signal(signal.SIGTERM)
        while probe(server, "/readyz") != 503:
            time.sleep(0.01)
        assert server.process.poll() is None and not ends  # it would go on for minutes
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        thread.join(30)
    assert ends == ["unavailable"]


@pytest.mark.slow
def test_signals_that_come_until_the_end_change_nothing(start_server: Any, tmp_path: Path) -> None:
    with start_server(tmp_path, str(SHIPPED / TANH)) as server:
        while server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.002)
        assert server.process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("nohup", [False, True])
def test_a_terminal_that_closes_lets_streams_finish(
    start_server: Any, tmp_path: Path, nohup: bool
) -> None:
    """It tells all processes; started under nohup, the server goes on."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    try:
        with start_server(tmp_path, str(SHIPPED / TANH)) as server:
            with HttpClient(server.url) as client:
                stream = client.generate("A", max_tokens=60_000, seed=1)
                text = next(stream).text
                for pid in family(server.process.pid):
                    os.kill(pid, signal.SIGHUP)
                text += "".join(piece.text for piece in stream)
                assert len(text) == 60_000
                if nohup:
                    assert client.complete("A", max_tokens=3).text
                else:
                    assert server.process.wait(60) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_bentoml_itself_ends_with_an_error_where_grpc_has_no_port(odd: Any, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "BENTOML_HOME": str(tmp_path),
        "TORSOR_BUNDLES": str(SHIPPED / TANH),
        "TORSOR_GRPC_PORT": odd.grpc_address.rsplit(":", 1)[1],
    }
    command = ["bentoml", "serve", "serve.service:Torsor", "--host", "127.0.0.1", "--port"]
    found = subprocess.run(
        [sys.executable, "-m", *command, str(free_port())],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd=SHIPPED.parent.parent,
    )
    assert found.returncode == 1 and "gRPC can't listen" in found.stdout + found.stderr
