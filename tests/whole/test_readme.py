"""The README's code blocks, run as they stand against the models that ship."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
HTTP, GRPC = "http://127.0.0.1:3000", "127.0.0.1:3001"  # what the README's server listens on


def test_the_readme_has_code() -> None:
    assert {language for language, _ in BLOCKS} == {"bash", "python"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "code"), BLOCKS, ids=[f"block-{i}" for i in range(len(BLOCKS))]
)
def test_a_block_runs(server: Any, tmp_path: Path, language: str, code: str) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TORSOR_URL": server.url,
        "TORSOR_GRPC_URL": server.grpc_address,
    }
    code = code.replace(HTTP, server.url).replace(GRPC, server.grpc_address)
    command = ["bash", "-euc", code] if language == "bash" else [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip()


def test_every_command_of_the_readme_exists() -> None:
    targets = re.findall(r"`?make ([a-z]+)", README)
    makefile = (ROOT / "Makefile").read_text()
    assert {"demo", "test"} <= set(targets)
    assert all(f"\n{target}:" in makefile for target in targets)
