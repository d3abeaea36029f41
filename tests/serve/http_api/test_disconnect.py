"""Clients that go away: what works for them ends, and nothing else does."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from starlette.requests import Request
from starlette.types import Message

from serve.http_api.disconnect import CancelOnDisconnect, ClientDisconnected, cancel_on_disconnect
from serve.wire.errors import RequestError

Receive = Callable[[], Awaitable[Message]]


def leaves_after(seconds: float) -> Receive:
    async def receive() -> Message:
        await asyncio.sleep(seconds)
        return {"type": "http.disconnect"}

    return receive


def request(receive: Receive) -> Request:
    return Request({"type": "http"}, receive)


def test_work_ends_when_its_client_goes_and_what_comes_after_does_not() -> None:
    told = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    async def answer() -> None:
        with pytest.raises(ClientDisconnected):
            await cancel_on_disconnect(
                request(leaves_after(0.02)), work(), lambda: told.append("closed")
            )
        await asyncio.sleep(0.05)
        told.append("went on")

    asyncio.run(answer())
    assert told == ["cancelled", "closed", "went on"]


def test_who_stays_gets_the_answer_or_the_error_and_the_look_ends() -> None:
    async def fail() -> int:
        raise ValueError("of the work")

    async def answer() -> None:
        told = []
        assert await cancel_on_disconnect(request(leaves_after(60)), asyncio.sleep(0.01, 7)) == 7
        with pytest.raises(ValueError, match="of the work"):
            await cancel_on_disconnect(
                request(leaves_after(60)), fail(), lambda: told.append("closed")
            )
        await asyncio.sleep(0)
        assert told == ["closed"] and len(asyncio.all_tasks()) == 1

    asyncio.run(answer())


async def is_cancelled(task: "asyncio.Task[None]") -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancellation_from_elsewhere_passes() -> None:
    async def work() -> None:
        with CancelOnDisconnect(leaves_after(60)):
            await asyncio.sleep(60)

    async def outside() -> None:
        task = asyncio.create_task(work())
        asyncio.get_running_loop().call_later(0.02, task.cancel)
        await is_cancelled(task)

    asyncio.run(outside())


def test_a_cancellation_from_elsewhere_passes_where_the_client_goes_too() -> None:
    async def work() -> None:
        running = asyncio.current_task()
        assert running is not None
        with CancelOnDisconnect(leaves_after(0)):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:  # of the client
                running.cancel()
                await asyncio.sleep(60)

    async def outside() -> None:
        await is_cancelled(asyncio.create_task(work()))

    asyncio.run(outside())


def test_who_goes_as_the_work_ends_cancels_nothing_that_comes_after() -> None:
    async def work() -> str:
        ending = asyncio.get_running_loop().create_future()

        async def receive() -> Message:
            await asyncio.sleep(0)
            ending.set_result(None)  # the work wakes up before it is known that the client has gone
            return {"type": "http.disconnect"}

        with CancelOnDisconnect(receive):
            await ending
        await asyncio.sleep(0.02)
        return "went on"

    assert asyncio.run(work()) == "went on"


def test_a_cancellation_that_the_work_keeps_to_itself_is_taken_back_too() -> None:
    async def work() -> None:
        running = asyncio.current_task()
        assert running is not None
        with CancelOnDisconnect(leaves_after(0)), suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        assert running.cancelling() == 0
        for _ in range(2):
            with CancelOnDisconnect(leaves_after(0)):
                await asyncio.sleep(60)

    asyncio.run(work())


def test_who_was_to_be_cancelled_before_is_no_less_cancelled_by_a_client() -> None:
    async def work() -> str:
        running = asyncio.current_task()
        assert running is not None
        running.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        with CancelOnDisconnect(leaves_after(0)):
            await asyncio.sleep(60)
        return "went on"

    assert asyncio.run(work()) == "went on"


def test_a_connection_that_fails_counts_as_left() -> None:
    async def receive() -> Message:
        raise RequestError("too_large", "of a body that nobody reads")

    async def answer() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        with pytest.raises(ClientDisconnected):
            await cancel_on_disconnect(request(receive), asyncio.sleep(60))
        gc.collect()
        await asyncio.sleep(0)
        assert told == []

    asyncio.run(answer())
