"""Errors of asking a server.

TorsorError
├── ConnectionFailed   nothing answers at the address
├── StreamBroken       the connection was lost before the answer was whole
├── UnexpectedAnswer   an answer that no torsor server gives
├── UnfitRequest       a request that no wire can carry: NaN, a date, ...
└── ServerError        the request was refused, or failed: code, message, field
"""

from clients.tls import SPEAKS_TLS

REMEDIES = {  # by a part of the reason why there is no connection
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted; name the one that signed it with "
    "--ca FILE, in Python with ca=",
    "WRONG_VERSION_NUMBER": "it does not speak TLS; try http://, and for gRPC the address alone",
    SPEAKS_TLS: "try https:// in front of the address",
}


class TorsorError(Exception):
    """Any of the errors of this file."""


class ConnectionFailed(TorsorError):
    """No server answers at the address."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason

    def __str__(self) -> str:
        usual = "is the server running? Start it with: torsor serve"
        remedy = next((told for sign, told in REMEDIES.items() if sign in self.reason), usual)
        return f"cannot connect to {self.address} ({self.reason}): {remedy}"


class StreamBroken(TorsorError):
    """The connection was lost before the answer was whole."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason

    def __str__(self) -> str:
        return (
            f"the connection to {self.address} was lost before the answer was whole "
            f"({self.reason}): ask again; the same seed gives the same text"
        )


class UnexpectedAnswer(TorsorError):
    """An answer that no torsor server gives."""

    def __init__(self, address: str, found: str) -> None:
        super().__init__(address, found)
        self.address, self.found = address, found

    def __str__(self) -> str:
        return (
            f"{self.address}: found {self.found}, expected the answer of a torsor server: "
            "check the address and the server's version"
        )


class UnfitRequest(TorsorError):
    """A request that no wire can carry: NaN, a date, ...; `field` says where it stands.

    No server has seen it, nor refused it.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field, self.message = field, f"{field}: {problem}"

    def __str__(self) -> str:
        return self.message


class ServerError(TorsorError):
    """The request was refused or failed; `code` is one of serve/wire/errors.py, `field` says where.

    What breaks the server's own rules for requests is refused here already, with equal words.
    `retry_after_s` is given with the codes `queue_full` and `rate_limited`, where it is known.
    """

    def __init__(
        self,
        code: str,
        message: str,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(code, message, field, retry_after_s)
        self.code, self.message, self.field = code, message, field
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message
