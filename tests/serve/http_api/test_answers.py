"""What the server answers is what its routes declare: each is read, and written the same again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.bento import native_api
from serve.gateway.keys import add_key
from serve.http_api import app, health
from serve.http_api import models as model_routes
from serve.kserve import http as open_inference
from serve.settings import SHIPPED
from serve.sweeps import http as sweep_routes
from serve.wire.codec import from_json, to_json
from serve.wire.query_responses import SweepEvent, SweepPoints, point_json
from serve.wire.responses import CompletionEvent, PairEvent

TEXT, TASK = "tanh-rnn-shakespeare", "small-copy"
EDITS = {"edits": [{"target": "recurrent", "op": "schur", "zero": ["C→R"]}]}
MIXING = {"edits": [{"target": "mixing", "op": "identity"}]}
BROKEN = {"edits": [{"target": "recurrent", "op": "scale", "factor": 1e300}]}
WRITE = {"prompt": "ROMEO:", "max_tokens": 5}
FORCED = {"name": "forced", "shape": [1, 1], "datatype": "INT64", "data": [3]}
INFER: list[Any] = [
    {"inputs": [FORCED]},
    {"id": "7", "inputs": [FORCED], "outputs": [{"name": "tokens"}]},
]
BODIES: dict[str, list[Any]] = {  # by path: requests that have all that an answer can have
    "/v1/completions": [
        WRITE,
        WRITE | {"logprobs": 2, "echo": True, "n": 2, "stop": ["e"], "save_state": True},
        WRITE | {"logprobs": 0, "ablation": EDITS},
    ],
    "/v1/ablations/generate": [WRITE | {"ablation": EDITS}],
    "/v1/ablations/score": [
        {"text": "ROMEO:"},
        {"text": "ROMEO:", "ablation": EDITS, "detail": True},
    ],
    "/score": [{"text": "ROMEO:", "detail": True}],
    "/v1/ablations/compare": [{"prompt": "ROMEO:", "ablations": [EDITS, {"edits": []}]}],
    "/v1/ablations/trials": [
        {"model": TASK, "resamples": 0},
        {"model": TASK, "ablation": MIXING, "resamples": 100},
    ],
    "/v1/sweeps": [{"text": "ROMEO:", "ablations": [EDITS, BROKEN], "controls": 1}],
    "/tokenize": [{"prompt": "abc"}, {"prompt": "abc", "return_token_strs": True}],
    "/detokenize": [{"tokens": [1, 2]}],
    "/v2/models/{model}/infer": INFER,
    "/v2/models/{model}/versions/{version}/infer": INFER,
}


@pytest.fixture(scope="module")
def client(
    start_server: Any,
    exported_task: Callable[[str, str], Path],
    for_device: Callable[[Path], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[httpx.Client]:
    """Of a key that may manage, on a server of a model of text and of one of a task."""
    folder = tmp_path_factory.mktemp("answers")
    key = add_key(folder / "keys.toml", "boss", manage=True)
    task = for_device(exported_task("osm-rnn", "copy") / "bundle")
    bundles = (str(SHIPPED / TEXT), str(task))
    with start_server(folder, *bundles, "--keys", str(folder / "keys.toml")) as server:
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as found:
            BODIES["/management/models"] = [{"folder": str(task)}]
            yield found


@pytest.fixture(scope="module")
def sweep(client: httpx.Client) -> str:
    """The id of a sweep that has ended."""
    id: str = client.post("/v1/sweeps", json=BODIES["/v1/sweeps"][0]).json()["id"]
    events_of(client.get(f"/v1/sweeps/{id}/events").text)
    return id


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data:")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def written(kind: Any, answer: Any) -> Any:
    """The answer as it is written again, once it has been read."""
    response = from_json(kind, answer)
    page = to_json(response)
    if kind is SweepPoints:
        page["points"] = [point_json(point) for point in response.points]
    return page


# Removing a model or a sweep comes last, where the others have been answered
DECLARED = sorted(
    (
        route
        for room in (app, sweep_routes, model_routes, open_inference, native_api, health)
        for route in room.ROUTES
        if route.answers
    ),
    key=lambda route: route.method == "DELETE",
)


@pytest.mark.parametrize("route", DECLARED, ids=lambda route: f"{route.method} {route.path}")
def test_answers_are_as_their_route_declares(client: httpx.Client, sweep: str, route: Any) -> None:
    model = TASK if route.path.startswith("/management") else TEXT
    path = route.path.replace("{model}", model).replace("{id}", sweep).replace("{version}", "1")
    for body in BODIES.get(route.path, [None]) if route.method == "POST" else [None]:
        answer = client.request(route.method, path, json=body)
        assert answer.status_code == route.status, answer.text
        assert written(route.answers, answer.json()) == answer.json()


@pytest.mark.parametrize("body", BODIES["/v1/completions"], ids=["plain", "all", "ablated"])
def test_events_of_completions_are_as_declared(client: httpx.Client, body: Any) -> None:
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    events = events_of(client.post("/v1/completions", json=asked).text)
    assert len(events) > 1 and events[-1]["usage"] and "ablation" in events[0]
    for event in events:  # made by hand where there are many, without what they have in common
        page = written(CompletionEvent, event)
        assert page == event | {key: None for key in page if key not in event}


def test_events_of_pairs_are_as_declared(client: httpx.Client) -> None:
    asked = WRITE | {"ablation": EDITS, "stream": True}
    *events, end = events_of(client.post("/v1/ablations/generate", json=asked).text)
    assert {event["branch"] for event in events} == {"baseline", "ablated"}
    assert [written(PairEvent, event) for event in events] == events
    assert written(PairEvent, end)["summary"] == end["summary"]


def test_events_of_sweeps_are_as_declared(client: httpx.Client) -> None:
    id = client.post("/v1/sweeps", json=BODIES["/v1/sweeps"][0]).json()["id"]
    events = events_of(client.get(f"/v1/sweeps/{id}/events").text)
    assert [list(event) for event in events] == [["point"], ["point"], ["sweep"]]
    assert [event["point"]["error"] is None for event in events[:2]] == [True, False]
    for event in events:
        read = from_json(SweepEvent, event)
        page = {"point": point_json(read.point)} if read.point else to_json(read)
        assert page == event


def test_every_error_is_as_declared(client: httpx.Client) -> None:
    for path in ("/v1/models/none", "/nothing", "/v1/completions"):
        answer = client.get(path).json()
        assert set(answer) == {"error"}
        assert set(answer["error"]) == {"message", "type", "param", "code"}
