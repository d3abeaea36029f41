"""What the ways in over HTTP and gRPC share: the gate with its keys, and where traces go."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from serve.engine.limits import UNREAD_TIMEOUT_S
from serve.gateway.admission import Gate
from serve.gateway.keys import Key
from serve.gateway.request_log import Call
from serve.gateway.tracing import Tracing


class Entrance:
    """Opens a `Call` for each request and lets it through the gate."""

    def __init__(
        self,
        gate: Gate | None = None,
        tracing: Tracing | None = None,
        patience_s: float = UNREAD_TIMEOUT_S + 5.0,  # that one write waits; streams end before
    ) -> None:
        self.gate, self.tracing, self.patience_s = gate or Gate(), tracing or Tracing(), patience_s

    def open(self, wire: str, method: str, headers: Mapping[str, str], quiet: bool = False) -> Call:
        """The record of a request, to be used as a context around all of it."""
        return Call(wire, method, headers, self.tracing, quiet)

    def admit(self, headers: Mapping[str, str]) -> AbstractContextManager[Key | None]:
        """Hold a place at the gate for as long as this is open; `RequestError` if there is none."""
        return self.gate.admit(headers.get("authorization"))
