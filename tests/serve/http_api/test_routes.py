"""Routes: which handler a method and a path find, what is said where there is none."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import RunningServer
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serve.gateway.admission import Gateway
from serve.http_api import app, models
from serve.http_api.middleware import GatewayMiddleware
from serve.http_api.routes import Dispatcher, ModelsOf, Route, RouteTable
from serve.kserve import http as open_inference
from serve.models import Models
from serve.settings import SHIPPED
from serve.sweeps import http as sweeps
from serve.wire.errors import RequestError
from serve.wire.limits import MAX_BODY_BYTES

TANH = "tanh-rnn-shakespeare"
ROUTES = (*app.ROUTES, *sweeps.ROUTES, *models.ROUTES, *open_inference.ROUTES)
TABLE = RouteTable(ROUTES)
NAMES = st.text(st.characters(exclude_characters="/"), min_size=1, max_size=8)
WRITE = {"prompt": "To be", "max_tokens": 30, "seed": 1}


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("a route of ours was handed on")


async def ask(own: Dispatcher, method: str, path: str, body: Any = None) -> httpx.Response:
    app: Any = GatewayMiddleware(nothing, Gateway(), own)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, json=body)


def none() -> Models:
    raise RequestError("unavailable", "not yet")


@given(st.sampled_from(ROUTES), st.data())
def test_a_route_is_found_by_its_path_whatever_its_names_stand_for(route: Route, data: Any) -> None:
    values = {name: data.draw(NAMES) for name in route.parameters}
    path = "/".join(
        values[part[1:-1]] if part.startswith("{") else part for part in route.path.split("/")
    )
    methods, found = TABLE.find(path)
    expected = TABLE.find(path)[0] if path in {r.path for r in ROUTES} else None
    assert methods.get(route.method) is route or methods is expected  # one without names is first
    if methods.get(route.method) is route:
        assert found == values


@given(st.lists(NAMES, max_size=6))
def test_a_path_that_no_route_has_is_not_found(parts: list[str]) -> None:
    path = "/" + "/".join(["v9", *parts])
    assert TABLE.find(path) == ({}, {}) and TABLE.find(path + "/") == ({}, {})


def test_two_routes_of_one_method_and_path_are_refused() -> None:
    route = Route("GET", "/one", app.models)
    with pytest.raises(ValueError, match="found two routes of GET /one"):
        RouteTable((route, route))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_another_method_is_told_which_there_are(route: Route) -> None:
    path = route.path.replace("{model}", "m").replace("{id}", "i")
    allowed = {other.method for other in ROUTES if other.path == route.path}
    allowed |= {"HEAD"} if "GET" in allowed else set()
    answer = asyncio.run(ask(Dispatcher(TABLE, none), "PATCH", path))
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message.startswith(f"found PATCH {path}, expected {answer.headers['allow']}; ")


@pytest.mark.parametrize("path", ["/v1/none", "/v1/models/", "/v2/none", "/v2/models/a/b/c%0Ad"])
def test_what_is_below_our_paths_and_not_there_is_ours_to_say(path: str) -> None:
    answer = asyncio.run(ask(Dispatcher(TABLE, none), "GET", path))
    error = answer.json()["error"]
    assert answer.status_code == 404 and isinstance(error, str) == path.startswith("/v2")
    assert "there is no such path" in str(error)


def test_a_mistake_of_ours_is_told_to_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(models_of: ModelsOf, http: Request) -> Response:
        raise ValueError("a secret")

    for path in ("/v1/bad", "/v2/bad"):
        own = Dispatcher(RouteTable([Route("POST", path, fail)]), none)
        answer = asyncio.run(ask(own, "POST", path))
        error = answer.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert answer.status_code == 500 and message == "the server failed; see its log"
    failed = [r for r in caplog.records if "failed" in r.getMessage() and r.exc_info]
    assert len(failed) == 2


@pytest.mark.parametrize("path", [r.path for r in app.ROUTES if r.path.startswith("/v1/m")])
def test_before_there_are_models_a_route_says_so(path: str) -> None:
    answer = asyncio.run(ask(Dispatcher(TABLE, none), "GET", path.replace("{model}", TANH)))
    assert answer.status_code == 503 and answer.json()["error"]["message"] == "not yet"


def test_requests_are_counted_by_the_path_of_their_route(host: Models) -> None:
    def count(route: str, status: str) -> float:
        labels = {"wire": "http", "route": route, "status": status}
        return REGISTRY.get_sample_value("torsor_requests_total", labels) or 0.0

    asked = [("/v1/completions", "200"), ("/v1/models/{model}", "404"), ("none", "404")]
    before = [count(*labels) for labels in asked]
    own = Dispatcher(TABLE, lambda: host)
    asyncio.run(ask(own, "POST", "/v1/completions", WRITE))
    asyncio.run(ask(own, "GET", "/v1/models/made-up"))
    asyncio.run(ask(own, "GET", "/v1/made-up"))
    assert [count(*labels) for labels in asked] == [n + 1 for n in before]


def test_what_no_route_has_is_bentomls() -> None:
    async def answer(models_of: ModelsOf, http: Request) -> Response:
        return JSONResponse({})

    own = Dispatcher(
        RouteTable([Route("POST", "/a", answer), Route("GET", "/b/{x}", answer)]), none
    )
    assert [own.takes(path) for path in ("/a", "/b/1", "/v1/none", "/v2/none")] == [True] * 4
    assert not own.takes("/healthz") and not own.takes("/b")


@pytest.mark.parametrize(
    ("path", "good"), [("/generate", {"max_tokens": 3}), ("/score", {"text": "To be"})]
)
def test_bentomls_own_paths_read_no_more_than_others(server: Any, path: str, good: Any) -> None:
    def code_of(content: bytes) -> str:
        answer = httpx.post(server.url + path, content=content, timeout=60)
        code: str = answer.json()["error"]["code"]
        return code

    assert httpx.post(server.url + path, json=good, timeout=60).status_code == 200
    assert code_of(b" " * (MAX_BODY_BYTES + 1)) == "too_large"
    assert code_of(b"{") == "invalid_request"
    assert code_of(json.dumps(good | {"no_such_field": 1}).encode()) == "invalid_request"
    nothing = httpx.post(server.url + path, timeout=60)
    assert nothing.status_code == (200 if path == "/generate" else 400)


@pytest.mark.parametrize(
    ("path", "form"), [("/generate", {"prompt": "K", "max_tokens": "3"}), ("/score", {"text": "K"})]
)
def test_bentomls_own_paths_take_forms_no_larger_than_other_bodies(
    server: Any, path: str, form: dict[str, str]
) -> None:
    def pieces() -> Iterator[bytes]:  # of a length that no header says
        for _ in range(MAX_BODY_BYTES // 1000 + 2):
            yield b"a" * 1000

    for encoded in ({"data": form}, {"files": {name: (None, v) for name, v in form.items()}}):
        assert httpx.post(server.url + path, timeout=60, **encoded).status_code == 200
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    whole = httpx.post(server.url + path, content=b"".join(pieces()), headers=headers, timeout=60)
    assert whole.status_code == 413 and whole.json()["error"]["code"] == "too_large"
    long = httpx.post(server.url + path, content=pieces(), headers=headers, timeout=60)
    assert long.status_code >= 400
    headers = {"Content-Type": "application/vnd.bentoml+pickle"}
    assert httpx.post(server.url + path, content=b"{}", headers=headers).status_code == 415


def test_origins_that_bentoml_lets_in_are_let_in_by_our_routes(
    start_server: Callable[..., AbstractContextManager[RunningServer]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = tmp_path / "bentoml.yaml"
    allowed = "access_control_allow_origins: ['https://one.example']"
    cors = f"{{enabled: true, {allowed}, access_control_allow_methods: [POST]}}"
    settings.write_text(f"services:\n  torsor:\n    http:\n      cors: {cors}\n")
    monkeypatch.setitem(os.environ, "BENTOML_CONFIG", str(settings))
    with start_server(tmp_path, str(SHIPPED / TANH)) as server:
        headers = {"Origin": "https://one.example"}
        body = {"max_tokens": 1}
        answer = httpx.post(server.url + "/v1/completions", json=body, headers=headers)
        asking = headers | {"Access-Control-Request-Method": "POST"}
        before = httpx.options(server.url + "/v1/completions", headers=asking)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://one.example"
    assert before.status_code == 200
    assert before.headers["access-control-allow-origin"] == "https://one.example"
