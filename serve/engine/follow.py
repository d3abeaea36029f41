"""Following streams: submitted together, read as they move, and cancelled on every way out.

    with Following(engine, streams, wakeup) as following:
        while not following.is_done:
            await following.wait()
            for place, arrived in following.collect():
                ...                                     following.done[place]: that was all

However the inside ends, by an error of a stream, a cancellation or a client that has gone, streams
that still run are cancelled, and their slots are free within a tick.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from serve.engine.engine import Engine
from serve.engine.stream import Delivery, Stream
from serve.engine.wakeup import Wakeup


class Following:
    """Streams that one coroutine reads; `wakeup` is what each of them rings.

    Raises `RequestError` where the engine doesn't take them; none of them runs then.
    """

    __slots__ = ("_engine", "_wakeup", "done", "streams")

    def __init__(self, engine: Engine, streams: Sequence[Stream], wakeup: Wakeup) -> None:
        engine.submit(list(streams))
        self.streams, self.done = streams, bytearray(len(streams))  # done: 1 once all was read
        self._engine, self._wakeup = engine, wakeup

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_done(self) -> bool:
        """Whether every stream has ended and was read to its end."""
        return all(self.done)

    async def wait(self) -> None:
        """Until some stream has moved since the last wait."""
        await self._wakeup.wait()

    def collect(self) -> Iterator[tuple[int, list[Delivery]]]:
        """The place of every stream that isn't done, and what has arrived of it."""
        for place, stream in enumerate(self.streams):
            if not self.done[place]:
                arrived, self.done[place] = stream.collect()
                yield place, arrived

    def raise_error(self, place: int) -> None:
        """Raise the error that this stream has ended in, if it has."""
        error = self.streams[place].error
        if self.done[place] and error is not None:
            raise error

    def close(self) -> None:
        """Nobody reads on: cancel what still runs."""
        if not self.is_done:
            waiting = zip(self.streams, self.done, strict=True)
            self._engine.cancel([stream for stream, done in waiting if not done])
