"""Web pages of other origins: preflights come before keys, all answers say who may read them."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from serve.gateway.keys import add_key
from serve.settings import SHIPPED

TANH = str(SHIPPED / "tanh-rnn-shakespeare")
PAGE = "https://lab.example"
WRITE = {"prompt": "ROMEO:", "max_tokens": 5, "stream": True}


@pytest.fixture(scope="module")
def served(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("cors")
    key = add_key(folder / "keys.toml", "page", manage=False)
    arguments = ("--keys", str(folder / "keys.toml"), "--cors", PAGE, "http://127.0.0.1:8080")
    with start_server(folder, TANH, *arguments) as server:
        yield server.url, key


def preflight(url: str, origin: str, method: str = "POST") -> httpx.Response:
    headers = {"Origin": origin, "Access-Control-Request-Method": method}
    headers["Access-Control-Request-Headers"] = "authorization, content-type"
    return httpx.options(url + "/v1/completions", headers=headers)


def test_a_preflight_is_answered_before_a_key_is_asked_for(served: Any) -> None:
    url, _ = served
    found = preflight(url, PAGE)
    assert found.status_code == 200
    assert found.headers["access-control-allow-origin"] == PAGE
    assert "POST" in found.headers["access-control-allow-methods"]
    assert "authorization" in found.headers["access-control-allow-headers"].lower()
    assert preflight(url, "https://other.example").status_code == 400


@pytest.mark.parametrize("path", ["/v1/models", "/v1/none", "/livez", "/metrics", "/"])
def test_answers_and_errors_say_who_may_read_them(served: Any, path: str) -> None:
    url, key = served
    for headers in ({}, {"Authorization": f"Bearer {key}"}):
        found = httpx.get(url + path, headers=headers | {"Origin": PAGE})
        assert found.headers["access-control-allow-origin"] == PAGE, found.status_code
        assert "x-request-id" in found.headers["access-control-expose-headers"].lower()
    other = httpx.get(url + path, headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers


def test_streams_do_too(served: Any) -> None:
    url, key = served
    headers = {"Origin": PAGE, "Authorization": f"Bearer {key}"}
    found = httpx.post(url + "/v1/completions", json=WRITE, headers=headers)
    assert found.text.endswith("data: [DONE]\n\n")
    assert found.headers["access-control-allow-origin"] == PAGE


def test_no_origin_is_let_in_where_none_is_set(server: Any) -> None:
    assert "access-control-allow-origin" not in preflight(server.url, PAGE).headers
