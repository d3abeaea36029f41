"""Scheduling: streams that wait for a slot, and which batches run in this tick.

Live streams and those of sweeps wait in queues with bounds of their own, so a sweep never makes a
live request find the queue full. The engine holds its lock around every call of the queue.

Streams that share weights are a group, and a group costs a run:

| groups                      | in a tick                                                          |
|-----------------------------|--------------------------------------------------------------------|
| live, of plain weights      | all                                                                |
| live, of ablated weights    | `ABLATED_A_TICK`, in turn                                          |
| of background streams       | as many, in turn, where no live group runs; beside live ones a     |
|                             | single one, every `BACKGROUND_EVERY` ticks                         |

So a hundred ablations slow a plain stream by a constant, and a sweep slows nobody by much. The
turns are round-robin: nobody is passed for ever.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from serve.engine.limits import EngineLimits
from serve.engine.stream import Life, Stream
from serve.wire.errors import RequestError, invalid


class AdmissionQueue:
    """Two queues, first come, first served; whom no slot fits lets others pass."""

    def __init__(self, limits: EngineLimits) -> None:
        self.live, self.background = deque[Stream](), deque[Stream]()
        self._max_held = limits.max_held_characters
        self._bounds = (
            (self.live, limits.max_waiting, "max_waiting"),
            (self.background, limits.max_queued_background, "max_queued_background"),
        )

    def __iter__(self) -> Iterator[Stream]:
        yield from self.live
        yield from self.background

    def __bool__(self) -> bool:
        return bool(self.live or self.background)

    def put(self, streams: list[Stream], running: Iterable[Stream]) -> None:
        """Queue streams, all or none; `RequestError` where there are too many, or too long ones
        beside those that wait and run."""
        for queue, most, limit in self._bounds:
            asked = sum(self._queue_of(stream) is queue for stream in streams)
            if asked > most:
                found = f"found {asked} streams, expected at most {most} ({limit})"
                raise invalid("n", found)
            if asked and len(queue) + asked > most:
                raise RequestError(
                    "queue_full",
                    f"found {len(queue)} streams waiting and {asked} more asked "
                    f"for, expected at most {most} ({limit}); try again later",
                )
        self._require_room(streams, running)
        for stream in streams:
            self._queue_of(stream).append(stream)

    def _require_room(self, streams: list[Stream], running: Iterable[Stream]) -> None:
        held, asked = num_characters((*self.live, *running)), num_characters(streams)
        if asked and held + asked > self._max_held:
            raise RequestError(
                "queue_full",
                f"found {held} characters in the prompts that wait and run and {asked} more, "
                f"expected at most {self._max_held} (max_held_characters); try again later",
            )

    def take(self, enter: Callable[[Stream], bool]) -> list[Stream]:
        """Those that `enter` found a slot for; background ones only if no live one still waits."""
        taken = _take(self.live, enter)
        return taken if self.live else taken + _take(self.background, enter)

    def drop_ended(self) -> None:
        """Keep only those that still wait."""
        for queue in (self.live, self.background):
            _keep_waiting(queue)

    def clear(self) -> None:
        """Keep none."""
        self.live.clear()
        self.background.clear()

    def _queue_of(self, stream: Stream) -> deque[Stream]:
        return self.background if stream.background else self.live


def num_characters(streams: Iterable[Stream]) -> int:
    """Of the prompts of live streams; what choices share counts once."""
    return sum({id(s.forced): len(s.forced) for s in streams if not s.background}.values())


def _take(queue: deque[Stream], enter: Callable[[Stream], bool]) -> list[Stream]:
    taken = [stream for stream in queue if enter(stream)]
    if taken:
        _keep_waiting(queue)
    return taken


def _keep_waiting(queue: deque[Stream]) -> None:
    waiting = [stream for stream in queue if stream.life is Life.WAITING]
    queue.clear()
    queue.extend(waiting)


ABLATED_A_TICK = 4
BACKGROUND_EVERY = 16  # ticks


class Scheduler:
    """Remembers who was advanced last; the engine's thread alone uses it."""

    def __init__(self) -> None:
        self._ablated, self._background = RoundRobin(), RoundRobin()
        self._since = 0  # ticks since a background group ran, while one wants to

    def pick(self, groups: Sequence[list[Stream]]) -> list[list[Stream]]:
        """Those that advance now, of groups that share weights and are live or background."""
        plain = [g for g in groups if not g[0].background and is_plain(g[0])]
        ablated = [g for g in groups if not g[0].background and not is_plain(g[0])]
        picked = plain + self._ablated.next(ablated, ABLATED_A_TICK)
        waiting = [g for g in groups if g[0].background]
        self._since = self._since + 1 if waiting else 0
        num_background = ABLATED_A_TICK
        if picked:
            num_background = int(self._since >= BACKGROUND_EVERY)
        background = self._background.next(waiting, num_background)
        if background:
            self._since = 0
        return picked + background


class RoundRobin:
    """Groups in the order of their turns."""

    def __init__(self) -> None:
        self._order: list[int] = []  # by the session's id, which lives as long as its streams

    def next(self, groups: Sequence[list[Stream]], count: int) -> list[list[Stream]]:
        """The first `count` of these; they go to the end, and so does who has just come."""
        here = {id(group[0].session): group for group in groups}
        known = [key for key in self._order if key in here]
        order = list(dict.fromkeys([*known, *here]))
        self._order = order[count:] + order[:count]
        return [here[key] for key in order[:count]]


def is_plain(stream: Stream) -> bool:
    """Whether a stream runs on its bundle's own weights."""
    return stream.session is stream.bundle.plain.session
