"""The servers that bench_serving.py compares: how each is started, and what it costs.

Linux only: CPU seconds and resident memory are read from /proc, over a server and its children.
"""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PEERS = Path(__file__).parent / "peers"
START_S = 120.0
STOP_S = 20.0
TICKS = os.sysconf("SC_CLK_TCK")  # a second
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Kind:
    """A server that can be started: its command, with {port} and {grpc}, and its ready page."""

    name: str
    command: tuple[str, ...]
    ready: str
    needs: str  # the module without which it is skipped
    remedy: str = ""


@dataclass(slots=True)
class Server:
    """A server that runs."""

    kind: Kind
    process: "subprocess.Popen[bytes]"
    port: int
    grpc_port: int
    log: Path
    started: float
    ready_s: float = 0.0
    ready_cpu_s: float = 0.0

    def cpu_s(self) -> float:
        """CPU seconds of the server and its children so far."""
        return sum(map(cpu_seconds, self.pids()))

    def resident(self) -> int:
        """Resident bytes of the server and its children."""
        return sum(map(resident_bytes, self.pids()))

    def pids(self) -> list[int]:
        """The process and all below it."""
        return family(self.process.pid)

    def page(self, path: str, timeout: float = 60.0) -> str:
        """What a GET answers."""
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return str(answer.read().decode())


def bento(service: str) -> tuple[str, ...]:
    """BentoML's command for a service of the folder peers/."""
    where = ("--working-dir", str(PEERS), "--host", "127.0.0.1", "--port", "{port}")
    return ("-m", "bentoml", "serve", service, *where)


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "torsor",
            ("-m", "serve", "--port", "{port}", "--grpc-port", "{grpc}"),
            "/readyz",
            "bentoml",
        ),
        Kind("fastapi", (str(PEERS / "fastapi_peer.py"), "{port}"), "/ready", "torch"),
        Kind(
            "litserve",
            (str(PEERS / "litserve_peer.py"), "{port}"),
            "/health",
            "litserve",
            "pip install '.[bench]'",
        ),
        Kind("bentoml", bento("bentoml_peer:Writer"), "/readyz", "bentoml"),
        Kind("empty", bento("bentoml_empty:Empty"), "/readyz", "bentoml"),
    )
}


def missing(kind: Kind) -> str:
    """Why a server can't be started here, or nothing."""
    if importlib.util.find_spec(kind.needs) is not None:
        return ""
    return f"{kind.name}: {kind.needs} is not installed, left out; {kind.remedy}"


@contextlib.contextmanager
def running() -> Iterator[list[Server]]:
    """A list for servers; whatever is in it at the end is stopped."""
    servers: list[Server] = []
    try:
        yield servers
    finally:
        families = [server.pids() for server in servers]  # before children lose their parents
        tell(
            [server.process.pid for server in servers if server.process.poll() is None],
            signal.SIGTERM,
        )
        for server, pids in zip(servers, families, strict=True):
            end(server, pids)


@contextlib.contextmanager
def alone(server: Server, servers: Iterable[Server]) -> Iterator[None]:
    """The other servers stand still meanwhile: some look for work all the time."""
    others = [pid for other in servers if other is not server for pid in other.pids()]
    try:
        tell(others, signal.SIGSTOP)
        yield
    finally:
        tell(others, signal.SIGCONT)


def tell(pids: list[int], number: int) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def start(kind: Kind, folder: Path, device: str = "cpu", bundles: tuple[Path, ...] = ()) -> Server:
    """Start a server; `wait_ready` says when it can be used. Only ours takes bundles."""
    port, grpc_port = free_port(), free_port()
    home = folder / f"bentoml-{kind.name}"
    home.mkdir(exist_ok=True)
    environment = os.environ | {
        "BENTOML_HOME": str(home),
        "BENTOML_DO_NOT_TRACK": "True",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "TORSOR_BENCH_DEVICE": device,  # for the peers
    }
    command = [part.format(port=port, grpc=grpc_port) for part in kind.command]
    if kind.name == "torsor":
        command += ["--device", device, *map(str, bundles)]
    else:
        environment["TORSOR_NATIVE"] = "off"  # peers are what they are without us
    log = folder / f"{kind.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Server(kind, process, port, grpc_port, log, time.perf_counter())


def wait_ready(server: Server) -> None:
    """Until the ready page is there; `RuntimeError` with the log if it doesn't come."""
    while time.perf_counter() < server.started + START_S and server.process.poll() is None:
        with contextlib.suppress(OSError):
            server.page(server.kind.ready, 2.0)
            server.ready_s = time.perf_counter() - server.started
            server.ready_cpu_s = server.cpu_s()
            return
        time.sleep(0.02)
    log = server.log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"{server.kind.name}: not ready after {START_S} s\n{log}")


def end(server: Server, pids: list[int]) -> None:
    """Wait for a server that was told to end, and end what is left of it."""
    try:
        server.process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
    tell(pids[1:], signal.SIGKILL)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def family(pid: int) -> list[int]:
    """A process and all that it has started, in turn."""
    found = [pid]
    for member in found:
        found += children(member)
    return found


def children(pid: int) -> list[int]:
    """Processes that a process has started and that are still there."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0
