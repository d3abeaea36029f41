"""The whole line in one go: train a little, export, serve, stream, ablate. `torsor demo`.

Every step is a command that is shown before it runs. Nothing is downloaded and nothing stays: the
work happens in a temporary folder, the server on free ports.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

STARTUP_TIMEOUT_S = 120.0
SHAKESPEARE = "tinyshakespeare/input.txt"
ITERATIONS = 400  # about a minute
SCORED = 2000  # characters of the score query
PASSAGE = (  # ours, so that no model has seen it
    "KEEPER:\nThe river keeps no memory of stone,\nAnd yet it bends where every stone has been.\n"
)
IDENTITY = {"name": "no-mixing", "edits": [{"target": "mixing", "op": "identity"}]}
NO_CC = {
    "name": "no-CC",
    "edits": [{"target": "recurrent", "op": "schur", "alpha": 0.9, "zero": ["CC"]}],
}


class StepFailed(Exception):
    """A command of the demo ended with an error."""


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="torsor demo",
        description="Train a little, export, serve, stream, ablate.",
    )
    told = f"of training (default: {ITERATIONS})"
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help=told)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="torsor-demo-") as folder:
        try:
            run_demo(Path(folder), options.iterations)
        except (StepFailed, OSError) as error:
            print(f"torsor demo: {error}", file=sys.stderr)
            return 1
    return 0


def run_demo(folder: Path, iterations: int) -> None:
    """All steps, in a folder of their own."""
    data = choose_data()
    heading("Train a small OSM-RNN: its state is a rotation, H in SO(16)")
    length = ("--iterations", str(iterations), "--valid-every", str(max(1, iterations // 2)))
    torsor("train", "osm-rnn", "--data", data, "--d", "16", *length, "--out", str(folder / "run"))
    heading("Export it to ONNX; torch, the reference evaluator and the runtime must agree")
    torsor("export", str(folder / "run"), "--out", str(folder / "demo"))
    heading("Serve it beside the models that ship")
    shipped = sorted(path.parent for path in bundles_folder().glob("*/manifest.json"))
    with Server([folder / "demo", *shipped], folder) as server:
        query(server, folder, data, shipped)
    heading("Done. Next: README.md, or `torsor serve` and http://127.0.0.1:3000")


def query(server: "Server", folder: Path, data: str, shipped: list[Path]) -> None:
    """Ask the running server."""
    torsor("models", "--url", server.url)
    heading("Stream text from the model you have just trained, over HTTP and over gRPC")
    options = ("--model", "demo", "--max-tokens", "160", "--seed", "7", "--temperature", "0.7")
    torsor("generate", "The ", *options, "--url", server.url)
    print()
    torsor("generate", "The ", *options, "--grpc", "--url", server.grpc_address)
    print()
    heading("What does it write without its mixing? Same random numbers, side by side")
    ask = ("--ablation", json.dumps(IDENTITY), "--url", server.url)
    torsor("ablate", "The ", *options, *ask)
    heading("And what does that cost, in bits per character of real text?")
    text = folder / "text.txt"
    text.write_text(real_text(data)[:SCORED])
    torsor("score", str(text), "--model", "demo", *ask)
    if any(path.name == "tanh-rnn-shakespeare" for path in shipped):
        heading("A model that ships, without the couplings inside its complement sector (Schur)")
        text.write_text(PASSAGE)
        model = ("--model", "tanh-rnn-shakespeare", "--url", server.url)
        torsor("generate", "ROMEO:", "--max-tokens", "160", "--seed", "7", *model)
        print()
        torsor("score", str(text), "--ablation", json.dumps(NO_CC), *model)


def choose_data() -> str:
    """Tiny Shakespeare where it lies on disk, else Python's own documentation."""
    if any(path.is_file() for path in shakespeare_places()):
        return "shakespeare"
    print(
        "Tiny Shakespeare isn't on this machine (TORSOR_DATA_DIR), so the demo trains on "
        "python-docs, the language reference that Python carries.",
        flush=True,
    )
    return "python-docs"


def shakespeare_places() -> list[Path]:
    """Where Tiny Shakespeare may lie."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torsor"
    named = os.environ.get("TORSOR_DATA_DIR")
    return [folder / SHAKESPEARE for folder in ([Path(named)] if named else []) + [cache]]


def real_text(data: str) -> str:
    """The end of the training text, which the model has not seen."""
    if data == "shakespeare":
        path = next(path for path in shakespeare_places() if path.is_file())
        return path.read_text()[-SCORED:]
    from pydoc_data.topics import topics

    return "\n\n".join(topics[key] for key in sorted(topics))[-SCORED:]


def bundles_folder() -> Path:
    """Where the shipped bundles lie, in the checkout."""
    return Path(__file__).parent.parent.parent / "serve" / "bundles"


def torsor(*arguments: str) -> None:
    """Show a command, run it, and stop the demo if it fails."""
    show(arguments)
    if subprocess.run([*command(), *arguments], check=False).returncode != 0:
        raise StepFailed(f"`torsor {arguments[0]}` failed; its message stands above")


def command() -> list[str]:
    """The `torsor` of this very environment."""
    return [sys.executable, "-m", "clients.command_line.main"]


def show(arguments: tuple[str, ...]) -> None:
    """Print a command as one would type it."""
    words = (f"'{word}'" if set(word) & set(' {"') else word for word in arguments)
    print("$ torsor " + " ".join(words), flush=True)


def heading(text: str) -> None:
    """Say what comes next."""
    print(f"\n== {text}", flush=True)


class Server:
    """`torsor serve` on free ports, from ready to stopped."""

    def __init__(self, bundles: list[Path], folder: Path) -> None:
        self._bundles, self._log = bundles, folder / "serve.gateway.log"
        self._port, self._grpc_port = free_ports()
        self.url = f"http://127.0.0.1:{self._port}"
        self.grpc_address = f"127.0.0.1:{self._grpc_port}"

    def __enter__(self) -> "Server":
        ports = ("--port", str(self._port), "--grpc-port", str(self._grpc_port))
        arguments = ("serve", *(str(path) for path in self._bundles), *ports)
        show(arguments)
        environment = {**os.environ, "BENTOML_HOME": str(self._log.parent / "bentoml")}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command(), *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        try:
            self._wait_ready()
        except StepFailed:
            self._process.kill()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        if (code := self._process.wait(60)) != 0 and reason[0] is None:
            raise StepFailed(f"the server ended with exit code {code}: {self._log.read_text()}")

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + STARTUP_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(self.url + "/readyz", timeout=1):
                    return
            except OSError:
                time.sleep(0.2)
        raise StepFailed(f"the server did not get ready: {self._log.read_text()}")


def free_ports() -> tuple[int, int]:
    """Two ports that nobody listens on."""
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
