"""What several test files share."""

import functools
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import devices
import httpx
import httpx._transports.default as httpx_clients
import pytest
from device_code import DeviceCode, compile_host_form, load_host_form
from hypothesis import settings
from servers import free_port
from small_models import export_task, export_text, made_once

from serve.models import Models
from serve.native.library import load
from serve.runtime.bundle import load_bundles
from serve.runtime.device import Device
from serve.settings import SHIPPED

PROCESS_FIXTURES = {
    *("server", "keyed", "start_server", "exported", "exported_task", "wrong_library"),
}
PROCESS_MODULES = {"subprocess", "uvicorn", "train"}  # names that such tests import

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models want one thread
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    devices.add_option(parser)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts a server, a process or a training, or exports, which takes as long:
    `make quick` leaves it out."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        source = getattr(getattr(item, "module", None), "__dict__", {})
        exports = item.path.parent.name == "export"
        if exports or fixtures & PROCESS_FIXTURES or PROCESS_MODULES & source.keys():
            item.add_marker(pytest.mark.process)


def pytest_configure(config: pytest.Config) -> None:
    devices.check(config)
    if config.getoption("numprocesses", None):  # before the workers, or each would compile it
        load()
    # for every client httpx reads all certificates that there are anew: 20 ms, a thousand times
    httpx_clients.create_ssl_context = functools.cache(httpx.create_ssl_context)  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Device:
    """Where models run: --device."""
    return devices.chosen(request.config)


@pytest.fixture(scope="session")
def for_device(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """A bundle's folder; on CUDA a copy that has the form without a loop, for runs of 16 steps."""

    @functools.cache
    def prepare(folder: Path) -> Path:
        if device.kind == "cpu":
            return folder
        from where import unrolled_copy

        return unrolled_copy(folder, tmp_path_factory.mktemp("unrolled") / folder.name)

    return prepare


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the public data sets, where there is one."""
    if not (named := os.environ.get("TORSOR_DATA_DIR")):
        pytest.skip("needs the data sets: set TORSOR_DATA_DIR")
    return Path(named)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """A text of 3,600 characters over 14 symbols that small models learn fast."""
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat, and so did I" * 100, encoding="utf-8")
    return path


@dataclass(frozen=True)
class RunningServer:
    """A real `torsor serve` on loopback."""

    url: str
    grpc_address: str
    process: "subprocess.Popen[str]"
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def running_server(folder: Path, *arguments: str, device: str = "cpu") -> Iterator[RunningServer]:
    """Start `python -m serve` with these arguments, wait until it is ready, stop it at the end."""
    port, grpc_port = free_port(), free_port()
    where = ("--port", str(port), "--grpc-port", str(grpc_port), "--device", device)
    environment = {**os.environ, "BENTOML_HOME": str(folder / "bentoml"), "OMP_NUM_THREADS": "1"}
    environment.setdefault("TORSOR_DATA_FOLDER", str(folder / "data"))  # never the real home
    with (folder / "serve.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "serve", *arguments, *where],
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
    scheme = "https" if "--tls-cert" in arguments else "http"
    url, grpc_address = f"{scheme}://127.0.0.1:{port}", f"127.0.0.1:{grpc_port}"
    server = RunningServer(url, grpc_address, process, folder / "serve.log")
    try:
        wait_ready(server)
        yield server
    finally:
        if process.poll() is None:
            server.stop()


def wait_ready(server: RunningServer) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            trusting = ssl._create_unverified_context() if server.url[:5] == "https" else None
            with urllib.request.urlopen(server.url + "/readyz", timeout=1, context=trusting):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the server did not get ready: {server.log.read_text()}")


@pytest.fixture(scope="session")
def server(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The models that ship, served for all tests."""
    with running_server(tmp_path_factory.mktemp("server"), device=device.kind) as found:
        yield found


@pytest.fixture(scope="session")
def start_server(device: Device) -> Callable[..., AbstractContextManager[RunningServer]]:
    """Start a server of one's own: start_server(folder, *arguments)."""
    return functools.partial(running_server, device=device.kind)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a small `run` of a family and its `bundle`, made when it is first asked for.

    All tests share it: whoever changes a file takes a copy.
    """

    @functools.cache
    def export_small(family: str) -> Path:
        return made_once(tmp_path_factory, family, lambda folder: export_text(folder, family))

    return export_small


@pytest.fixture(scope="session")
def exported_task(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A folder with a small `run` of a family on a task and its `bundle`, made when asked for."""

    @functools.cache
    def export_small(family: str, task: str) -> Path:
        if task in ("mnist", "spoken-digits") and "TORSOR_DATA_DIR" not in os.environ:
            pytest.skip("needs the data sets: set TORSOR_DATA_DIR")
        name = f"{family}-{task}"
        return made_once(tmp_path_factory, name, lambda folder: export_task(folder, family, task))

    return export_small


@pytest.fixture(scope="session")
def keyed(
    device: Device,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[RunningServer, dict[str, str]]]:
    """A server that wants keys and logs JSON, and its keys by name."""
    from serve.gateway.keys import add_key

    folder = tmp_path_factory.mktemp("keyed")
    path = folder / "keys.toml"
    keys = {
        "free": add_key(path, "free"),
        "slow": add_key(path, "slow", requests_per_minute=2),
        "narrow": add_key(path, "narrow", max_concurrent=1),
    }
    shipped = str(Path(__file__).parent.parent / "serve" / "bundles" / "tanh-rnn-shakespeare")
    arguments = (shipped, "--keys", str(path), "--log-format", "json")
    with running_server(folder, *arguments, device=device.kind) as found:
        yield found, keys


@pytest.fixture(scope="session")
def device_code(tmp_path_factory: pytest.TempPathFactory) -> DeviceCode:
    """What the code of the CUDA kernels gives on the CPU."""

    def make(folder: Path) -> None:
        compile_host_form(folder / "host.so", "-shared", "-fPIC")

    return load_host_form(made_once(tmp_path_factory, "device-code", make) / "host.so")


@pytest.fixture(scope="module")
def host() -> Iterator[Models]:
    """The tanh-rnn that ships, served in this process."""
    host = Models(load_bundles([SHIPPED / "tanh-rnn-shakespeare"], "cpu", 1))
    host.start()
    yield host
    host.close()
