"""Methods: each does on each path what HTTP says."""

from typing import Any

import httpx
import pytest

from serve.http_api import app, health, models
from serve.kserve import http as open_inference
from serve.sweeps import http as sweeps

OSM = "osm-rnn-shakespeare"
ROUTES = [*app.ROUTES, *health.ROUTES, *models.ROUTES, *open_inference.ROUTES, *sweeps.ROUTES]
GETS = sorted(
    {route.path.replace("{model}", OSM).replace("{version}", "1"): route for route in ROUTES}
)
PATHS = [path for path in GETS if "{id}" not in path] + ["/metrics"]


def methods_of(path: str) -> set[str]:
    own = {
        route.method
        for route in ROUTES
        if route.path.replace("{model}", OSM).replace("{version}", "1") == path
    }
    own |= {"GET"} if path == "/metrics" else set()
    return own | ({"HEAD"} if "GET" in own else set())


@pytest.mark.parametrize("path", PATHS)
def test_head_is_get_without_its_body(server: Any, path: str) -> None:
    if "GET" not in methods_of(path):
        assert httpx.head(server.url + path).status_code == 405
        return
    head, get = httpx.head(server.url + path), httpx.get(server.url + path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert get.content and head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("path", PATHS)
def test_a_method_that_a_path_lacks_is_405_and_allow_names_those_it_has(
    server: Any, path: str
) -> None:
    has = methods_of(path)
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"} - has:
        answer = httpx.request(method, server.url + path)
        assert answer.status_code == 405, (method, answer.text)
        assert set(answer.headers["allow"].split(", ")) == has
        assert answer.json()["error"] if path.startswith("/v2/") else answer.json()


def test_head_of_a_watched_sweep_ends_at_once(server: Any) -> None:
    asked = {"text": "ROMEO:" * 2000, "ablations": [{"edits": []}] * 50}
    id = httpx.post(server.url + "/v1/sweeps", json=asked).json()["id"]
    try:
        answer = httpx.head(f"{server.url}/v1/sweeps/{id}/events", timeout=2)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
    finally:
        httpx.delete(f"{server.url}/v1/sweeps/{id}")
