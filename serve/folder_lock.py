"""Locks of folders that a command writes: one process at a time, the second is told who has it.

The lock is a file beside or in the folder. It is the system's (flock), so it ends with its process
however that ends, and the file that is left says nothing to the next one.
"""

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MOST = 300  # bytes of what is said about a holder


class FolderHeld(OSError):
    """Another process writes the folder."""


@contextmanager
def hold_folder(folder: Path, lock: Path, remedy: str) -> Iterator[None]:
    """Hold a folder by the file `lock` as long as the block runs; its parents are made.

    Raises `FolderHeld`, which says who holds it and the `remedy`; `OSError` where the file can't be
    written.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    while (handle := _try_lock(folder, lock, remedy)) is None:
        pass  # the one before removed its file just now
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        os.close(handle)


def _try_lock(folder: Path, lock: Path, remedy: str) -> int | None:
    """A descriptor that holds the lock; None where the file is no longer the one at its place."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, MOST, 0).decode(errors="replace").strip() or "another process"
        os.close(handle)
        problem = f"is being written by {holder}, expected one command at a time"
        raise FolderHeld(f"{folder}: {problem}; {remedy}") from None
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), os.stat(lock)):
            os.ftruncate(handle, 0)
            os.pwrite(handle, _describe_self().encode()[:MOST], 0)
            return handle
    os.close(handle)
    return None


def _describe_self() -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return f"process {os.getpid()} since {since} ({command:.150})"
