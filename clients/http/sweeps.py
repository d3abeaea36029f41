"""Sweeps over HTTP: `client.sweeps`, for the plain and the asyncio client.

    sweep = client.sweeps.start(text=text, grid={"edits": [...], "axes": {"alpha": [0.85, 0.9]}})
    for item in client.sweeps.watch(sweep.id):     points as they are done; at the end the sweep
        print(item)
    client.sweeps.points(sweep.id).to_pandas()

A sweep is the server's: it goes on when nobody watches, and when the server starts again.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Unpack
from urllib.parse import quote

from clients.http.calls import Call, StreamCall
from clients.options import SweepOptions, sweep_body
from clients.sweep_results import (
    Sweep,
    SweepPoint,
    SweepPoints,
    read_event,
)
from serve.wire.codec import from_json

Item = SweepPoint | Sweep


class HttpSweeps:
    """The sweeps of a server."""

    def __init__(
        self,
        ask: Callable[[Call[Any]], Any],
        stream: Callable[[StreamCall], Generator[Any, None, None]],
    ) -> None:
        self._ask, self._stream = ask, stream

    def start(self, **options: Unpack[SweepOptions]) -> Sweep:
        """Start one; it is queued behind those that are there."""
        sweep: Sweep = self._ask(_start(options))
        return sweep

    def list(self) -> tuple[Sweep, ...]:
        """The sweeps that the key may see, the newest first."""
        sweeps: tuple[Sweep, ...] = self._ask(Call("GET", "v1/sweeps", _sweeps))
        return sweeps

    def get(self, id: str) -> Sweep:
        """One of them."""
        sweep: Sweep = self._ask(Call("GET", _path(id), _sweep))
        return sweep

    def watch(self, id: str, start: int = 0) -> Generator[Item, None, None]:
        """Points from number `start` on as they are done, in order; the last item is the sweep."""
        return self._stream(_events(id, start))

    def points(self, id: str) -> SweepPoints:
        """The points that are done, without waiting for more."""
        found, start = list[SweepPoint](), 0
        while more := self._ask(_points(id, start)):
            found += more
            start = more[-1].index + 1
        return SweepPoints(found)

    def cancel(self, id: str) -> Sweep:
        """End a sweep, whose points stay; one that has ended is forgotten: `deleted` says so."""
        sweep: Sweep = self._ask(Call("DELETE", _path(id), _sweep))
        return sweep


class AsyncHttpSweeps:
    """`HttpSweeps` for asyncio."""

    def __init__(
        self,
        ask: Callable[[Call[Any]], Awaitable[Any]],
        stream: Callable[[StreamCall], AsyncGenerator[Any, None]],
    ) -> None:
        self._ask, self._stream = ask, stream

    async def start(self, **options: Unpack[SweepOptions]) -> Sweep:
        """Start one; it is queued behind those that are there."""
        sweep: Sweep = await self._ask(_start(options))
        return sweep

    async def list(self) -> tuple[Sweep, ...]:
        """The sweeps that the key may see, the newest first."""
        sweeps: tuple[Sweep, ...] = await self._ask(Call("GET", "v1/sweeps", _sweeps))
        return sweeps

    async def get(self, id: str) -> Sweep:
        """One of them."""
        sweep: Sweep = await self._ask(Call("GET", _path(id), _sweep))
        return sweep

    def watch(self, id: str, start: int = 0) -> AsyncGenerator[Item, None]:
        """Points from number `start` on as they are done, in order; the last item is the sweep."""
        return self._stream(_events(id, start))

    async def points(self, id: str) -> SweepPoints:
        """The points that are done, without waiting for more."""
        found, start = [], 0
        while more := await self._ask(_points(id, start)):
            found += more
            start = more[-1].index + 1
        return SweepPoints(found)

    async def cancel(self, id: str) -> Sweep:
        """End a sweep, whose points stay; one that has ended is forgotten: `deleted` says so."""
        sweep: Sweep = await self._ask(Call("DELETE", _path(id), _sweep))
        return sweep


def _start(options: SweepOptions) -> Call[Sweep]:
    body = json.dumps(sweep_body(options), separators=(",", ":"), allow_nan=False)
    return Call("POST", "v1/sweeps", _sweep, body.encode())


def _points(id: str, start: int) -> Call[list[SweepPoint]]:
    return Call("GET", f"{_path(id)}/points?start={start}", _points_of)


def _events(id: str, start: int) -> StreamCall:
    return StreamCall(f"{_path(id)}/events?start={start}", None, read_event, "GET")


def _sweep(answer: Any) -> Sweep:
    return from_json(Sweep, answer)


def _sweeps(answer: Any) -> tuple[Sweep, ...]:
    return tuple(map(_sweep, answer["sweeps"]))


def _points_of(answer: Any) -> list[SweepPoint]:
    return [from_json(SweepPoint, point) for point in answer["points"]]


def _path(id: str) -> str:
    return f"v1/sweeps/{quote(id, safe='')}"
