"""Patches of circus, BentoML's process supervisor: signals and the exit code.

The supervisor starts the server's process, and another one whenever that ends. Against circus 0.18
(installed as kantoku) as it is: a second signal to stop does nothing more than the first, a
terminal that closes reloads, the exit code is 0 whatever went wrong, and a process that has ended
is seen within ten seconds, without a word why.
tests/serve/bento/test_canaries.py fails once that has changed.
"""

import contextlib
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
    _tell_ends()
    _notice_ends()
    SysHandler.stop = _ignore_signals  # which would kill from here on
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    SysHandler.handle_hup = SysHandler.handle_winch if ignored else SysHandler.handle_term
    signal.signal(GIVE_UP, _fail)


def _tell_ends() -> None:
    """Say in the log how a server's process has ended, where it was by a signal or an error."""
    from circus.watcher import Watcher  # type: ignore[import-untyped]

    notify = Watcher.notify_event

    def tell(watcher: Any, topic: str, message: dict[str, Any]) -> None:
        notify(watcher, topic, message)
        code = message.get("exit_code")
        if topic == "reap" and code and not watcher.is_stopping():
            told = f"the server's process {message['process_pid']} {how_it_ended(code)}"
            # Loggers are BentoML's here, and silent
            print(f"torsor serve: {told}", file=sys.stderr, flush=True)

    Watcher.notify_event = tell


def _notice_ends() -> None:
    """Look at once after a process that has ended; circus would within ten seconds."""
    from circus.exc import ConflictError  # type: ignore[import-untyped]
    from circus.sighandler import SysHandler

    async def manage(arbiter: Any) -> None:
        with contextlib.suppress(ConflictError):  # it is at it, and looks again by itself
            await arbiter.manage_watchers()

    def look(handler: Any) -> None:
        controller = handler.controller
        controller.loop.add_callback_from_signal(manage, controller.arbiter)

    SysHandler.SIGNALS = [*SysHandler.SIGNALS, signal.SIGCHLD]
    SysHandler.handle_chld = SysHandler.handle_cld = look  # two names of one signal


def how_it_ended(code: int) -> str:
    """A process's exit code in words: -7 is "was ended by SIGBUS"."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    remedy = "; was memory short?" if -code == signal.SIGKILL else ""
    return f"was ended by {name}{remedy}"


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
