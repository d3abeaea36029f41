"""Patches of circus, BentoML's process supervisor: signals and the exit code.

The supervisor starts the server's process, and another one whenever that ends. Against circus 0.18
(installed as kantoku) as it is: a second signal to stop does nothing more than the first, a
terminal that closes reloads, and the exit code is 0 whatever went wrong.
tests/serve/bento/test_canaries.py fails once that has changed.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

GIVE_UP = signal.SIGUSR2  # from a server's process that can't start, to its supervisor


def teach_supervisor() -> None:
    """In the supervisor, which imports the service before it starts anything: a second signal goes
    on to the server's process, a terminal that closes is a signal to stop (under nohup it is none),
    and a process that gives up ends the supervisor with exit code 1."""
    if "bentoml" not in Path(sys.argv[0]).parts or "serve" not in sys.argv:
        return
    from circus.sighandler import SysHandler  # type: ignore[import-untyped]

    quit, asked = SysHandler.quit, list[Any]()

    def hand_on(handler: Any) -> None:
        if not asked:
            asked.append(handler)
            quit(handler)
            return
        for watcher in handler.controller.arbiter.watchers:
            for process in list(watcher.processes.values()):
                process.send_signal(signal.SIGTERM)

    SysHandler.quit = hand_on
    SysHandler.stop = _ignore_signals  # which would kill from here on
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    SysHandler.handle_hup = SysHandler.handle_winch if ignored else SysHandler.handle_term
    signal.signal(GIVE_UP, _fail)


def leave_hangups() -> None:
    """In the server's process: a terminal that closes tells both, and its supervisor decides."""
    if is_worker():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def stop_supervisor() -> None:
    """End the supervisor of this process, if it has one: the same would go wrong again."""
    if is_worker():
        os.kill(os.getppid(), GIVE_UP)


def is_worker() -> bool:
    """Whether this process is the server's, which the supervisor has started."""
    main = sys.modules["__main__"].__spec__
    return main is not None and main.name.startswith("_bentoml_impl.worker")


def _ignore_signals(handler: Any) -> None:
    for number in handler.SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _fail(number: int, frame: FrameType | None) -> None:
    sys.exit(1)
