"""One client's open sequence, as the engine sees it: characters in, characters out.

    WAITING --admit--> RUNNING --> FINISHED      (WAITING --> FINISHED when cancelled or refused)

The client's side calls `collect`; the engine's side calls the rest. The engine speaks of characters
by their index only.
"""

import enum
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.runtime import Bundle, Session
from serve.sampling import SamplingSettings, Uniforms
from serve.stops import StopMatcher
from serve.wire.errors import RequestError

Array = NDArray[Any]


class Life(enum.Enum):
    """Where a stream is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Consecutive characters of a stream (N), ready for the client."""

    characters: list[int]  # (N)
    logprobs: list[float]  # (N), natural logarithms under the raw distribution
    logits: Array | None  # (N, V), where they were asked for


class Stream:
    """A sequence that takes `forced` characters and then writes up to `max_tokens` of its own."""

    def __init__(
        self,
        bundle: Bundle,
        session: Session,
        forced: Array,
        *,
        max_tokens: int,
        seed: int,
        settings: SamplingSettings | None = None,
        stops: Sequence[tuple[int, ...]] = (),
        deliver_forced: bool = False,
        deliver_logits: bool = False,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.bundle, self.session, self.forced = bundle, session, forced
        self.max_tokens, self.uniforms = max_tokens, Uniforms(seed)
        self.settings = settings or SamplingSettings()
        self.deliver_forced, self.deliver_logits, self.wake = deliver_forced, deliver_logits, wake
        self.created, self.first_at = time.monotonic(), 0.0  # first_at: first written character
        self.admitted_at = self.ended_at = 0.0  # 0: not yet
        self.resting_since = 0.0  # since when the client leaves too much unread; 0: it doesn't
        self.life, self.slot, self.position = Life.WAITING, -1, 0
        self.cancelled = False
        self.finish_reason: str | None = None
        self.stop_index: int | None = None
        self.error: RequestError | None = None
        self._stops = StopMatcher(stops) if stops else None
        self._held: list[Delivery] = []  # what a stop string may still take away
        self._num_put, self._num_got = 0, 0  # characters; each written by one side only
        self._outbox: deque[Delivery] = deque()

    @property
    def length(self) -> int:
        """Characters that the stream takes at most."""
        return len(self.forced) + self.max_tokens

    @property
    def num_unread(self) -> int:
        """Characters that have arrived and that the client has not collected."""
        return self._num_put - self._num_got

    @property
    def num_written(self) -> int:
        """Characters that the stream has written itself."""
        return max(0, self.position - len(self.forced))

    def collect(self) -> tuple[list[Delivery], bool]:
        """What has arrived since the last call, and whether that was all; `error` says why."""
        finished = self.life is Life.FINISHED  # read first: nothing arrives after it
        arrived = [self._outbox.popleft() for _ in range(len(self._outbox))]
        self._num_got += sum(len(delivery.characters) for delivery in arrived)
        return arrived, finished

    def take(self, characters: Array, logprobs: Array, logits: Array | None) -> None:
        """The stream has taken these characters (N); called by the engine, which also finishes."""
        num_forced = min(len(characters), max(0, len(self.forced) - self.position))
        self.position += len(characters)
        if self.num_written and not self.first_at:
            self.first_at = time.monotonic()
        start = 0 if self.deliver_forced else num_forced
        keep = logits[start:] if logits is not None and self.deliver_logits else None
        piece = Delivery(characters[start:].tolist(), logprobs[start:].tolist(), keep)
        self._deliver(piece, num_forced - start)
        if self.finish_reason is None and self.position >= self.length:
            self.finish("length")

    def finish(self, reason: str, error: RequestError | None = None) -> None:
        """End the stream; whatever was held back is let go first."""
        if self.life is Life.FINISHED:
            return
        for piece in self._held:
            self._put(piece)
        self._held = []
        self.finish_reason, self.error = reason, error
        self._end()

    def _deliver(self, piece: Delivery, num_forced: int) -> None:
        if not piece.characters:
            return
        if self._stops is None:
            self._put(piece)
            return
        written = piece.characters[num_forced:]
        found = self._stops.feed(written)
        self._held.append(piece)
        if found is None:
            self._release(sum(len(p.characters) for p in self._held) - self._stops.num_held)
            return
        self.position -= len(written) - found.consumed
        total = sum(len(p.characters) for p in self._held) - (len(written) - found.consumed)
        self._release(total - found.length)
        self.stop_index, self._held, self.finish_reason = found.index, [], "stop"
        self._end()

    def _release(self, count: int) -> None:
        while self._held and count > 0:
            piece = self._held.pop(0)
            now, later = split_delivery(piece, count)
            self._put(now)
            count -= len(now.characters)
            if later.characters:
                self._held.insert(0, later)

    def _put(self, piece: Delivery) -> None:
        self._num_put += len(piece.characters)
        self._outbox.append(piece)

    def _end(self) -> None:
        self.ended_at = time.monotonic()
        self.life = Life.FINISHED


def split_delivery(piece: Delivery, count: int) -> tuple[Delivery, Delivery]:
    """The first `count` characters of a delivery, and the rest."""
    now, later = (None, None) if piece.logits is None else np.split(piece.logits, [count])
    return (
        Delivery(piece.characters[:count], piece.logprobs[:count], now),
        Delivery(piece.characters[count:], piece.logprobs[count:], later),
    )
