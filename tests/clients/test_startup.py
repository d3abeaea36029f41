"""What the command line loads, hands over and says before it asks anything."""

import subprocess
import sys

import pytest

from clients.command_line.main import main

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("over_grpc", [False, True])
def test_a_missing_server_is_explained(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, over_grpc: bool
) -> None:
    monkeypatch.setenv("TORSOR_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("TORSOR_GRPC_URL", "127.0.0.1:1")
    assert main(["generate", "x", *(["--grpc"] if over_grpc else [])]) == 1
    found = capsys.readouterr()
    address = "127.0.0.1:1" if over_grpc else "http://127.0.0.1:1"
    assert found.err.startswith(f"torsor generate: cannot connect to {address} ")
    assert found.err.endswith("Start it with: torsor serve\n") and not found.out


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["write"],
        ["generate", "x", "y"],
        ["generate", "--max-tokens", "many"],
        ["ablate"],
        ["ablate", "x", "--ablation", "{}", "--edit", "{}"],
        ["trials", "--resamples", "many"],
        ["score"],
        ["score", "-", "--limit", "0"],
    ],
)
def test_wrong_usage_is_code_2(words: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2 and "usage: torsor" in capsys.readouterr().err


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("words", [["--help"], ["generate", "--help"], ["trials", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = """
import sys
from clients.command_line.main import main
try:
    main(sys.argv[1:])
finally:
    heavy = {"torch", "onnx", "onnxruntime", "numpy", "grpc", "google", "httpx", "pydantic"}
    print("heavy:", sorted(heavy & set(sys.modules)))
"""
    done = run(code, *words)
    assert done.returncode == 0 and "usage: torsor" in done.stdout, done.stderr
    assert done.stdout.endswith("heavy: []\n")


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("torch", ["train", "--help"], "train"),
        ("httpx", ["models"], "client"),
        ("grpc", ["models", "--grpc"], "client"),
        ("pydantic", ["generate"], "client"),
    ],
)
def test_a_missing_package_names_its_extra(package: str, command: list[str], extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None\n"
    code += "from clients.command_line.main import main; sys.exit(main(sys.argv[1:]))"
    done = run(code, *command)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr == (
        f"torsor {command[0]} needs the {extra} extra ({package} is not installed): "
        f"pip install 'torsor[{extra}]' (from a checkout: pip install -e '.[{extra}]')\n"
    )


def test_a_room_gets_the_rest_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Room:
        @staticmethod
        def main(words: list[str]) -> int:
            assert words == ["--help", "--url", "x"]
            return 3

    monkeypatch.setitem(sys.modules, "serve.__main__", Room)
    assert main(["serve", "--help", "--url", "x"]) == 3


def test_a_reader_that_leaves_is_no_error() -> None:
    code = """
import sys
from contextlib import contextmanager
from clients.command_line import commands
from clients.command_line.main import main
from clients.results import Chunk

class Client:
    def generate(self, prompt, **options):
        while True:
            yield Chunk(text="abc")

@contextmanager
def open_client(url, over_grpc, ca):
    yield Client()

commands.open_client = open_client
sys.exit(main(["generate"]))
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(5) == b"abcab"
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == b""


def test_help_names_the_addresses_that_the_clients_use(capsys: Capture) -> None:
    from clients.grpc_client import DEFAULT_TARGET
    from clients.http_client import DEFAULT_URL

    with pytest.raises(SystemExit):
        main(["models", "--help"])
    out = capsys.readouterr().out
    assert DEFAULT_URL in out and DEFAULT_TARGET in out
