"""Certificates: checked before anything starts, and handed to gRPC."""

import ssl
from pathlib import Path

import grpc


def check_tls(cert: str, key: str) -> None:
    """`ValueError` in one line if these PEM files are no certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # The password: a server has nobody to ask for one
        context.load_cert_chain(cert, key, password=lambda: "")
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(
            f"tls: {cert} and {key} can't be used ({error.strerror or error}), expected a "
            "certificate and its private key, both PEM, without a password"
        ) from None


def grpc_credentials(cert: str, key: str) -> grpc.ServerCredentials | None:
    """What gRPC's secure port takes; None where there is no certificate."""
    if not cert:
        return None
    pair = (Path(key).read_bytes(), Path(cert).read_bytes())
    return grpc.ssl_server_credentials([pair])
