"""`torsor demo`, with less training than a person would see."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def demo(**environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "clients.command_line.main", "demo", "--iterations", "20"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=500,
    )


@pytest.mark.slow
def test_the_demo_shows_every_step_and_ends_with_zero(data_dir: Path) -> None:
    found = demo()
    assert found.returncode == 0, found.stdout + found.stderr
    for word in ("validation BPC", "largest difference to torch", "baseline", "ablated", "ΔBPC"):
        assert word in found.stdout + found.stderr
    for command in ("train", "export", "serve", "models", "generate", "ablate", "score"):
        assert f"$ torsor {command}" in found.stdout
    assert "characters/s" in found.stderr  # training progress
    assert "python-docs" not in found.stdout


@pytest.mark.slow
def test_the_demo_without_shakespeare_says_so_and_uses_pythons_documentation(
    tmp_path: Path,
) -> None:
    found = demo(TORSOR_DATA_DIR="", XDG_CACHE_HOME=str(tmp_path))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "python-docs" in found.stdout and "ΔBPC" in found.stdout
