"""`torsor demo`, with less training than a person would see."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clients.command_line import demo
from serve.native.build import cache_dir

SAID = ("validation BPC", "largest difference to torch", "baseline", "ablated", "ΔBPC")


def commands_in(text: str) -> list[str]:
    """The verbs of the commands that a demo shows."""
    return [line.split()[2] for line in text.splitlines() if line.startswith("$ torsor ")]


@pytest.mark.slow
def test_the_demo_shows_every_step_and_ends_with_zero(tmp_path: Path) -> None:
    """Where Tiny Shakespeare isn't, it says so and trains on Python's documentation."""
    (tmp_path / "torsor").mkdir()
    (tmp_path / "torsor" / "native").symlink_to(cache_dir())  # the kernels are compiled already
    found = subprocess.run(
        [sys.executable, "-m", "clients.command_line.main", "demo", "--iterations", "20"],
        capture_output=True,
        text=True,
        env={**os.environ, "TORSOR_DATA_DIR": "", "XDG_CACHE_HOME": str(tmp_path)},
        timeout=500,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    for word in SAID:
        assert word in found.stdout + found.stderr
    assert set(commands_in(found.stdout)) == {
        *("train", "export", "serve", "models", "generate", "ablate", "score")
    }
    assert "characters/s" in found.stderr  # training progress
    assert "isn't on this machine" in found.stdout and "--data python-docs" in found.stdout


class NoServer:
    """In the place of the demo's server."""

    url, grpc_address = "http://nowhere", "nowhere"

    def __init__(self, *given: Any) -> None:
        pass

    def __enter__(self) -> "NoServer":
        return self

    def __exit__(self, *reason: object) -> None:
        pass


def test_with_shakespeare_at_hand_the_same_steps_learn_shakespeare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "First Citizen:\n" * 200
    (tmp_path / "data" / "tinyshakespeare").mkdir(parents=True)
    (tmp_path / "data" / "tinyshakespeare" / "input.txt").write_text(text)
    asked = list[tuple[str, ...]]()
    monkeypatch.setattr(demo, "torsor", lambda *words: asked.append(words))
    monkeypatch.setattr(demo, "Server", NoServer)

    def steps(data_dir: str) -> list[tuple[str, ...]]:
        monkeypatch.setenv("TORSOR_DATA_DIR", data_dir)
        asked.clear()
        demo.run_demo(tmp_path, 20)
        return [*asked]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    without = steps("")
    assert "python-docs" in capsys.readouterr().out
    found = steps(str(tmp_path / "data"))
    assert "python-docs" not in capsys.readouterr().out
    assert found == [tuple(w.replace("python-docs", "shakespeare") for w in a) for a in without]
    assert found[0][:4] == ("train", "osm-rnn", "--data", "shakespeare")
    assert demo.real_text("shakespeare") == text[-demo.SCORED :]
