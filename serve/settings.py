"""Settings of a server: `torsor serve` passes them on to the process that BentoML starts.

Every setting is an environment variable, TORSOR_ and its name in capitals, so
`bentoml serve serve.service:Torsor` can be set up too.
"""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

DEVICES = ("auto", "cpu", "cuda")
LOG_FORMATS = ("text", "json")
UNKNOWN = ("error", "skip", "replace")
ORIGIN = re.compile(r"https?://[^/\s?#@]+")
OTHERS = {  # variables of ours that other parts read
    *("TORSOR_NATIVE", "TORSOR_DATA_DIR"),
    *("TORSOR_URL", "TORSOR_GRPC_URL", "TORSOR_API_KEY"),
    *("TORSOR_RECORD", "TORSOR_TEST_TEXTS", "TORSOR_BENCH_DEVICE", "TORSOR_BENCH_MODEL"),
}
RANGES = {
    "threads": (0, 1024),
    "grpc_port": (0, 65535),
    "max_streams": (1, 65536),
    "max_waiting": (1, 1_000_000),
    "queue_timeout_s": (0, 86400),
    "first_timeout_s": (0, 86400),
    "total_timeout_s": (0, 86400),
    "grace_s": (0, 86400),
    "state_cache_mb": (0, 1 << 20),
    "ablation_cache_mb": (0, 1 << 20),
}
SHIPPED = Path(__file__).parent / "bundles"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A server's settings; `bundles` are folders, joined by the path separator."""

    bundles: str = ""  # empty: the ones that ship
    device: str = "auto"
    threads: int = 0  # of one run on the CPU; 0: at most 4, and one core is left to the event loop
    grpc_host: str = "127.0.0.1"
    grpc_port: int = 3001  # 0: no gRPC
    max_streams: int = 256
    max_waiting: int = 1024
    queue_timeout_s: float = 30.0
    first_timeout_s: float = 180.0  # a million characters of prompt at 5,600 a second
    total_timeout_s: float = 600.0
    grace_s: float = 20.0  # for running streams after SIGTERM
    state_cache_mb: int = 64  # of states after the beginnings of prompts; 0: none is kept
    ablation_cache_mb: int = 256  # of sessions of ablated models, of all models together; 0: none
    state_key: str = ""  # file with the key that saved states are signed with; empty: our own
    keys: str = ""  # file of API keys (serve/gateway/keys.py); empty: everybody may ask
    tls_cert: str = ""  # PEM files; for gRPC and HTTP
    tls_key: str = ""
    data_folder: str = ""  # of sweeps (serve/sweeps/folder.py); empty: in the user's data home
    log_format: str = "text"
    cors: str = ""  # origins of web pages that may call, with spaces between; "*": all
    bundles_root: str = ""  # that folders to load are relative to; empty: the working folder
    unknown: str = "error"  # what requests do with unknown characters where they don't say

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"device: found {self.device!r}, expected {', '.join(DEVICES)}")
        if self.log_format not in LOG_FORMATS:
            found, expected = self.log_format, ", ".join(LOG_FORMATS)
            raise ValueError(f"log_format: found {found!r}, expected {expected}")
        if self.unknown not in UNKNOWN:
            raise ValueError(f"unknown: found {self.unknown!r}, expected {', '.join(UNKNOWN)}")
        for origin in self.origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                expected = "https://HOST, http://HOST:PORT or *, without a path"
                raise ValueError(f"cors: found {origin!r:.80}, expected {expected}")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls: found one of tls_cert and tls_key, expected both or none")
        for name, (least, most) in RANGES.items():
            if not least <= (found := getattr(self, name)) <= most:
                raise ValueError(f"{name}: found {found}, expected {least} to {most}")

    @property
    def folders(self) -> list[Path]:
        """The bundle folders to serve."""
        if self.bundles:
            return [Path(folder) for folder in self.bundles.split(os.pathsep)]
        return sorted(path.parent for path in SHIPPED.glob("*/manifest.json"))

    @property
    def origins(self) -> list[str]:
        """The origins that web pages may call from."""
        return self.cors.split()


def read_settings() -> Settings:
    """The settings that the environment holds; `ValueError` names a variable that isn't right."""
    require_known(os.environ)
    values: dict[str, Any] = {}
    for field in fields(Settings):
        kind: Any = type(field.default)  # str, int or float
        text = os.environ.get(variable(field.name))
        if text is None or is_injected(variable(field.name), text):
            continue
        try:
            values[field.name] = kind(text)
        except ValueError:
            name = variable(field.name)
            raise ValueError(f"{name}: found {text!r}, expected {kind.__name__}") from None
    return Settings(**values)


def environment_of(settings: Settings) -> dict[str, str]:
    """The environment variables that say these settings."""
    return {variable(f.name): str(getattr(settings, f.name)) for f in fields(Settings)}


def require_known(environment: Mapping[str, str]) -> None:
    """`ValueError` names a variable of ours that nothing here reads, and one that is meant."""
    known = {variable(field.name) for field in fields(Settings)} | OTHERS
    for name, value in environment.items():
        if name.startswith("TORSOR_") and name not in known and not is_injected(name, value):
            tails = [one.removeprefix("TORSOR_") for one in sorted(known)]
            near = difflib.get_close_matches(name.removeprefix("TORSOR_"), tails, 1)
            meant = (
                f"did you mean TORSOR_{near[0]}?"
                if near
                else f"known are {', '.join(sorted(known))}"
            )
            raise ValueError(f"{name}: found this variable, which nothing here reads; {meant}")


def is_injected(name: str, value: str) -> bool:
    """Whether Kubernetes made a variable, for a service that is called torsor or torsor-..."""
    if re.fullmatch(r"TORSOR_(\w+_)?SERVICE_(HOST|PORT(_\w+)?)", name):
        return True
    is_port = re.fullmatch(r"TORSOR_(\w+_)?PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?", name)
    return is_port is not None and (name.count("_PORT_") > 0 or "://" in value)


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"TORSOR_{name.upper()}"
