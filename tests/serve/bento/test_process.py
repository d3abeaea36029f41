"""Large blocks that are free again go back to the system, whatever was freed before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import sys
from pathlib import Path
import numpy as np
from serve.bento.process import return_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * {page}

if sys.argv[1] == "yes":
    assert return_large_blocks()
before = resident()
for _ in range(3):  # glibc learns from what is freed
    np.ones(24 << 20, np.uint8)
blocks, between = [], []
for _ in range(40):
    blocks.append(np.ones(1 << 20, np.uint8))
    between.append(np.ones(4096, np.uint8))  # what stays, between what goes
blocks.clear()
print(resident() - before)
"""


def left_behind(returned: str) -> int:
    """Bytes that 40 MiB of freed blocks leave resident."""
    probe = PROBE.format(page=os.sysconf("SC_PAGE_SIZE"))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", probe, returned]
    return int(subprocess.check_output(command, env=environment, text=True))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_large_blocks_that_are_free_do_not_stay_resident() -> None:
    assert left_behind("no") > 30 << 20  # else the test would say nothing
    assert left_behind("yes") < 4 << 20
