"""Launch of BentoML's command line in this process, with the arguments and environment it takes."""

import argparse
import gc
import ipaddress
import itertools
import os
import runpy
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from serve.native.connections import backlog
from serve.runtime.device import Device

ROOT = Path(__file__).parent.parent.parent
INTERRUPTED = 130  # the exit code of who was stopped by Ctrl-C
FLUSH_S = 10  # after the grace time, for clients that still read what was sent


def become_server(device: Device, arguments: list[str]) -> NoReturn:
    """Run BentoML's command line, here: in a new process, all would be imported once more.

    On CUDA in a new one, since what the checks have taken of the GPU would stay with this one.
    """
    if device.kind == "cuda":
        os.execv(sys.executable, [sys.executable, "-m", "bentoml", *arguments])
    sys.argv = ["bentoml", *arguments]
    gc.disable()  # until serve.service is there
    try:
        runpy.run_module("bentoml", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # before BentoML listens to it
        sys.exit(INTERRUPTED)
    raise AssertionError("BentoML's command line exits")


def bento_environment(port: int) -> dict[str, str]:
    """BentoML's own: no tracking, a home a port, and one thread for a decomposition."""
    return {
        "BENTOML_HOME": os.environ.get("BENTOML_HOME") or str(_bento_home(port)),
        "BENTOML_DO_NOT_TRACK": "True",
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),  # see serve.service
    }


def _bento_home(port: int) -> Path:
    """A folder that BentoML can write; `OSError` where there is none. It keeps nothing of ours."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for place in (cache / "torsor", Path(tempfile.gettempdir()) / f"torsor-{os.getuid()}"):
        home = place / f"bentoml-{port}"
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            if os.access(home, os.W_OK | os.X_OK):
                return home
    raise OSError(
        f"BENTOML_HOME: found neither {cache} nor {tempfile.gettempdir()} writable, expected a "
        "folder for BentoML; set BENTOML_HOME to one that is"
    )


def bento_arguments(options: argparse.Namespace) -> list[str]:
    """What BentoML's command line is told."""
    return [
        *("serve", "serve.service:Torsor"),
        *("--working-dir", str(ROOT)),
        *("--host", options.host, "--port", str(options.port)),
        *("--timeout-graceful-shutdown", str(FLUSH_S), "--backlog", str(backlog())),
        *(("--ssl-certfile", str(options.tls_cert.resolve())) if options.tls_cert else ()),
        *(("--ssl-keyfile", str(options.tls_key.resolve())) if options.tls_key else ()),
    ]


def warn_if_open(keys: str, grpc_host: str) -> None:
    """Say loudly that there are no keys, where others than this machine's own can ask."""
    hosts = [host for host in dict.fromkeys((http_host(), grpc_host)) if not is_loopback(host)]
    if "serve" in sys.argv and hosts and not keys:
        print(
            f"torsor serve: WARNING: listening on {' and '.join(hosts)} WITHOUT API KEYS: "
            "everybody who reaches this machine may ask; name a file of keys (--keys, "
            "TORSOR_KEYS), or listen on 127.0.0.1",
            file=sys.stderr,
            flush=True,
        )


def http_host() -> str:
    """Where BentoML's command line, in whose process this is, listens for HTTP."""
    from bentoml._internal.configuration.containers import BentoMLContainer

    for word, value in itertools.pairwise([*sys.argv, ""]):
        if word == "--host":
            return value
        if word.startswith("--host="):
            return word.removeprefix("--host=")
    return os.environ.get("BENTOML_HOST") or str(BentoMLContainer.http.host.get())


def is_loopback(host: str) -> bool:
    """Whether an address or name means this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_http_tls(cert: str) -> None:
    """`ValueError` where gRPC would have TLS, and HTTP, which is BentoML's, would be plain."""
    if cert and "serve" in sys.argv and not any(a.startswith("--ssl-certfile") for a in sys.argv):
        raise ValueError(
            "TORSOR_TLS_CERT: found it without --ssl-certfile, so HTTP would be in plain text; add "
            "--ssl-certfile and --ssl-keyfile to bentoml serve, or use torsor serve"
        )
