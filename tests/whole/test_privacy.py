"""No process of ours resolves a name, connects to anybody, or keeps an identifier of the device."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from serve.settings import SHIPPED

ROOT = Path(__file__).parent.parent.parent
STRACE = shutil.which("strace")
LOOPBACK = re.compile(r'inet_addr\("127\.|inet_pton\(AF_INET6, "(::1|::ffff:127\.)')
PLACES = re.compile(r"sa_family=AF_INET6?,")
IMPORTERS = ("import onnxruntime", "from onnxruntime")

SESSION = "from serve.runtime.bundle import Bundle; from serve.runtime.device import Device; "
SESSION += f"from pathlib import Path; Bundle(Path({str(SHIPPED / 'tanh-rnn-shakespeare')!r}), "
SESSION += "Device('cpu', 1))"


def can_trace() -> bool:
    if STRACE is None:
        return False
    command = [STRACE, "-f", "-e", "trace=connect", "-o", os.devnull, "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


traced = pytest.mark.skipif(not can_trace(), reason="needs strace, and leave to trace processes")


def connections(folder: Path, *commands: list[str]) -> list[str]:
    """Who was connected to by commands, one after the other, beside loopback; and what was kept."""
    home = folder / "home"
    home.mkdir()
    own = {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "BENTOML_HOME": str(home / "b"),
    }
    environment = {**os.environ, **own, "TORSOR_NATIVE": "off"}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    log = folder / "strace.log"
    for command in commands:
        assert STRACE is not None
        trace = [STRACE, "-f", "-qq", "-A", "-e", "trace=connect,sendto", "-o", str(log)]
        subprocess.run([*trace, *command], env=environment, cwd=ROOT, check=True, timeout=300)
    lines = log.read_text(errors="replace").splitlines()
    found = [line for line in lines if PLACES.search(line) and not LOOPBACK.search(line)]
    return found + [str(path) for path in home.rglob("*") if "deviceid" in path.name]


@traced
@pytest.mark.slow
def test_training_exporting_and_checking_talk_to_nobody(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be " * 500)
    run, bundle = str(tmp_path / "run"), str(tmp_path / "bundle")
    small = ("--n", "8", "--window", "16", "--iterations", "2", "--quiet")
    data = ("--data", str(tmp_path / "text.txt"), "--out", run)
    torsor = [sys.executable, "-m"]
    found = connections(
        tmp_path,
        [*torsor, "train", "tanh-rnn", *small, *data],
        [*torsor, "export", run, "--out", bundle, "--quiet"],
        [*torsor, "export", "--check", bundle, "--quiet"],
        [sys.executable, "-c", SESSION],
    )
    assert found == []


@traced
@pytest.mark.slow
def test_a_server_and_its_clients_talk_to_nobody_else(tmp_path: Path) -> None:
    code = f"""
import subprocess, sys, time, urllib.request
from pathlib import Path
sys.path.insert(0, {str(ROOT / "tests" / "bench")!r})
from servers import free_port
ports = free_port(), free_port()
words = ["--port", str(ports[0]), "--grpc-port", str(ports[1]), "--data-folder", {str(tmp_path)!r}]
server = subprocess.Popen([sys.executable, "-m", "serve", *words])
url = f"http://127.0.0.1:{{ports[0]}}"
for _ in range(600):
    try:
        urllib.request.urlopen(url + "/readyz", timeout=1)
        break
    except OSError:
        time.sleep(0.1)
ask = [sys.executable, "-c", "import sys; from clients.command_line.main import main; main()"]
for where in (["--url", url], ["--grpc", "--url", f"127.0.0.1:{{ports[1]}}"]):
    subprocess.run([*ask, "generate", "ROMEO:", "--max-tokens", "5", *where], check=True)
server.terminate()
sys.exit(server.wait(60))
"""
    assert connections(tmp_path, [sys.executable, "-c", code]) == []


def test_the_runtime_is_taken_where_its_telemetry_is_off() -> None:
    for room in ("train", "export", "serve", "clients"):
        for path in sorted((ROOT / room).rglob("*.py")):
            lines = path.read_text(encoding="utf-8").splitlines()
            if path != ROOT / "serve" / "native" / "onnx_runtime.py":
                assert not any(line.strip().startswith(IMPORTERS) for line in lines), path
