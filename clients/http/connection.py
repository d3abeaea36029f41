"""Connection settings of the HTTP clients: address, credentials, time-outs, certificates."""

import ssl
from typing import Any

import httpx

from clients.credentials import bearer, read_ca

CONNECT_TIMEOUT_S = 5.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def connection_settings(
    url: str, max_silence_s: float | None, api_key: str | None, ca: str | None
) -> dict[str, Any]:
    """Arguments of httpx's clients; ValueError for a `url` that is not one."""
    try:
        host = httpx.URL(url).host if url.startswith(("http://", "https://")) else ""
    except httpx.InvalidURL:
        host = ""
    if not host:
        raise ValueError(f"url: found {url!r}, expected http://HOST:PORT")
    return {
        "base_url": url,
        "headers": {"Content-Type": "application/json", **bearer(api_key)},
        "timeout": httpx.Timeout(max_silence_s, connect=CONNECT_TIMEOUT_S),
        "trust_env": host not in LOOPBACK,
        # To read the certificates takes 0.1 s, and plain http never looks at them
        "verify": url.startswith("https://") if ca is None else _trusting(ca),
    }


def _trusting(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=read_ca(ca).decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        raise ValueError(f"ca: found no certificates in {ca}, expected them as PEM") from None
