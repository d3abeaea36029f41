"""A stream's state as a signed blob: whoever holds it can go on where the stream ended.

    blob = base64url( HMAC-SHA256(key, content) ‖ content )       content: a safetensors file

The content's metadata say what the state belongs to:

| name       | meaning                                                                     |
|------------|-----------------------------------------------------------------------------|
| `format`   | of this blob: "torsor-state-1"                                              |
| `model`    | its name                                                                    |
| `graph`    | SHA-256 of model.onnx                                                       |
| `weights`  | SHA-256 of weights.safetensors                                              |
| `ablation` | hash of the ablation, empty for the plain model                             |
| `position` | characters taken since the initial state; also the place in the uniforms    |
| `seed`     | of the stream that ended here                                               |

Every replica that has the key and the same bundle goes on with the very bits that one server would
have: a run is a function of state, position, seed and characters. States are numbers only; nothing
in a blob is ever executed.
"""

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from serve.manifest.page import GRAPH_FILE, WEIGHTS_FILE, Manifest
from serve.wire.errors import invalid
from serve.wire.limits import MAX_SEED

Rows = dict[str, NDArray[Any]]
log = logging.getLogger("torsor")

FORMAT = "torsor-state-1"
KEY_BYTES = 32
MAX_POSITION = 2**53
MAX_ORTHOGONALITY_ERROR = 1e-3


@dataclass(frozen=True, slots=True)
class SavedState:
    """The checked content of a blob."""

    rows: Rows
    position: int
    seed: int


def encode_state(
    manifest: Manifest, ablation: str, position: int, seed: int, rows: Rows, key: bytes
) -> str:
    """The blob of a state that a stream has ended in."""
    about = _belongs(manifest, ablation) | {"position": str(position), "seed": str(seed)}
    content = save({name: np.ascontiguousarray(value) for name, value in rows.items()}, about)
    return base64.urlsafe_b64encode(_sign(key, content) + content).decode()


def decode_state(blob: str, manifest: Manifest, ablation: str, key: bytes) -> SavedState:
    """The state in a blob, for this model under this ablation.

    Raises `RequestError` where the blob is damaged, was signed with another key, belongs to another
    model, other weights or another ablation, or holds what no stream can be in.
    """
    content = _verified(blob, key)
    try:
        rows = dict(load(content))
        about = _metadata(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise invalid("state", f"holds no safetensors ({error}); save it again") from None
    for name, expected in _belongs(manifest, ablation).items():
        if (found := about.get(name)) != expected:
            raise invalid("state", _foreign(name, found, expected))
    position = _number(about, "position", MAX_POSITION)
    _check_rows(rows, manifest)
    return SavedState(rows, position, _number(about, "seed", MAX_SEED))


def read_key(path: str) -> bytes:
    """The key that states are signed with, from a file; made at first use where none is named.

    Raises `ValueError` for a file that isn't there or is too short to be a secret.
    """
    if not path:
        return _own_key()
    try:
        content = Path(path).read_bytes().strip()
    except OSError as error:
        raise ValueError(f"state_key: can't read {path} ({error.strerror})") from None
    if len(content) < KEY_BYTES:
        raise ValueError(
            f"state_key: found {len(content)} bytes in {path}, expected at least {KEY_BYTES}; "
            "make one with `head -c 32 /dev/urandom | base64`"
        )
    return hashlib.sha256(content).digest()


def _own_key() -> bytes:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torsor"
    path = cache / "state.key"
    try:
        if not path.exists():
            _make_key(path)
        return hashlib.sha256(path.read_bytes().strip()).digest()
    except OSError as error:
        log.warning(
            "can't keep a key for saved states in %s (%s): they end with this process; name a "
            "file with --state-key",
            path,
            error.strerror,
        )
        return secrets.token_bytes(KEY_BYTES)


def _make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(secrets.token_hex(KEY_BYTES).encode())
    with contextlib.suppress(FileExistsError):  # another process was first: its key counts
        os.link(temporary, path)
    temporary.unlink()


def _belongs(manifest: Manifest, ablation: str) -> dict[str, str]:
    files = manifest.files
    return {
        "format": FORMAT,
        "model": manifest.name,
        "graph": files[GRAPH_FILE].sha256,
        "weights": files[WEIGHTS_FILE].sha256,
        "ablation": ablation,
    }


def _verified(blob: str, key: bytes) -> bytes:
    try:
        whole = base64.b64decode(blob.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise invalid("state", "is no base64; send it as it was answered") from None
    signature, content = whole[:KEY_BYTES], whole[KEY_BYTES:]
    if not hmac.compare_digest(signature, _sign(key, content)):
        raise invalid(
            "state",
            "its signature doesn't fit: it was changed or cut, or another server signed it; "
            "replicas share states only where they share --state-key",
        )
    return content


def _sign(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()


def _foreign(name: str, found: str | None, expected: str) -> str:
    if name == "ablation":
        shown = [f"ablation {h[:12]}" if h else "the plain model" for h in (found, expected)]
        return f"found a state of {shown[0]}, expected one of {shown[1]}; ask with the same edits"
    return f"{name}: found {found or 'none'!r:.80}, expected {expected!r:.80}; use its own model"


def _number(about: dict[str, str], name: str, most: int) -> int:
    text = about.get(name, "")
    if not (text.isascii() and text.isdigit() and int(text) <= most):
        raise invalid("state", f"{name}: found {text!r:.40}, expected 0 to {most}")
    return int(text)


def _check_rows(rows: Rows, manifest: Manifest) -> None:
    expected = {state.name: state for state in manifest.states}
    if set(rows) != set(expected):
        raise invalid("state", f"found tensors {sorted(rows)}, expected {sorted(expected)}")
    for name, spec in expected.items():
        value = rows[name]
        if value.shape != spec.shape or value.dtype != spec.dtype:
            found = f"{value.dtype} {value.shape}"
            raise invalid("state", f"{name}: found {found}, expected {spec.dtype} {spec.shape}")
        if not np.isfinite(value).all():
            raise invalid("state", f"{name}: holds a value that is not finite")
        if spec.orthogonal and (error := orthogonality_error(value)) > MAX_ORTHOGONALITY_ERROR:
            raise invalid(
                "state",
                f"{name}: is off its group, max |HᵀH - I| = {error:.1e}, expected at most "
                f"{MAX_ORTHOGONALITY_ERROR:.0e}",
            )


def orthogonality_error(H: NDArray[Any]) -> float:
    """max |HᵀH - I| over matrices (..., n, n)."""
    gram = np.swapaxes(H, -1, -2).astype(np.float64) @ H
    return float(np.abs(gram - np.eye(H.shape[-1])).max())


def _metadata(content: bytes) -> dict[str, str]:
    # safetensors' own reader keeps the metadata to itself when it reads from memory: the header
    # is 8 bytes of length, little endian, then JSON (its format is documented).
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    found = header.get("__metadata__", {})
    return {str(k): str(v) for k, v in found.items()}
