"""Connections that fit: the open files of the process, and what is kept of them for probes.

A web server that has no file left closes new connections without a word. So the soft limit of open
files is raised to the hard one, HTTP takes at most `max_connections`, and a probe is answered above
that too. Each connection is one file; gRPC, bundles and what runs have those that are left.
"""

import functools
import logging
import time

log = logging.getLogger("torsor")

OWN_FILES = 128  # of the process itself, and of gRPC's connections
PROBES = 32  # connections above `max_connections`, for probes
MAX_BACKLOG = 2048  # connections that wait to be accepted, which may all come at once
TELL_S = 10.0  # between two lines in the log


@functools.cache
def max_files() -> int:
    """The open files that this process may have, once the soft limit is raised to the hard one."""
    try:
        import resource
    except ImportError:  # on Windows
        return 1 << 16
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS allows less than it says
            return soft
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def backlog() -> int:
    """Connections that the system keeps until they are accepted."""
    return max(16, min(MAX_BACKLOG, max_files() // 4))


def max_connections() -> int:
    """Connections over HTTP at once; those above are told so."""
    return max(16, max_files() - OWN_FILES - PROBES - backlog())


class Crowd:
    """How many connections are open, and a word in the log where they no longer fit."""

    def __init__(self) -> None:
        self.count, self._told = 0, -TELL_S

    def tell(self) -> None:
        """Log that a connection was refused, now and then."""
        if (now := time.monotonic()) - self._told >= TELL_S:
            self._told = now
            log.error(
                "%d connections are open, expected at most %d (max_connections): more are refused; "
                "raise the limit of open files (ulimit -Hn), which is %d",
                *(self.count, max_connections(), max_files()),
            )
