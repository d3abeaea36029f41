"""/docs.json says of every path what it takes and answers, and the server does as it says.

schemathesis reads the document, asks for everything in it, and holds the answers against it.
"""

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.http_api.app import ROUTES
from serve.http_api.openapi import docs_route
from serve.http_api.openapi import document as document_of
from serve.http_api.routes import Dispatcher, RouteTable
from serve.models import Models

OSM, TANH = "osm-rnn-shakespeare", "tanh-rnn-shakespeare"
WORDS = {"type": "string", "pattern": "^[A-Za-z ,.]{1,20}$"}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 64}, "minItems": 1}
FORCED = {"name": "forced", "shape": [1, 1], "datatype": "INT64", "data": [3]}
NARROW: dict[str, Any] = {  # fields of requests: the part of what they take that is quick to answer
    "max_tokens": {"type": "integer", "minimum": 0, "maximum": 8},
    "n": {"type": "integer", "minimum": 1, "maximum": 2},
    "best_of": {"type": "null"},
    "min_tokens": {"type": "null"},
    "model": {"enum": [OSM, TANH]},
    "tokens": IDS,
    "text": WORDS,
    "ablation": {"enum": [None, {"edits": []}, {"edits": [{"target": "readout", "op": "zero"}]}]},
    "ablations": {"enum": [[{"edits": []}], [{"edits": [{"target": "readout", "op": "zero"}]}]]},
    "inputs": {"enum": [[FORCED], [FORCED | {"data": [[-1]]}]]},
    "outputs": {"enum": [[], [{"name": "tokens"}]]},
}
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_schema_conformance", "response_headers_conformance"),
)


@pytest.fixture(scope="module")
def document(server: Any) -> Any:
    return httpx.get(server.url + "/docs.json", timeout=30).json()


def operations(document: Any) -> list[tuple[str, str, Any]]:
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_path_says_what_it_answers_and_how_it_fails(document: Any) -> None:
    for path, _, operation in operations(document):
        answers = operation["responses"]
        assert all(answer["content"] for answer in answers.values()), path
        if not path.endswith("z") and path not in ("/health", "/metrics"):
            assert {"4XX", "5XX"} < set(answers) and {"200", "202"} & set(answers), path


def test_every_path_of_the_document_is_there(server: Any, document: Any) -> None:
    expected = {"/v1/completions", "/v1/models/{model}/structure", "/v2/models/{model}/infer"}
    assert expected | {"/generate", "/score", "/livez", "/tokenize"} <= set(document["paths"])
    for path, method, _ in operations(document):
        url = server.url + path.replace("{model}", OSM).replace("{version}", "1")
        body = None if method == "get" else [1]
        answer = httpx.request(method, url, json=body, timeout=60)
        closed = path.startswith("/management")
        missing = "{id}" in path  # of a sweep
        expected_status = 200 if method == "get" else 400
        expected_status = 403 if closed else 404 if missing else expected_status
        assert answer.status_code == expected_status, (path, answer.text)


def narrowed(node: Any) -> Any:
    """The document with the fields of `NARROW` as they are there."""
    if isinstance(node, list):
        return [narrowed(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: narrowed(value) for key, value in node.items()}
    for name in set(found.get("properties", {})) & set(NARROW):
        found["properties"][name] = NARROW[name]
    if "prompt" in found.get("properties", {}):
        several = "anyOf" in found["properties"]["prompt"]
        lists = [{"type": "array", "items": kind, "minItems": 1} for kind in (WORDS, IDS)]
        found["properties"]["prompt"] = {"anyOf": [WORDS, IDS, *lists]} if several else WORDS
    if found.get("in") == "path":
        found["schema"] = NARROW["model"]
    return found


def requests_narrowed(document: Any) -> Any:
    paths = {
        path: {
            method: operation
            | {
                key: narrowed(operation[key])
                for key in ("parameters", "requestBody")
                if key in operation
            }
            for method, operation in methods.items()
        }
        for path, methods in document["paths"].items()
    }
    return document | {"paths": paths}


def fuzz(server: Any, folder: Path, document: Any, *options: str, seconds: int = 20) -> None:
    (folder / "docs.json").write_text(json.dumps(document))
    (folder / "schemathesis.toml").write_text("")  # or it would look for one further up
    run = [sys.executable, "-m", "schemathesis.cli", "run", str(folder / "docs.json")]
    run += ["--url", server.url, "--no-color", "--no-shrink", "--generation-deterministic"]
    run += ["--max-time", str(seconds), "--request-timeout", "30", "--warnings", "off", *options]
    found = subprocess.run(run, capture_output=True, text=True, cwd=folder)
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr
    assert f"Tested: {len(operations(document))}" in found.stdout, found.stdout


@pytest.mark.slow
def test_a_document_that_says_something_else_is_found_out(
    server: Any, document: Any, tmp_path: Path
) -> None:
    pytest.importorskip("schemathesis")
    page = requests_narrowed(document)
    tokenize = json.loads(json.dumps(page["paths"]["/tokenize"]))
    answer = tokenize["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    answer["properties"]["count"] = {"type": "string"}
    options = ("--mode", "positive", "--phases", "fuzzing", "--max-examples", "5")
    with pytest.raises(AssertionError, match="is not of type .string."):
        fuzz(server, tmp_path, page | {"paths": {"/tokenize": tokenize}}, *options, seconds=8)


@pytest.mark.slow
def test_what_the_document_allows_is_answered_as_it_says(
    server: Any, document: Any, tmp_path: Path
) -> None:
    pytest.importorskip("schemathesis")
    options = ("--mode", "positive", "--phases", "fuzzing", "--max-examples", "5")
    fuzz(server, tmp_path, requests_narrowed(document), *options, "--checks", ",".join(CHECKS))


@pytest.mark.slow
def test_what_the_document_does_not_allow_is_refused_as_it_says(
    server: Any, document: Any, tmp_path: Path
) -> None:
    pytest.importorskip("schemathesis")
    paths = document["paths"].items()
    posts = {p: {"post": m["post"]} for p, m in paths if "requestBody" in m.get("post", {})}
    checks = ",".join((*CHECKS, "negative_data_rejection"))
    options = ("--mode", "negative", "--phases", "fuzzing", "--max-examples", "5")
    fuzz(server, tmp_path, document | {"paths": posts}, *options, "--checks", checks)


def test_the_document_is_made_once_and_off_the_event_loop(
    host: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a while, and streams go on meanwhile."""
    threads = []

    def make(routes: Any) -> Any:
        threads.append(threading.current_thread())
        return document_of(routes)

    monkeypatch.setattr("serve.http_api.openapi.document", make)
    own = Dispatcher(RouteTable([docs_route(ROUTES)]), lambda: host)

    async def ask_twice_at_once() -> list[httpx.Response]:
        transport = httpx.ASGITransport(own)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await asyncio.gather(*(client.get("/docs.json") for _ in range(2)))

    first, second = asyncio.run(ask_twice_at_once())
    assert first.status_code == 200 and first.json() == second.json()
    assert len(threads) == 1 and threads[0] is not threading.main_thread()
