"""Missing packages and hidden ones: said in one line, which names them and what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve.bento.launch import is_loopback
from serve.packages import SERVE

ROOT = Path(__file__).parent.parent.parent
BLOCK = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, Missing())
sys.argv = {argv}
"""


def run_without(names: list[str], argv: list[str], code: str) -> "subprocess.CompletedProcess[str]":
    program = BLOCK.format(names=names, argv=argv) + code
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)


WAYS = {
    "torsor serve": (
        ["torsor", "serve"],
        "import sys; from clients.command_line.main import main; sys.exit(main())",
    ),
    "python -m serve": (
        ["serve"],
        "import runpy; runpy.run_module('serve', run_name='__main__', alter_sys=True)",
    ),
    "bentoml serve": (["bentoml", "serve", "serve.service:Torsor"], "import serve.service"),
}


@pytest.mark.process
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("missing", [["grpc_health"], ["grpc_reflection", "httptools"], ["scipy"]])
def test_a_server_names_every_missing_package_and_its_extra(way: str, missing: list[str]) -> None:
    found = run_without(missing, *WAYS[way])
    are = "are" if len(missing) > 1 else "is"
    assert found.returncode == 1
    assert found.stderr.startswith("torsor serve needs the serve extra (")
    assert (
        f"({', '.join(missing)} {are} not installed): pip install 'torsor[serve]'" in found.stderr
    )
    assert found.stderr.count("\n") == 1


def test_every_package_that_a_server_imports_is_asked_for() -> None:
    """Those of the standard library and ours aside."""
    code = (
        "import sys; before = set(sys.modules); sys.argv = ['x']\n"
        "import serve.service, importlib.metadata as m\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    direct = set[str]()
    for path in (ROOT / "serve").rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if len(words) > 1 and words[0] in ("import", "from") and not line.startswith(" "):
                direct.add(words[1].partition(".")[0].rstrip(","))
    own = {"serve", *sys.stdlib_module_names}
    asked = {name.partition(".")[0] for name in SERVE}
    loaded = set(done.stdout.split())
    # What others bring, which nobody has without it
    brought = {"starlette", "uvicorn", "circus", "opentelemetry", "pydantic_core"}
    assert (direct & loaded) - own - brought <= asked


@pytest.mark.process
@pytest.mark.parametrize("name", ["serve.py", "train.py", "export.py"])
def test_a_file_that_hides_a_package_of_ours_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    command = "import sys; from clients.command_line.main import main; sys.exit(main())"
    found = subprocess.run(
        [sys.executable, "-c", command, name.removesuffix(".py"), "x"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    assert found.returncode == 1 and found.stderr.count("\n") == 1
    package = name.removesuffix(".py")
    assert f"{tmp_path / name} hides the package {package} of torsor; rename it" in found.stderr


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("lab.example", False),
    ],
)
def test_loopback_addresses_are_known(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "loud"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0"),
        (["--host=10.0.0.7"], "10.0.0.7"),
        ([], "0.0.0.0"),  # as BentoML's command line does where it is told nothing
        (["--host", "127.0.0.1"], None),
    ],
)
def test_a_start_without_keys_beyond_loopback_is_said_loudly(
    words: list[str], loud: str | None, tmp_path: Path
) -> None:
    code = (
        "import sys; from serve.bento.launch import warn_if_open\n"
        "warn_if_open('', '127.0.0.1'); warn_if_open('keys.toml', '0.0.0.0')"
    )
    argv = ["bentoml", "serve", "serve.service:Torsor", *words]
    program = f"import sys; sys.argv = {argv!r}\n{code}"
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "BENTOML_HOME": str(tmp_path)},
    )
    assert found.returncode == 0
    if loud is None:
        assert found.stderr == ""
    else:
        assert f"WARNING: listening on {loud} WITHOUT API KEYS" in found.stderr
        assert found.stderr.count("\n") == 1
