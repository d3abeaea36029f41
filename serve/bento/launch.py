"""Launch of BentoML's command line in this process, with the arguments and environment it takes."""

import argparse
import gc
import os
import runpy
import sys
from pathlib import Path
from typing import NoReturn

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
    """BentoML's own: no tracking, and a home a port, since a start wipes the home's metrics."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "torsor" / f"bentoml-{port}"
    if "BENTOML_HOME" not in os.environ:
        home.mkdir(parents=True, exist_ok=True)
    return {
        "BENTOML_HOME": os.environ.get("BENTOML_HOME", str(home)),
        "BENTOML_DO_NOT_TRACK": "True",
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),  # see serve.service
    }


def bento_arguments(options: argparse.Namespace) -> list[str]:
    """What BentoML's command line is told."""
    return [
        *("serve", "serve.service:Torsor"),
        *("--working-dir", str(ROOT)),
        *("--host", options.host, "--port", str(options.port)),
        *("--timeout-graceful-shutdown", str(FLUSH_S)),
        *(("--ssl-certfile", str(options.tls_cert.resolve())) if options.tls_cert else ()),
        *(("--ssl-keyfile", str(options.tls_key.resolve())) if options.tls_key else ()),
    ]


def require_http_tls(cert: str) -> None:
    """`ValueError` where gRPC would have TLS, and HTTP, which is BentoML's, would be plain."""
    if cert and "serve" in sys.argv and not any(a.startswith("--ssl-certfile") for a in sys.argv):
        raise ValueError(
            "TORSOR_TLS_CERT: found it without --ssl-certfile, so HTTP would be in plain text; add "
            "--ssl-certfile and --ssl-keyfile to bentoml serve, or use torsor serve"
        )
