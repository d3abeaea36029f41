"""More connections than the process may have files: each is answered, and probes go on."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.native.connections import backlog, max_connections, max_files
from serve.settings import SHIPPED

LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, 400))
"""


async def ask(url: httpx.URL, path: str, wait_s: float) -> int:
    """The status of an answer on a connection of its own, kept open for a while; 0: none came."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        line = await asyncio.wait_for(reader.readline(), 60)
        await asyncio.sleep(wait_s)
        return int(line.split()[1]) if line else 0
    except ConnectionError:
        return 0
    finally:
        writer.close()


async def ask_many(url: httpx.URL, count: int) -> tuple[Counter[int], int]:
    asked = [asyncio.create_task(ask(url, "/v1/models", 3.0)) for _ in range(count)]
    await asyncio.sleep(1.5)
    probe = await ask(url, "/livez", 0.0)
    return Counter(await asyncio.gather(*asked)), probe


@pytest.mark.process
@pytest.mark.parametrize("soft", [200, 400])
def test_every_connection_is_answered_where_files_run_out(
    start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soft: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(LIMIT.format(soft=soft))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with start_server(tmp_path, str(SHIPPED / "tanh-rnn-shakespeare")) as server:
        answers, probe = asyncio.run(ask_many(httpx.URL(server.url), 600))
        assert set(answers) == {200, 503} and probe == 200
        assert answers[200] >= 100
        assert "connections are open, expected at most" in server.log.read_text()
        assert httpx.get(server.url + "/v1/models", timeout=60).status_code == 200


def test_limits_fit_into_the_files_of_the_process() -> None:
    assert max_connections() + backlog() < max_files()
