"""Credentials of a client: its API key, and the certificates it trusts."""


def bearer(api_key: str | None) -> dict[str, str]:
    """The header, or gRPC's metadata, that carries a key; empty without one.

    ValueError, which does not quote the key, for characters that no header can carry.
    """
    if not api_key:
        return {}
    if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        found = "a space, a line break or another character that no key has"
        raise ValueError(f"api_key: found {found}, expected the key as torsor key printed it")
    return {"authorization": f"Bearer {api_key}"}


def read_ca(path: str) -> bytes:
    """The certificates in a PEM file; ValueError where there is no such file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ValueError(f"ca: can't read {path}: {error.strerror}") from None
