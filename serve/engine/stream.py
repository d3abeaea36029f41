"""One client's open sequence, as the engine sees it: characters in, characters out.

    WAITING --admit--> RUNNING --> FINISHED      (WAITING --> FINISHED when cancelled or refused)

The client's side calls `collect`; the engine's side calls the rest. The engine speaks of characters
by their index only.
"""

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serve.engine.sampling import SamplingSettings
from serve.engine.stop_strings import StopMatcher
from serve.runtime.bundle import Bundle
from serve.runtime.session import Session
from serve.wire.errors import RequestError

Array = NDArray[Any]


class Life(enum.Enum):
    """Where a stream is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Delivery(NamedTuple):
    """Consecutive characters of a stream (N), ready for the client."""

    characters: Sequence[int]  # (N)
    logprobs: Sequence[float]  # (N), natural logs under the raw distribution; empty: not asked for
    logits: Array | None  # (N, V), where they were asked for


@dataclass(frozen=True, slots=True)
class Opening:
    """Where a stream begins: a state, and how many characters led to it."""

    position: int
    rows: dict[str, Array]


class Stream:
    """A sequence that takes `forced` characters and then writes up to `max_tokens` of its own.

    Positions count from the initial state, also where the stream begins with an `opening`.
    """

    # fmt: off
    __slots__ = (  # there are a thousand at once, and a dict of so many names takes 1.5 KB
        "bundle", "session", "forced", "seed", "settings", "weights", "background", "opening",
        "deliver_forced", "deliver_logprobs", "deliver_logits", "saves", "caches", "wake",
        "start", "position", "first_own", "max_tokens", "end", "num_reused",
        "created", "first_at", "admitted_at", "ended_at", "resting_since",
        "life", "slot", "cancelled", "finish_reason", "stop_index", "error", "snapshot", "saved",
        "rewinds", "_replays", "_stops", "_held", "_num_put", "_num_got", "_outbox",
    )
    # fmt: on

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
        deliver_logprobs: bool = True,
        deliver_logits: bool = False,
        opening: Opening | None = None,
        saves: bool = False,
        weights: str = "",
        background: bool = False,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.bundle, self.session, self.forced, self.seed = bundle, session, forced, seed
        self.settings = settings or SamplingSettings()
        self.deliver_forced, self.deliver_logprobs = deliver_forced, deliver_logprobs
        self.deliver_logits, self.wake = deliver_logits, wake
        self.opening, self.saves, self.weights = opening, saves, weights
        self.background = (
            background  # of a sweep: gives way to live streams, for as long as it must
        )
        # A state stands for characters that are not delivered, after a beginning that all share.
        self.caches = bool(weights) and opening is None and not deliver_forced and len(forced) > 0
        self.start = self.position = 0 if opening is None else opening.position
        self.first_own = self.start + len(forced)  # position of the first written character
        self.max_tokens, self.end = max_tokens, self.first_own + max_tokens
        self.num_reused = 0  # characters of `forced` that the cache of states knew
        self.created, self.first_at = time.monotonic(), 0.0  # first_at: first written character
        self.admitted_at = self.ended_at = 0.0  # 0: not yet
        self.resting_since = 0.0  # since when the client leaves too much unread; 0: it doesn't
        self.life, self.slot = Life.WAITING, -1
        self.cancelled = False
        self.finish_reason: str | None = None
        self.stop_index: int | None = None
        self.error: RequestError | None = None
        self.snapshot: Callable[[], dict[str, Array]] = dict  # reads the slot's state
        self.saved: dict[str, Array] | None = None  # the state at the end, if it `saves`
        self.rewinds = False  # the last run went past the end: it must be taken again, up to there
        self._replays = False
        self._stops = StopMatcher(stops) if stops else None
        self._held: list[Delivery] = []  # what a stop string may still take away
        self._num_put, self._num_got = 0, 0  # characters; each written by one side only
        self._outbox: list[Delivery] = []  # the engine appends, the client takes from the front

    @property
    def is_ablated(self) -> bool:
        """Whether it runs on other weights than the bundle's."""
        return self.session is not self.bundle.plain.session

    @property
    def num_unread(self) -> int:
        """Characters that have arrived and that the client has not collected."""
        return self._num_put - self._num_got

    @property
    def num_written(self) -> int:
        """Characters that the stream has written itself."""
        return max(0, self.position - self.first_own)

    def collect(self) -> tuple[list[Delivery], bool]:
        """What has arrived since the last call, and whether that was all; `error` says why."""
        finished = self.life is Life.FINISHED  # read first: nothing arrives after it
        arrived = self._outbox[:]
        del self._outbox[: len(arrived)]  # more may have come meanwhile
        self._num_got += sum(len(delivery.characters) for delivery in arrived)
        return arrived, finished

    def reuse(self, position: int) -> None:
        """The cache of states knows the stream's characters up to a position."""
        self.num_reused, self.position = position - self.start, position

    def take(
        self, characters: Sequence[int], logprobs: Sequence[float], logits: Array | None
    ) -> None:
        """The stream has taken these characters (N); called by the engine, which also finishes."""
        before = self.position
        self.position = before + len(characters)
        if self._replays:
            return self.finish("stop")
        num_forced = 0
        if before < self.first_own:
            num_forced = min(len(characters), self.first_own - before)
            if not self.deliver_forced:
                characters, logprobs = characters[num_forced:], logprobs[num_forced:]
                logits = None if logits is None else logits[num_forced:]
        if not self.first_at and self.position > self.first_own:
            self.first_at = time.monotonic()
        if characters:
            chunk = Delivery(characters, logprobs, None if logits is None else logits.copy())
            if self._stops is None:
                self._put(chunk)
            else:
                self._follow(chunk, num_forced if self.deliver_forced else 0, self._stops)
        if self.position >= self.end and not self.rewinds:
            self.finish("length")

    def rewind(self, position: int) -> None:
        """Back to a position: the run that followed is taken again, and ends at `end`."""
        self.position, self.rewinds, self._replays = position, False, True

    def finish(self, reason: str, error: RequestError | None = None) -> None:
        """End the stream; whatever was held back is let go first."""
        if self.life is Life.FINISHED:
            return
        for chunk in self._held:
            self._put(chunk)
        self._held = []
        if self.saves and reason in ("stop", "length"):
            self.saved = self.snapshot()
        self.finish_reason, self.error = reason, error
        self.ended_at = time.monotonic()
        self.life = Life.FINISHED  # last: the client reads on from here

    def _follow(self, chunk: Delivery, num_forced: int, stops: StopMatcher) -> None:
        written = chunk.characters[num_forced:]
        found = stops.feed(written)
        self._held.append(chunk)
        if found is None:
            self._release(sum(len(p.characters) for p in self._held) - stops.num_held)
            return
        excess = len(written) - found.consumed
        self.position -= excess
        self._release(sum(len(p.characters) for p in self._held) - excess - found.length)
        self.stop_index, self._held = found.index, []
        if self.saves and excess:
            self.end, self.rewinds = self.position, True
        else:
            self.finish("stop")

    def _release(self, count: int) -> None:
        while self._held and count > 0:
            chunk = self._held.pop(0)
            now, later = split_delivery(chunk, count)
            self._put(now)
            count -= len(now.characters)
            if later.characters:
                self._held.insert(0, later)

    def _put(self, chunk: Delivery) -> None:
        self._num_put += len(chunk.characters)
        self._outbox.append(chunk)


def split_delivery(chunk: Delivery, count: int) -> tuple[Delivery, Delivery]:
    """The first `count` characters of a delivery, and the rest."""
    now, later = (None, None) if chunk.logits is None else np.split(chunk.logits, [count])
    return (
        Delivery(chunk.characters[:count], chunk.logprobs[:count], now),
        Delivery(chunk.characters[count:], chunk.logprobs[count:], later),
    )
