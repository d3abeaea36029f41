"""What is answered on the short way is answered as on the long one."""

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
from prometheus_client import REGISTRY

from serve.gateway.admission import Gateway
from serve.http_api.app import make_app
from serve.http_api.middleware import GatewayMiddleware, direct_paths
from serve.http_api.models import add_tokenizer
from serve.models import Models
from serve.settings import SHIPPED
from serve.wire.limits import MAX_BODY_BYTES

TANH = "tanh-rnn-shakespeare"
ABLATION = {"edits": [{"target": "recurrent", "op": "schur", "alpha": 0.9, "zero": ["CC"]}]}
CHANGING = ("id", "created", "seed")
WRITE = {"prompt": "To be", "max_tokens": 30, "seed": 1}
GOOD: dict[str, list[Any]] = {
    "/tokenize": [{"prompt": "To be"}],
    "/v1/ablations/compare": [{"prompt": "To be", "ablations": [ABLATION]}],
    "/v1/ablations/generate": [
        {**WRITE, "ablation": ABLATION},
        {**WRITE, "ablation": ABLATION, "stream": True},
    ],
    "/v1/ablations/score": [{"text": "To be"}, {"text": "To be", "ablation": ABLATION}],
    "/v1/ablations/trials": [],  # no model of text answers any
    "/v1/completions": [WRITE, {**WRITE, "stream": True}, {**WRITE, "ablation": ABLATION}],
}
BAD: list[Any] = [
    *({"model": "none"}, {"model": "none", "prompt": "", "text": "T", "ablations": []}),
    *({"max_tokens": -1}, {"no_such_field": 1}, [], b"{", b""),
]


async def ask(app: Any, path: str, body: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(path, **content)


def both_ways(models_of: Callable[[], Models], path: str, body: Any) -> list[httpx.Response]:
    app = make_app(models_of, (add_tokenizer,))
    long = GatewayMiddleware(app, Gateway())
    direct = GatewayMiddleware(app, Gateway(), lambda: direct_paths(app))
    return [asyncio.run(ask(gateway, path, body)) for gateway in (long, direct)]


def texts_of(events: str) -> dict[str, str]:
    """What was written of each branch, however it was cut into events."""
    found: dict[str, str] = {}
    for line in events.splitlines():
        if line.startswith("data: {"):
            page = json.loads(line.removeprefix("data: "))
            for piece in page.get("choices", [page]):
                branch = piece.get("branch", "")
                found[branch] = found.get(branch, "") + piece.get("text", "")
    return found


def unchanging(answer: httpx.Response) -> Any:
    """Status, headers and body without what differs from request to request."""
    headers = {k: v for k, v in answer.headers.items() if k not in ("x-request-id", "date")}
    if headers["content-type"].startswith("text/event-stream"):
        return answer.status_code, headers, texts_of(answer.text)
    page = {key: value for key, value in answer.json().items() if key not in CHANGING}
    headers.pop("content-length")  # of a page with a name of its own
    return answer.status_code, headers, page


def paths() -> list[str]:
    def none() -> Models:
        raise AssertionError

    return sorted(path for _, path in direct_paths(make_app(none, (add_tokenizer,))))


def test_what_has_its_request_in_its_body_is_answered_directly() -> None:
    assert paths() == list(GOOD)


@pytest.mark.parametrize("path", paths())
def test_both_ways_answer_alike(host: Models, path: str) -> None:
    for body in GOOD[path] + BAD:
        long, direct = both_ways(lambda: host, path, body)
        assert unchanging(direct) == unchanging(long), body
        assert (direct.status_code == 200) == (body in GOOD[path])


def test_a_mistake_of_ours_is_answered_alike(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Models:
        raise ValueError("a secret")

    long, direct = both_ways(broken, "/v1/completions", {})
    assert long.status_code == 500 and unchanging(direct) == unchanging(long)
    assert "secret" not in direct.text
    failed = [r for r in caplog.records if "failed" in r.getMessage() and r.exc_info]
    assert len(failed) == 2


def test_both_ways_are_counted_as_one_path(host: Models) -> None:
    labels = {"wire": "http", "route": "/v1/completions", "status": "200"}

    def count() -> float:
        return REGISTRY.get_sample_value("torsor_requests_total", labels) or 0.0

    before = count()
    both_ways(lambda: host, "/v1/completions", WRITE)
    assert count() == before + 2


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


def test_origins_that_bentoml_lets_in_are_let_in_on_the_short_way(
    start_server: Callable[..., AbstractContextManager[RunningServer]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = tmp_path / "bentoml.yaml"
    cors = "{enabled: true, access_control_allow_origins: ['https://one.example']}"
    settings.write_text(f"services:\n  torsor:\n    http:\n      cors: {cors}\n")
    monkeypatch.setitem(os.environ, "BENTOML_CONFIG", str(settings))
    with start_server(tmp_path, str(SHIPPED / TANH)) as server:
        headers = {"Origin": "https://one.example"}
        body = {"max_tokens": 1}
        answer = httpx.post(server.url + "/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://one.example"
