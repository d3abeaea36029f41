"""Threads of a run on the CPU: as many as this process may use cores, by affinity and by quota.

A container's quota is not seen by `os.cpu_count`: with two CPUs on a machine of 32, four threads
would share what two may use, and the kernel would stop all of them for most of every period.

    quota in cores = time in µs that may be used in a period / period in µs, rounded up
"""

import math
import os
from pathlib import Path

ROOT = Path("/")
MOST = 4  # threads of one run; more gain nothing at the sizes of these models


def usable_cores(root: Path = ROOT) -> int:
    """The cores that this process may use: by its affinity, and by its cgroup's quota (v1, v2)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cgroup_cores(root)
    return max(1, min(allowed or 1, allowed or 1 if quota is None else math.ceil(quota)))


def run_threads(asked: int = 0, root: Path = ROOT) -> int:
    """Threads of one run: those asked for, else at most 4, and one core stays to the caller."""
    return asked or max(1, min(MOST, usable_cores(root) - 1))


def cgroup_cores(root: Path = ROOT) -> float | None:
    """The least quota of the cgroup and those above it, in cores; None: there is none."""
    quotas = [quota for folder in _cgroups(root) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _cgroups(root: Path) -> list[Path]:
    """The folders of this process's cgroup and of those above it, of both versions."""
    mounted, lines = root / "sys/fs/cgroup", _read(root / "proc/self/cgroup").splitlines()
    found = list[Path]()
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            bases = [mounted, mounted / "unified"]
        elif "cpu" in controllers.split(","):
            bases = [mounted / controllers, mounted / "cpu"]
        else:
            continue
        inner = Path(path.lstrip("/"))
        # In a container the path may be the host's, and its own cgroup is what is mounted
        found += [base / part for base in bases for part in (inner, *inner.parents)]
    return found or [mounted]


def _quota(folder: Path) -> float | None:
    """The quota that a folder says, in cores."""
    words = _read(folder / "cpu.max").split()
    if not words:
        words = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    try:
        used, period = map(int, words)
    except ValueError:  # "max", or no such file
        return None
    return used / period if used > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
