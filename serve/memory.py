"""How the process is to treat memory that is free again, and objects that stay."""

import ctypes
import gc

RETURNED_BYTES = 512 << 10  # a block of this size has its own pages
GC_THRESHOLD = 50_000  # new objects between collections
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of malloc.h


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


def spare_collections() -> None:
    """Keep the garbage collector from what stays: it would look through all of it for every few
    hundred objects that requests make, which was a third of the time of short requests."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(GC_THRESHOLD, 20, 100)
