"""What the C library does with large blocks that are free again: they go back to the system.

glibc learns from each large block that is freed to take the next one of its size from a heap, and
every thread has its own heaps. A prompt of a million characters, read by one thread, encoded by a
second and run by a third, would leave tens of MiB in each of them.
"""

import ctypes

RETURNED_BYTES = 512 << 10  # a block of this size has its own pages
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of malloc.h


def return_large_blocks() -> bool:
    """Set the thresholds, which also ends glibc's learning; False where the C library has none."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt(TRIM_THRESHOLD, RETURNED_BYTES)
    return bool(mallopt(MMAP_THRESHOLD, RETURNED_BYTES))
