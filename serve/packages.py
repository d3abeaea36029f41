"""Packages that a server needs: whether they are installed, and which extra brings them.

Standard library only: it is asked before anything else is imported.
"""

import importlib.util
import sys

SERVE = (  # what the extra `serve` brings, by the names that are imported
    *("bentoml", "google.protobuf", "grpc", "grpc_health", "grpc_reflection", "httptools", "numpy"),
    *("onnxruntime", "prometheus_client", "pydantic", "safetensors", "scipy"),
    *(("uvloop",) if sys.platform != "win32" else ()),
)


def require_packages() -> None:
    """End with a line that names every missing package and the extra, if one is missing."""
    if missing := [name for name in SERVE if not _is_installed(name)]:
        names, are = ", ".join(missing), "are" if len(missing) > 1 else "is"
        sys.exit(
            f"torsor serve needs the serve extra ({names} {are} not installed): pip install "
            "'torsor[serve]' (from a checkout: pip install -e '.[serve]')"
        )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that the name stands in
        return False
