"""TLS at an address: whether a port speaks it, for errors that say what to try instead."""

import socket
import ssl
from urllib.parse import urlsplit

PROBE_S = 1.0
SPEAKS_TLS = "the port speaks TLS"  # the reason of a failed connection without it


def speaks_tls(address: str) -> bool:
    """Whether a handshake succeeds at `http://HOST:PORT` or HOST:PORT, whoever signed for it."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        place = parts.hostname or "", parts.port or 80
        with (
            socket.create_connection(place, PROBE_S) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname),
        ):
            return True
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        return False
