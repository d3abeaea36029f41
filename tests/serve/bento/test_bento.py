"""The Bento: built, unpacked somewhere else, and served with nothing but its own requirements."""

import json
import os
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from servers import free_port

ROOT = Path(__file__).parent.parent.parent.parent


def build(folder: Path) -> Path:
    """`bentoml build` from the checkout; the folder of the Bento."""
    environment = {**os.environ, "BENTOML_HOME": str(folder), "BENTOML_DO_NOT_TRACK": "True"}
    found = subprocess.run(
        [sys.executable, "-m", "bentoml", "build", "--output", "tag"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    (bento,) = (path.parent for path in folder.glob("bentos/torsor/*/bento.yaml"))
    return bento


def needed(requirements: Iterable[str]) -> dict[str, Distribution]:
    """What is installed of these requirements and of all that they require, by name."""
    waiting = [(Requirement(line), "") for line in requirements]
    found, seen = dict[str, Distribution](), set[tuple[str, str]]()
    while waiting:
        asked, extra = waiting.pop()
        if asked.marker is not None and not asked.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(asked.name)
        found[name] = distribution(name)
        assert asked.specifier.contains(found[name].version, prereleases=True), str(asked)
        for wanted in {"", *asked.extras}:
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                lines = found[name].requires or []
                waiting += [(Requirement(line), wanted) for line in lines]
    return found


def environment_of(bento: Path, folder: Path) -> Path:
    """A virtual environment with what the Bento asks for and nothing else; its Python.

    The files of the very versions that are installed here: `make install` has had them from pip.
    """
    venv.create(folder)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    lines = (bento / "env" / "python" / "requirements.txt").read_text().splitlines()
    for installed in needed(line for line in lines if line).values():
        for file in installed.files or []:
            if ".." not in file.parts:  # a program, of bin/
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                (packages / file).symlink_to(Path(str(installed.locate_file(file))))
    return folder / "bin" / "python"


@pytest.mark.slow
def test_the_bento_serves_from_another_folder_with_its_own_requirements_alone(
    tmp_path: Path,
) -> None:
    bento = build(tmp_path / "home")
    packed = {path.relative_to(bento / "src").parts[0] for path in (bento / "src").rglob("*.py")}
    assert packed == {"serve"}
    python = environment_of(bento, tmp_path / "venv")
    lacks = (
        "import importlib.util as u; assert not any(map(u.find_spec, ('torch', 'onnx', 'train')))"
    )
    subprocess.run([python, "-c", lacks], check=True, cwd="/")
    port, grpc_port = free_port(), free_port()
    environment = {"PATH": os.environ["PATH"], "BENTOML_HOME": str(tmp_path / "served")}
    environment |= {"TORSOR_GRPC_PORT": str(grpc_port), "BENTOML_DO_NOT_TRACK": "True"}
    command = [str(python), "-m", "bentoml", "serve", str(bento), "--port", str(port)]
    log = (tmp_path / "serve.log").open("w")
    process = subprocess.Popen(command, cwd="/", env=environment, stdout=log, stderr=log)
    try:
        ask = {"prompt": "ROMEO:", "max_tokens": 20, "seed": 1}
        page = post(f"http://127.0.0.1:{port}/v1/completions", ask, tmp_path / "serve.log")
        assert len(page["choices"][0]["text"]) == 20
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
            assert b"Torsor" in answer.read()
    finally:
        process.terminate()
        assert process.wait(60) == 0
        log.close()


def post(url: str, body: dict[str, Any], log: Path) -> dict[str, Any]:
    """The answer, as soon as the server is up."""
    request = urllib.request.Request(url, json.dumps(body).encode())
    for _ in range(300):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                page: dict[str, Any] = json.load(answer)
                return page
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())
