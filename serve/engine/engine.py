"""The engine: one loop that owns the runtime and the slots.

    tick: admit waiting streams into slots -> advance each group -> release the slots of the ended

How a group advances (gather rows, run, scatter, deliver) stands in serve/engine/runner.py, and how
its news come back to the coroutine that reads, in serve/engine/follow.py and
serve/engine/wakeup.py. ARCHITECTURE.md has the whole way of a request.

Streams of one tick may differ in length, phase and sampling. Streams of different weights are
different groups, one run a group; where there are many, they take turns
(serve/engine/scheduling.py). A long prompt is cut into runs of a tick like everything else, so it
starves nobody. Background streams, those of sweeps, have slots and turns of their own and give way
to all others.
"""

import logging
import threading
import time
from collections.abc import Iterable

from serve import metrics
from serve.engine.health import Health
from serve.engine.limits import EngineLimits, overdue
from serve.engine.prefix_cache import PrefixCache
from serve.engine.runner import BatchRunner
from serve.engine.scheduling import AdmissionQueue, Scheduler
from serve.engine.stream import Life, Stream
from serve.runtime.bundle import Bundle
from serve.wire.errors import RequestError, shutting_down

log = logging.getLogger("torsor")

IDLE_S = 1.0  # how long the loop sleeps when nothing is to be done and nobody wakes it
UNREAD_S = 0.005  # and when every stream waits for its client to read
LOOK_S = 0.02  # between looks at who has taken too long: limits are kept to that
MAX_UNREAD = 1024  # characters; a stream whose client reads no faster rests


