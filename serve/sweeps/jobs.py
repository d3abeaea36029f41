"""Sweeps as jobs: taken in, run one at a time, watched, cancelled, and resumed by the next server.

    submit -> queued -> running -> done, cancelled or failed

A server that stops leaves its sweep as it is; the next one on the same data folder goes on with the
points that aren't done. Two servers never share a folder: the second one answers `unavailable`
until the first has let go of it.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from serve import metrics
from serve.gateway.keys import Key
from serve.models import Models
from serve.queries.trials import task_bundle
from serve.sweeps.grid import expand
from serve.sweeps.runner import SweepJob, error_json, make_query
from serve.sweeps.store import FILE, Job, NewSweep, SweepStore
from serve.wire.errors import RequestError
from serve.wire.queries import SweepRequest
from serve.wire.query_responses import Sweep, SweepPoint, point_json

log = logging.getLogger("torsor")

Result = TypeVar("Result")
POINTS_AT_ONCE = 100  # read from the store for those who watch
RETRY_S = 2.0  # until a folder that another server holds is tried again
ENDED = ("done", "cancelled", "failed")


class Sweeps:
    """The sweeps of one server; all methods belong to its event loop."""

    def __init__(self, models: Models, folder: Path) -> None:
        self._models, self._folder = models, folder
        self._store: SweepStore | None = None
        self._thread = ThreadPoolExecutor(1, "sweeps")  # the one that touches the store
        self._news, self._wake = asyncio.Event(), asyncio.Event()
        self._stopping = False
        self._running: tuple[str, asyncio.Task[None]] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Go on with what is in the folder, and then with what comes."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Leave the sweeps as they are for the next server, and let go of the folder."""
        self._stopping = True
        self._tell()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        store, self._store = self._store, None
        if store is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, store.close)
        self._thread.shutdown(wait=False)

    async def submit(self, request: SweepRequest, key: Key | None) -> Sweep:
        """Take a sweep in. `RequestError` for what can't become one."""
        if request.query == "score":
            bundle = self._models.text_bundle(request.model)
        else:
            bundle = task_bundle(self._models, request.model)
        make_query(self._models, bundle, request)
        request.unknown = request.unknown or self._models.unknown  # of this server, to the end
        ablations = await asyncio.to_thread(expand, request, bundle.manifest)
        new = NewSweep(
            id=secrets.token_hex(16),
            model=bundle.name,
            query=request.query,
            identity=bundle.identity,
            owner=None if key is None else key.name,
            request=request.model_dump(),
            ablations=ablations,
        )
        store = await self._opened(make=True)
        await self._do(store.add, new)
        self._wake.set()
        await self._observe(store)
        return await self.get(new.id, key)

    async def get(self, name: str, key: Key | None) -> Sweep:
        """A sweep; `RequestError` if there is none that the key may see."""
        store = await self._opened()
        found = await self._do(store.get, name) if store is not None else None
        if found is None or not _may_see(key, found[1]):
            expected = "the id of one; GET /v1/sweeps lists them"
            raise RequestError(
                "not_found", f"id: found no sweep {name!r:.80}, expected {expected}", "id"
            )
        sweep: Sweep = found[0]
        return sweep

    async def every(self, key: Key | None) -> tuple[Sweep, ...]:
        """The sweeps that the key may see, the newest first."""
        store = await self._opened()
        known = await self._do(store.every) if store is not None else []
        return tuple(sweep for sweep, owner in known if _may_see(key, owner))

    async def points(
        self, name: str, key: Key | None, start: int, limit: int
    ) -> list[tuple[int, str]]:
        """Position and JSON of points in order, from a position on; no more than there are yet."""
        await self.get(name, key)
        return await self._points(name, start, limit)

    async def watch(
        self, name: str, key: Key | None, start: int = 0, idle_s: float | None = None
    ) -> AsyncIterator[tuple[int, str] | Sweep | None]:
        """Points as they are done, and at the end the sweep; None: nothing for so long.

        `RequestError` where the server stops meanwhile.
        """
        while True:
            news, sweep = self._news, await self.get(name, key)
            while points := await self._points(name, start, POINTS_AT_ONCE):
                for point in points:
                    yield point
                start = points[-1][0] + 1
            if sweep.state in ENDED:
                yield sweep
                return
            if self._stopping:
                break
            try:
                async with asyncio.timeout(idle_s):
                    await news.wait()
            except TimeoutError:
                yield None
        raise self._leaving()

    async def cancel(self, name: str, key: Key | None) -> Sweep:
        """End a sweep, whose points stay, or forget one that has ended: `deleted` says which."""
        sweep, store = await self.get(name, key), await self._opened()
        assert store is not None
        cancelled = await self._do(store.end, name, "cancelled")
        if self._running is not None and self._running[0] == name:
            self._running[1].cancel()
        if not cancelled:
            await self._do(store.remove, name)
        sweep = await self.get(name, key) if cancelled else sweep
        self._tell()
        await self._observe(store)
        return replace(sweep, deleted=not cancelled)

    async def _run(self) -> None:
        said = ""
        while True:
            self._wake.clear()
            try:
                store = await self._opened()
                job = await self._do(store.next) if store is not None else None
            except RequestError as error:
                if error.message != said:  # once, not at every try
                    log.warning("sweeps wait: %s", error.message)
                said = error.message
                await asyncio.sleep(RETRY_S)
                continue
            if store is None or job is None:
                await self._wake.wait()
                continue
            task = asyncio.create_task(self._go_on(store, job))
            self._running = (job.id, task)
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()
                self._running = None
            await self._observe(store)

    async def _go_on(self, store: SweepStore, job: Job) -> None:
        async def save(point: SweepPoint) -> None:
            await self._do(store.save, job.id, point.index, point_json(point))
            metrics.count_point(point.error is None)
            self._tell()

        state, error = "done", None
        try:
            if not await self._do(store.begin, job.id):
                return  # it was cancelled meanwhile
            await self._observe(store)
            work = SweepJob(self._models, job, save)
            await self._do(store.compare_with, job.id, await work.open())
            self._tell()
            await work.run()
        except Exception as failed:
            state, error = "failed", error_json(failed)
        await self._do(store.end, job.id, state, error)
        self._tell()

    async def _points(self, name: str, start: int, limit: int) -> list[tuple[int, str]]:
        store = await self._opened()
        return await self._do(store.points, name, start, limit) if store is not None else []

    async def _opened(self, make: bool = False) -> Any:
        """The store; None where nothing has been kept yet, unless it is to be made."""
        if self._stopping:
            raise self._leaving()
        if self._store is None and (make or (self._folder / FILE).exists()):
            self._store = await self._do(self._open)
            self._wake.set()  # another server may have left sweeps there
        return self._store

    def _open(self) -> SweepStore:
        if self._store is not None:  # another caller was faster
            return self._store
        try:
            return SweepStore(self._folder)
        except (OSError, ValueError) as error:
            raise RequestError("unavailable", f"sweeps: {error}") from None

    async def _do(self, function: Callable[..., Result], *arguments: Any) -> Result:
        loop = asyncio.get_running_loop()
        try:
            work = loop.run_in_executor(self._thread, function, *arguments)
        except RuntimeError:  # the thread takes nothing more
            raise self._leaving() from None
        return await asyncio.shield(work)

    def _leaving(self) -> RequestError:
        return RequestError(
            "unavailable",
            f"the server is shutting down; the next one on {self._folder} goes on with its sweeps",
        )

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _observe(self, store: SweepStore) -> None:
        metrics.observe_sweeps(await self._do(store.count))


def _may_see(key: Key | None, owner: str | None) -> bool:
    return key is None or key.manage or key.name == owner


_kept: WeakKeyDictionary[Models, Sweeps] = WeakKeyDictionary()


def keep_sweeps(models: Models, sweeps: Sweeps) -> None:
    """These models' server keeps these sweeps."""
    _kept[models] = sweeps


def sweeps_of(models: Models) -> Sweeps:
    """The sweeps of a server; `RequestError` if it has none."""
    if models not in _kept:
        raise RequestError("unavailable", "sweeps: this server keeps none; use torsor serve")
    return _kept[models]
