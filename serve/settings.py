"""Settings of a server: `torsor serve` passes them on to the process that BentoML starts.

Every setting is an environment variable, TORSOR_ and its name in capitals, so
`bentoml serve serve.service:Torsor` can be set up too.
"""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

DEVICES = ("auto", "cpu", "cuda")
LOG_FORMATS = ("text", "json")
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
    tls_cert: str = ""  # PEM files; for gRPC, and for HTTP where `torsor serve` starts BentoML
    tls_key: str = ""
    data_folder: str = ""  # of sweeps (serve/sweeps/folder.py); empty: in the user's data home
    log_format: str = "text"

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"device: found {self.device!r}, expected {', '.join(DEVICES)}")
        if self.log_format not in LOG_FORMATS:
            found, expected = self.log_format, ", ".join(LOG_FORMATS)
            raise ValueError(f"log_format: found {found!r}, expected {expected}")
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
    def num_threads(self) -> int:
        """Threads of one run on the CPU."""
        return self.threads or max(1, min(4, available_cores() - 1))


def read_settings() -> Settings:
    """The settings that the environment holds; `ValueError` names a variable that isn't right."""
    values: dict[str, Any] = {}
    for field in fields(Settings):
        kind: Any = type(field.default)  # str, int or float
        text = os.environ.get(variable(field.name))
        if text is None:
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


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"TORSOR_{name.upper()}"
