"""Settings of the server's process: freed memory, the garbage collector, and thread switches."""

import ctypes
import faulthandler
import gc
import sys

from serve.native.connections import max_files

RETURNED_BYTES = 512 << 10  # a block of this size has its own pages
SWITCH_S = 0.001  # that a thread may run while others wait; Python's own are 0.005
GC_THRESHOLD = 50_000  # new objects between collections
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of malloc.h


def prepare_process() -> None:
    """To be called before the process does anything."""
    return_large_blocks()
    max_files()  # which raises the soft limit
    faulthandler.enable()  # a signal that ends the process leaves every thread's place in the log
    # A short request changes threads five times, and a long one may be read meanwhile.
    sys.setswitchinterval(SWITCH_S)


def return_large_blocks() -> bool:
    """Let large blocks that are free again go back to the system; False where that can't be set.

    glibc learns from each one to take the next of its size from a heap, and every thread has heaps
    of its own: a prompt of a million characters, read by one thread, encoded by a second and run by
    a third, would leave tens of MiB in each of them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt(TRIM_THRESHOLD, RETURNED_BYTES)
    return bool(mallopt(MMAP_THRESHOLD, RETURNED_BYTES))


def resume_collections() -> None:
    """Move all live objects to the permanent generation, and enable the collector."""
    gc.freeze()
    gc.enable()


def spare_collections() -> None:
    """Keep the garbage collector from what stays: it would look through all of it for every few
    hundred objects that requests make, which was a third of the time of short requests.

    What was garbage until then, some thousand objects, stays too: to find it takes 0.17 s.
    """
    resume_collections()
    gc.set_threshold(GC_THRESHOLD, 20, 100)
