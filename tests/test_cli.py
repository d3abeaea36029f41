"""The command line, with a client that answers from memory; subprocesses where imports matter."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from clients import commands
from clients.cli import main
from clients.errors import ServerError
from tests.fake_client import EDITS, FakeClient


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    client = FakeClient()
    monkeypatch.setattr(commands, "open_client", lambda url, over_grpc: client)
    return client


Capture = pytest.CaptureFixture[str]


def test_generate_prints_the_text_and_nothing_else(fake: FakeClient, capsys: Capture) -> None:
    assert main(["generate", "x", "--stop", "a", "--stop", "b", "--top-k", "5"]) == 0
    assert capsys.readouterr() == ("ROMEO:\né", "seed 7\n")
    assert fake.asked == [(("x",), {"max_tokens": 200, "stop": ["a", "b"], "top_k": 5})]


def test_generate_notes_what_was_removed(fake: FakeClient, capsys: Capture) -> None:
    assert main(["generate", "--seed", "7", "--ablation", json.dumps(EDITS)]) == 0
    assert capsys.readouterr() == (
        "ROMEO:\né",
        "removed recurrent zero: mass 1.0000; all of it\n",
    )
    assert fake.asked[0][1] == {"max_tokens": 200, "seed": 7, "ablation": EDITS}


def test_generate_json_is_one_object(fake: FakeClient, capsys: Capture) -> None:
    assert main(["generate", "x", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["choices"][0]["text"] == "é" and page["usage"]["total_tokens"] == 3


def test_an_error_is_one_line_and_code_1(fake: FakeClient, capsys: Capture) -> None:
    fake.error = ServerError("timeout", "total: found 60 s, expected less: ask for less")
    assert main(["generate", "--seed", "1"]) == 1
    found = capsys.readouterr()
    assert found.err == "torsor generate: total: found 60 s, expected less: ask for less\n"
    assert found.out == "ROMEO:\né"


def test_ctrl_c_is_code_130(fake: FakeClient) -> None:
    fake.error = KeyboardInterrupt()
    assert main(["generate"]) == 130


def test_an_ablation_comes_from_text_or_file(
    fake: FakeClient, capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "no-recurrence.json"
    path.write_text(json.dumps(EDITS))
    for source in (str(path), f"  {json.dumps(EDITS)}"):
        assert main(["ablate", "x", "--ablation", source]) == 0
    assert [asked[0] for asked in fake.asked] == [("x", EDITS)] * 2
    assert "first difference  character 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('{"edits": [}', "--ablation: found invalid JSON: Expecting value: line 1 column 12"),
        ("[]", "--ablation: found [], expected an object"),
        ("nowhere.json", "--ablation: expected JSON or its file, found 'nowhere.json'"),
    ],
)
def test_a_bad_ablation_is_explained(
    fake: FakeClient, capsys: Capture, source: str, words: str
) -> None:
    for command in (["generate"], ["ablate"], ["score", "-"]):
        assert main([*command, "--ablation", source]) == 1
        assert f"torsor {command[0]}: {words}" in capsys.readouterr().err
    assert not fake.asked


def test_a_bad_ablation_file_is_named(fake: FakeClient, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"\xff")
    assert main(["generate", "--ablation", str(path)]) == 1
    assert f"{path}: found bytes that are not UTF-8" in capsys.readouterr().err


def test_ablate_json_holds_both_texts(fake: FakeClient, capsys: Capture) -> None:
    assert main(["ablate", "x", "--ablation", json.dumps(EDITS), "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert (page["baseline"]["text"], page["ablated"]["text"], page["seed"]) == ("ab", "ax", 7)


def test_score_takes_a_file_as_it_is(fake: FakeClient, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("é\r\nabc".encode())
    assert main(["score", str(path), "--limit", "4", "--unknown", "skip"]) == 0
    assert fake.asked == [(("é\r\na", None), {"unknown": "skip"})]
    assert capsys.readouterr().out == "model       osm\ncharacters  4\nBPC         2.0000\n"


def test_score_reads_stdin_and_compares(
    fake: FakeClient, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab")))
    assert main(["score", "-", "--ablation", json.dumps(EDITS)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:] == [
        "ablated BPC  2.5000",
        "ΔBPC         +0.5000",
        "mean KL      0.2500 bits",
        "removed      recurrent zero: mass 1.0000; all of it",
    ]


def test_models_and_structure_are_tables_or_json(fake: FakeClient, capsys: Capture) -> None:
    assert main(["models"]) == 0 and main(["structure", "--model", "osm"]) == 0
    out = capsys.readouterr().out
    assert "77,000" in out and "2.125" in out and "1×65" in out
    assert main(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["id"] == "osm"
    assert main(["structure", "--json"]) == 0
    targets = json.loads(capsys.readouterr().out)["targets"]
    assert targets[0]["spectrum"]["eigenvalues"] == [[1.5, 0.0]]


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


@pytest.mark.parametrize("words", [["--help"], ["generate", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = """
import sys
from clients.cli import main
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
    code += "from clients.cli import main; sys.exit(main(sys.argv[1:]))"
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
from clients import commands
from clients.cli import main
from clients.results import Chunk

class Client:
    def generate(self, prompt, **options):
        while True:
            yield Chunk(text="abc")

@contextmanager
def open_client(url, over_grpc):
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
