"""Admission of requests: is the API key known, and does the request fit the key's limits?

HTTP and gRPC ask one gateway, so a key has one account of both wires. All of it happens on the
event loop's thread, so nothing is locked.
"""

import hmac
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from serve import metrics
from serve.gateway.keys import Key, hash_key
from serve.gateway.request_log import RequestRecord
from serve.gateway.tracing import Tracing
from serve.wire.errors import RequestError
from serve.wire.limits import UNREAD_TIMEOUT_S

MINUTE_S = 60.0
ROUNDING_S = 1e-6  # who waits as long as was said must not be refused for a rounding


class TokenBucket:
    """A rate: at most `per_minute` at once, and then one more whenever its share of time is over.

    `clock` gives seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._every_s = float(per_minute), MINUTE_S / per_minute
        self._tokens, self._clock, self._at = self._most, clock, clock()

    def wait_s(self) -> float:
        """Seconds until one more fits; 0: now."""
        now = self._clock()
        self._tokens = min(self._most, self._tokens + (now - self._at) / self._every_s)
        self._at = now
        wait_s = (1.0 - self._tokens) * self._every_s
        return wait_s if wait_s > ROUNDING_S else 0.0

    def take(self) -> None:
        """Count one."""
        self._tokens -= 1.0


class Account:
    """What a key has used."""

    def __init__(self, key: Key) -> None:
        self.key, self.num_running = key, 0
        rate = key.requests_per_minute
        self._bucket = None if rate is None else TokenBucket(rate)

    def take_place(self) -> None:
        """Count one more request; `RequestError` if it is beyond a limit, and it doesn't count."""
        key = self.key
        if key.max_concurrent is not None and self.num_running >= key.max_concurrent:
            raise RequestError(
                "rate_limited",
                f"found {self.num_running} requests of the key {key.name!r} running, expected at "
                f"most {key.max_concurrent} at once (max_concurrent); wait for one to end",
            )
        if self._bucket is not None and (wait_s := self._bucket.wait_s()):
            raise RequestError(
                "rate_limited",
                f"found too many requests of the key {key.name!r}, expected at most "
                f"{key.requests_per_minute} a minute (requests_per_minute); the next one fits in "
                f"{math.ceil(wait_s * 10) / 10} s",
                retry_after_s=wait_s,
            )
        if self._bucket is not None:
            self._bucket.take()
        self.num_running += 1

    def leave(self) -> None:
        """A request has ended, however."""
        self.num_running -= 1


class KeyLimits:
    """Lets requests in by their key; without keys, all of them."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._accounts = [Account(key) for key in keys]

    def admit(self, authorization: str | None) -> AbstractContextManager[Key | None]:
        """A request is in flight for as long as this is open; gives its key.

        `authorization` is the header, "Bearer KEY". Opening it raises `RequestError` for a key that
        isn't known or has reached a limit.
        """
        return self._place(authorization) if self._accounts else nullcontext()

    @contextmanager
    def _place(self, authorization: str | None) -> Iterator[Key]:
        try:
            account = self._find(authorization)
            account.take_place()
        except RequestError as error:
            metrics.count_refused(error.code)
            raise
        try:
            yield account.key
        finally:
            account.leave()

    def _find(self, authorization: str | None) -> Account:
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _unauthenticated("none")
        digest, found = hash_key(key.strip()), None
        for account in self._accounts:  # all of them: how long it takes must say nothing
            if hmac.compare_digest(account.key.sha256, digest):
                found = account
        if found is None:
            raise _unauthenticated("one that this server doesn't know")
        return found


def _unauthenticated(found: str) -> RequestError:
    return RequestError(
        "unauthenticated",
        f"authorization: found {found}, expected 'Bearer KEY' with an API key; whoever runs the "
        "server gives one, and torsor and its clients take it from TORSOR_API_KEY or api_key",
        "authorization",
    )


class Gateway:
    """Opens the record of each request, and admits it by its key."""

    def __init__(
        self,
        gate: KeyLimits | None = None,
        tracing: Tracing | None = None,
        write_timeout_s: float = UNREAD_TIMEOUT_S + 5.0,  # that one write waits; streams end before
    ) -> None:
        self.gate, self.tracing, self.write_timeout_s = (
            gate or KeyLimits(),
            tracing or Tracing(),
            write_timeout_s,
        )

    def open(
        self, wire: str, method: str, headers: Mapping[str, str], quiet: bool = False
    ) -> RequestRecord:
        """The record of a request, to be used as a context around all of it."""
        return RequestRecord(wire, method, headers, self.tracing, quiet)

    def admit(self, headers: Mapping[str, str]) -> AbstractContextManager[Key | None]:
        """A place of the request's key, held while this is open; or `RequestError`."""
        return self.gate.admit(headers.get("authorization"))
