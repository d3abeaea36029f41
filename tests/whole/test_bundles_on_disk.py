"""Bundles that change on disk while they are served, and server processes that start anew."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest

from serve.manifest.page import GRAPH_FILE, WEIGHTS_FILE
from serve.settings import SHIPPED

OSM, TANH = "osm-rnn-shakespeare", "tanh-rnn-shakespeare"
ABLATION = {"edits": [{"target": "recurrent", "op": "scale", "factor": 0.5}]}
HARMS: dict[str, Callable[[Path], Any]] = {
    "other bytes": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "truncated": lambda path: os.truncate(path, 0),
}

pytestmark = pytest.mark.process


@pytest.fixture
def copies(tmp_path: Path) -> list[Path]:
    return [shutil.copytree(SHIPPED / name, tmp_path / name) for name in (OSM, TANH)]


@pytest.fixture
def changing(start_server: Any, copies: list[Path], tmp_path: Path) -> Iterator[Any]:
    """A server of bundles that a test may change."""
    with start_server(tmp_path, *map(str, copies)) as found:
        yield found


def text_of(server: Any, **fields: Any) -> str:
    body = {"model": TANH, "prompt": "ROMEO:", "max_tokens": 40, "seed": 1} | fields
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def worker_of(server: Any) -> psutil.Process:
    """The process that serves; the supervisor has others beside it."""
    found = psutil.Process(server.process.pid).children(recursive=True)
    (worker,) = [p for p in found if any("_bentoml_impl.worker" in part for part in p.cmdline())]
    return worker


def wait_for_readiness(server: Any, but: psutil.Process) -> Any:
    """What `/readyz` says once another process than `but` serves."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            answer = httpx.get(server.url + "/readyz", timeout=5)
            if answer.status_code == 200 and not but.is_running():
                return answer.json()
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(server.log.read_text())


@pytest.mark.parametrize("harm", HARMS)
def test_a_running_model_does_not_notice_what_happens_to_its_files(
    changing: Any, copies: list[Path], harm: str
) -> None:
    expected, ablated = text_of(changing), text_of(changing, ablation=ABLATION)
    worker = worker_of(changing)
    body = {"model": TANH, "max_tokens": 20_000, "seed": 1, "stream": True}
    with httpx.stream("POST", changing.url + "/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        for name in (WEIGHTS_FILE, GRAPH_FILE):
            HARMS[harm](copies[1] / name)
        other = {"edits": [ABLATION["edits"][0] | {"factor": 0.25}]}  # a session made only now
        assert text_of(changing, ablation=other) != ablated
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert text_of(changing) == expected
    assert text_of(changing, ablation=ABLATION) == ablated
    assert worker_of(changing) == worker
    assert httpx.get(changing.url + "/readyz", timeout=60).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGKILL])
def test_a_process_that_starts_anew_serves_what_is_whole_and_says_what_is_not(
    changing: Any, copies: list[Path], number: signal.Signals
) -> None:
    expected, worker = text_of(changing), worker_of(changing)
    HARMS["truncated"](copies[0] / WEIGHTS_FILE)
    worker.send_signal(number)
    found = wait_for_readiness(changing, worker)
    assert [model["id"] for model in found["models"]] == [TANH]
    (broken,) = found["broken"]
    assert broken["id"] == OSM and broken["reason"].startswith(f"{WEIGHTS_FILE}: size: found 0")
    assert httpx.get(changing.url + "/livez", timeout=5).status_code == 200
    assert text_of(changing) == expected
    refused = httpx.post(changing.url + "/v1/completions", json={"model": OSM}, timeout=60)
    assert refused.status_code == 503 and "/readyz" in refused.json()["error"]["message"]
    log = changing.log.read_text()
    assert f"the server's process {worker.pid} was ended by {number.name}" in log
    if number is signal.SIGBUS:
        assert "Fatal Python error: Bus error" in log  # and where each thread was