class Engine:
    """Runs streams until they end; `submit` and `cancel` may be called from any thread."""

    def __init__(self, bundles: Iterable[Bundle], limits: EngineLimits | None = None) -> None:
        self.limits = limits or EngineLimits()
        self.cache = PrefixCache(self.limits.state_cache_bytes)
        self._tables: dict[Bundle, BatchRunner] = {}
        self._background: dict[Bundle, BatchRunner] = {}  # of the streams of sweeps
        self._retired: set[Bundle] = set()
        self.health = Health()
        self._waiting, self._scheduler = AdmissionQueue(self.limits), Scheduler()
        self._running: list[Stream] = []
        self._looks_at = 0.0  # when to look for the overdue next
        self._wake = threading.Condition()
        for bundle in bundles:
            self.add(bundle)
        self._draining = self._stopped = self._failed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def accepting(self) -> bool:
        """Whether new streams are taken."""
        return not self._draining

    @property
    def alive(self) -> bool:
        """Whether the loop is running."""
        return self._thread.is_alive()

    @property
    def num_running(self) -> int:
        """Streams that hold a slot."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Live streams that wait for a slot."""
        return len(self._waiting.live)

    @property
    def num_background(self) -> int:
        """Background streams, waiting or running."""
        return len(self._waiting.background) + sum(s.background for s in self._running)

    @property
    def failed(self) -> bool:
        """Whether the loop has ended by a mistake of ours; the process should end then."""
        return self._failed

    def start(self) -> None:
        """Start the loop in a thread of its own."""
        metrics.reset_streams()
        self._thread.start()

    def add(self, bundle: Bundle) -> None:
        """Take streams of a bundle from now on."""
        background = BatchRunner(bundle, self.limits.max_background, self.cache)
        live = BatchRunner(bundle, self.limits.max_streams, self.cache)
        with self._wake:
            self._background[bundle], self._tables[bundle] = background, live

    def retire(self, bundle: Bundle) -> None:
        """No more streams of a bundle; its table goes when the ones that are here have ended."""
        with self._wake:
            self._retired.add(bundle)
            self.health.forget(bundle)
            self._wake.notify()

    def submit(self, streams: list[Stream]) -> None:
        """Queue streams, all or none; raises `RequestError` if draining or the queue is full."""
        with self._wake:
            if self._failed:
                raise RequestError(
                    "unavailable", "the engine has failed and starts anew; try again"
                )
            if self._draining:
                raise shutting_down()
            served = self._tables.keys() - self._retired
            if not served.issuperset(stream.bundle for stream in streams):
                raise RequestError("not_found", "model: it has just been unloaded", "model")
            self._waiting.put(streams, self._running)
            self._wake.notify()

    def cancel(self, streams: Iterable[Stream]) -> None:
        """Nobody wants these any more; their slots are free within a tick."""
        for stream in streams:
            stream.cancelled = True
        with self._wake:
            self._wake.notify()

    def drain(self, grace_s: float) -> None:
        """Refuse new streams, let those that are here finish, and end the rest after the grace.

        Background streams are cancelled at once: what they have done so far stands.
        """
        with self._wake:
            self._draining = True
            streams = [*self._running, *self._waiting]
        self.cancel(stream for stream in streams if stream.background)
        deadline = time.monotonic() + grace_s
        while self._busy() and time.monotonic() < deadline and self.alive:
            time.sleep(0.01)
        self.stop()

    def _busy(self) -> bool:
        with self._wake:  # else a stream on its way into its slot could be in neither
            return bool(self._waiting or self._running)

    def stop(self) -> None:
        """End the loop; streams that are still here end with an error."""
        with self._wake:
            self._draining = self._stopped = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def tick(self) -> bool:
        """One pass; whether there was anything to do."""
        started = time.perf_counter()
        self._drop_retired()
        touched = self._drop_dead() + self._admit()
        for group in self._scheduler.pick(self._groups()):
            self._advance(group)
            touched += group
        self._release()
        for stream in dict.fromkeys(touched):
            stream.wake()
        if touched:
            elapsed = time.perf_counter() - started
            metrics.observe_tick(elapsed, self.num_running, self.num_waiting, self.num_background)
        return bool(touched)

    def _run(self) -> None:
        try:
            while not self._stopped:
                if not self.tick():
                    self._sleep()
        except Exception:
            log.exception("the engine has failed")
            self._failed = True
        finally:
            self._draining = True
            why = (
                "engine has failed" if self._failed else "grace time of the stopping server is over"
            )
            self._end_all(RequestError("unavailable", f"the {why}; try again"))

    def _sleep(self) -> None:
        with self._wake:
            just_arrived = bool(self._waiting) and not self._running
            if not just_arrived and not self._stopped:
                self._wake.wait(UNREAD_S if self._running else IDLE_S)

    def _end_all(self, error: RequestError) -> None:
        with self._wake:
            streams = [*self._running, *self._waiting]
            self._waiting.clear()
        for stream in streams:
            stream.finish("error", error)
        self._release()
        for stream in streams:
            stream.wake()

    def _drop_retired(self) -> None:
        for bundle in list(self._retired):
            with self._wake:
                if any(s.bundle is bundle for s in (*self._running, *self._waiting)):
                    continue
                self._retired.discard(bundle)
                self._tables.pop(bundle, None)
                self._background.pop(bundle, None)
                served = {b.identity for b in self._tables}
            if bundle.identity not in served:
                self.cache.forget(bundle.identity)

    def _drop_dead(self) -> list[Stream]:
        """End streams that were cancelled, before they cost a run, and those that took too long."""
        now = time.monotonic()
        with self._wake:
            streams = [*self._running, *self._waiting]
        for stream in [stream for stream in streams if stream.cancelled]:
            stream.finish("cancelled")
        if now >= self._looks_at:
            self._looks_at = now + LOOK_S
            self._end_overdue(streams, now)
        dead = [stream for stream in streams if stream.life is Life.FINISHED]
        if dead:
            self._release()
            with self._wake:
                self._waiting.drop_ended()
                _count_finished(s for s in dead if s.slot < 0)
        return dead

    def _end_overdue(self, streams: Iterable[Stream], now: float) -> None:
        for stream in streams:
            if error := overdue(stream, self.limits, now):
                stream.finish("error", error)

    def _admit(self) -> list[Stream]:
        with self._wake:
            admitted = self._waiting.take(self._enter)
            self._running += admitted
        now = time.monotonic()
        for stream in admitted:
            stream.admitted_at = now
            if not stream.background:
                metrics.observe_queue(now - stream.created)
            if stream.position >= stream.end:
                stream.finish("length")
        return admitted

    def _enter(self, stream: Stream) -> bool:
        table = self._table(stream)
        if not table.slots.num_free:
            return False
        table.enter(stream)
        stream.life = Life.RUNNING
        return True

    def _table(self, stream: Stream) -> BatchRunner:
        return (self._background if stream.background else self._tables)[stream.bundle]

    def _groups(self) -> list[list[Stream]]:
        groups: dict[tuple[int, bool], list[Stream]] = {}
        for stream in self._running:
            if stream.life is not Life.RUNNING:
                continue
            if stream.num_unread < MAX_UNREAD:
                stream.resting_since = 0.0
                groups.setdefault((id(stream.session), stream.background), []).append(stream)
            elif not stream.resting_since:
                stream.resting_since = time.monotonic()
        return list(groups.values())

    def _advance(self, group: list[Stream]) -> None:
        try:
            self._table(group[0]).advance(group)
        except Exception:  # whatever goes wrong must end these streams only
            log.exception("a run failed")
            sentence = "the run failed; the server's log says why"  # which may hold its paths
            for stream in group:
                stream.finish("error", RequestError("internal", sentence))

    def _release(self) -> None:
        """Free the slots of streams that have ended."""
        ended = [stream for stream in self._running if stream.life is Life.FINISHED]
        if not ended:
            return
        self._running = [stream for stream in self._running if stream.life is Life.RUNNING]
        for stream in ended:
            self._table(stream).leave(stream)
            if stream.bundle not in self._retired:
                self.health.note(stream)
        _count_finished(ended)
        metrics.observe_cache(self.cache.num_bytes)


def _count_finished(streams: Iterable[Stream]) -> None:
    """Streams have ended, each counted once."""
    now = time.monotonic()
    for stream in streams:
        metrics.count_stream(
            stream.bundle.name,
            stream.finish_reason or "error",
            num_prompt=min(stream.position - stream.start, len(stream.forced)),
            num_written=stream.num_written,
            asks_cache=stream.caches,
            num_reused=stream.num_reused,
            error_code=None if stream.error is None else stream.error.code,
        )
        if stream.first_at and not stream.background:  # a sweep's waits its turn: nobody sees it
            gaps = stream.num_written - 1
            between_s = (now - stream.first_at) / gaps if gaps > 0 else None
            metrics.observe_pace(stream.first_at - stream.created, between_s)
