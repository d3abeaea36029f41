"""Life of the server's process under BentoML: how it drains, gives up, and ends when it is useless.

BentoML's web server closes HTTP at the first signal. Streams that run would be cut, and whoever
asks meanwhile would find no server rather than one that says: not ready, try another one.
"""

import asyncio
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc

from serve.bento.supervisor import stop_supervisor
from serve.engine.engine import Engine
from serve.grpc_api.server import set_serving

log = logging.getLogger("torsor")

WATCH_S = 1.0


class Drain:
    """Ends HTTP and gRPC together at SIGTERM and SIGINT, once the streams are done or `grace_s` is
    over. `stop_first` ends what would open more streams. A second signal hurries."""

    def __init__(
        self,
        engine: Engine,
        stop_first: Callable[[], Awaitable[None]],
        grace_s: float,
        server: grpc.aio.Server | None = None,
        checks: Any = None,
    ) -> None:
        self._engine, self._stop_first, self._grace_s = engine, stop_first, grace_s
        self._server, self._checks = server, checks
        self._has_begun = False

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Drain before the handlers that are installed now; only the main thread has any."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._drain_before(number, loop)

    def _drain_before(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        before = signal.getsignal(number)

        def close(signum: int, frame: Any) -> None:
            if callable(before):
                before(signum, frame)

        def handle(signum: int, frame: Any) -> None:
            if self._has_begun:  # the streams end now, and with them the drain
                threading.Thread(target=self._engine.stop, daemon=True).start()
                return
            self._has_begun = True
            after = functools.partial(close, signum, None)
            loop.call_soon_threadsafe(lambda: loop.create_task(self._drain(after)))

        signal.signal(number, handle)

    async def _drain(self, after: Callable[[], None]) -> None:
        try:
            await self._stop_first()
        except Exception:  # such as a full disk: the streams must end well for all that
            log.exception("the sweeps did not stop well")
        drain: Callable[[float], None] = self._engine.drain
        engine = asyncio.get_running_loop().run_in_executor(None, drain, self._grace_s)
        try:
            if self._server is not None:
                await set_serving(self._checks, False)
                stopped = asyncio.create_task(self._server.stop(self._grace_s + 1))
                await engine
                await stopped
            await engine
        finally:
            after()


async def end_when_useless(engine: Engine, parent: int) -> None:
    """End this process once its supervisor is gone, which would hold device and port for ever, or
    its engine has failed: the supervisor then starts another one."""
    while os.getppid() == parent and not engine.failed:
        await asyncio.sleep(WATCH_S)
    signal.raise_signal(signal.SIGTERM)


def give_up(error: Exception) -> NoReturn:
    """Say in one line why nothing can be served, and end; the supervisor too, which would try the
    same again for ever."""
    log.error("torsor serve: %s", error)
    stop_supervisor()
    sys.exit(1)
