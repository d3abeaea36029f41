"""What servers share with each other, and with a home that can't be written: nothing."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.bento.launch import bento_environment
from serve.settings import SHIPPED

TANH = "tanh-rnn-shakespeare"
NOWHERE = "/proc/nowhere"  # where not even root can make a folder


def written(server: Any) -> float:
    """The characters that a server says it has written."""
    lines = httpx.get(server.url + "/metrics", timeout=60).text.splitlines()
    found = [line for line in lines if line.startswith("torsor_written_characters_total")]
    return sum(float(line.split()[-1]) for line in found)


def write(server: Any) -> str:
    body = {"prompt": "ROMEO:", "max_tokens": 50, "seed": 1}
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=60)
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.process
def test_two_servers_of_one_home_count_by_themselves(start_server: Any, tmp_path: Path) -> None:
    """A start of another one sets nothing back."""
    own = ("--data-folder", str(tmp_path / "first")), ("--data-folder", str(tmp_path / "second"))
    with start_server(tmp_path, str(SHIPPED / TANH), *own[0]) as first:
        write(first)
        before = written(first)
        assert before >= 50
        with start_server(tmp_path, str(SHIPPED / TANH), *own[1]) as second:
            assert (written(first), written(second)) == (before, 0)
            write(second)
            assert (written(first), written(second)) == (before, before)
        assert written(first) == before
        write(first)
        assert written(first) == 2 * before


@pytest.mark.process
def test_a_server_without_a_home_serves(
    server: Any, start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", NOWHERE)
    with start_server(tmp_path, str(SHIPPED / TANH)) as found:
        assert write(found)
        log = found.log.read_text()
    assert "no native kernels: the cache folder can't be used" in log
    assert "set XDG_CACHE_HOME to a folder that is" in log
    assert "can't keep a key for saved states" in log and "--state-key" in log


def test_bentos_home_is_a_folder_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BENTOML_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert bento_environment(3000)["BENTOML_HOME"] == str(tmp_path / "cache/torsor/bentoml-3000")
    monkeypatch.setenv("XDG_CACHE_HOME", NOWHERE)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert bento_environment(3000)["BENTOML_HOME"].startswith(str(tmp_path / "temporary/torsor-"))
    monkeypatch.setattr("tempfile.tempdir", NOWHERE)
    with pytest.raises(OSError, match="BENTOML_HOME: found neither .*; set BENTOML_HOME"):
        bento_environment(3000)
