"""Questions to a running server, and looks at its gauges."""

import json
import time
from typing import Any

import grpc
import httpx

from serve.wire import torsor_pb2_grpc as rpc

OSM, TANH = "osm-rnn-shakespeare", "tanh-rnn-shakespeare"


MODELS = (OSM, TANH)


ASK: dict[str, Any] = {"prompt": "ROMEO:\n", "max_tokens": 120, "seed": 7}


def stub_of(channel: grpc.Channel) -> Any:
    return rpc.TorsorStub(channel)  # type: ignore[no-untyped-call]  # generated


def complete(server: Any, **body: Any) -> dict[str, Any]:
    answer = httpx.post(server.url + "/v1/completions", json=ASK | body, timeout=60)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


def text_of(page: dict[str, Any]) -> str:
    return str(page["choices"][0]["text"])


def gauge(server: Any, name: str) -> float:
    lines = httpx.get(server.url + "/metrics", timeout=30).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split()[0] == name)


def wait_for_no_streams(server: Any, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if gauge(server, "torsor_streams_running") == gauge(server, "torsor_streams_waiting") == 0:
            return
        time.sleep(0.02)
    raise AssertionError("streams are still running")


def wait_for_running(server: Any, num_streams: int) -> None:
    deadline = time.monotonic() + 30
    while gauge(server, "torsor_streams_running") < num_streams:
        assert time.monotonic() < deadline, "the streams did not start, or ended too soon"
        time.sleep(0.01)


def events(server: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    found, done = [], False
    url, ask = server.url + "/v1/completions", ASK | body | {"stream": True}
    with httpx.stream("POST", url, json=ask, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            assert not done or not line
            done = done or line == "data: [DONE]"
            if line and not done:
                found.append(json.loads(line.removeprefix("data: ")))
    assert done
    return found


def wait_until(true: Any, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def streams(server: Any) -> tuple[float, float]:
    """How many run, and how many wait."""
    return gauge(server, "torsor_streams_running"), gauge(server, "torsor_streams_waiting")
