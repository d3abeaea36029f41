"""Following streams: they are read to their end, and every way out frees their slots."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from serve.engine.engine import Engine
from serve.engine.follow import Following
from serve.engine.limits import EngineLimits
from serve.engine.stream import Stream
from serve.engine.wakeup import Wakeup
from serve.runtime.bundle import Bundle, load_bundles
from serve.settings import SHIPPED
from serve.wire.errors import RequestError

LONG = 100_000  # characters: none of these ends by itself while a test runs


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    (found,) = load_bundles([SHIPPED / "tanh-rnn-shakespeare"], "cpu", 1).values()
    return found


@pytest.fixture
def engine(bundle: Bundle) -> Iterator[Engine]:
    engine = Engine([bundle], EngineLimits(max_waiting=8))
    engine.start()
    yield engine
    engine.stop()


def follow(engine: Engine, bundle: Bundle, *lengths: int) -> Following:
    wakeup, none = Wakeup(), np.zeros(0, np.int64)
    streams = [
        Stream(bundle, bundle.plain.session, none, max_tokens=n, seed=i, wake=wakeup.ring)
        for i, n in enumerate(lengths)
    ]
    return Following(engine, streams, wakeup)


async def read(following: Following) -> list[int]:
    """How many characters each stream has written, all read to the end."""
    counts = [0] * len(following.streams)
    with following:
        while not following.is_done:
            await following.wait()
            for place, arrived in following.collect():
                counts[place] += sum(len(delivery.characters) for delivery in arrived)
                following.raise_error(place)
    return counts


async def slots_are_free(engine: Engine) -> bool:
    until = time.monotonic() + 10
    while engine.num_running or engine.num_waiting:
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.005)
    return True


def test_streams_of_different_lengths_are_read_to_their_ends(
    engine: Engine, bundle: Bundle
) -> None:
    async def work() -> None:
        assert await read(follow(engine, bundle, 40, 0, 700)) == [40, 0, 700]
        assert await slots_are_free(engine)

    asyncio.run(work())


async def by_an_error_inside(following: Following) -> None:
    with pytest.raises(ValueError, match="of the inside"), following:
        await following.wait()
        raise ValueError("of the inside")


async def by_leaving_early(following: Following) -> None:
    with following:
        await following.wait()
        next(following.collect())


async def by_cancelling_while_it_waits(following: Following) -> None:
    reading = asyncio.create_task(read(following))
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def by_an_error_of_a_stream(following: Following) -> None:
    following.streams[1].finish("error", RequestError("model_error", "of a stream"))
    with pytest.raises(RequestError, match="of a stream"):
        await read(following)


async def by_closing_it_unread(following: Following) -> None:
    following.close()
    following.close()  # twice is once


EXITS = (
    *(by_an_error_inside, by_leaving_early, by_cancelling_while_it_waits),
    *(by_an_error_of_a_stream, by_closing_it_unread),
)


@pytest.mark.parametrize("leave", EXITS, ids=lambda leave: leave.__name__)
def test_every_way_out_frees_all_slots(
    engine: Engine, bundle: Bundle, leave: Callable[[Following], Awaitable[Any]]
) -> None:
    async def work() -> None:
        following = follow(engine, bundle, LONG, LONG, LONG)
        await leave(following)
        assert await slots_are_free(engine)
        running = [stream for stream in following.streams if stream.finish_reason is None]
        assert running == []

    asyncio.run(work())


def test_an_engine_that_stops_ends_what_is_followed(engine: Engine, bundle: Bundle) -> None:
    async def work() -> None:
        following = follow(engine, bundle, LONG)
        stopping = asyncio.to_thread(engine.stop)
        with pytest.raises(RequestError, match="grace time") as caught:
            await asyncio.gather(read(following), stopping)
        assert caught.value.code == "unavailable"

    asyncio.run(work())


def test_streams_that_the_engine_refuses_are_all_refused(engine: Engine, bundle: Bundle) -> None:
    async def work() -> None:
        with pytest.raises(RequestError, match="max_waiting"):
            follow(engine, bundle, *[1] * 300)
        assert not engine.num_waiting and await slots_are_free(engine)

    asyncio.run(work())
