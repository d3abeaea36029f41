"""Threads of a run: no more than affinity and the quotas of cgroups allow."""

import os
from pathlib import Path

import pytest

from serve.native.threads import cgroup_cores, run_threads, usable_cores


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/kube/pod\n"}
V1 = {"proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        (V2, None),
        ({"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        (V2 | {"sys/fs/cgroup/kube/pod/cpu.max": "max 100000\n"}, None),
        (V2 | {"sys/fs/cgroup/kube/pod/cpu.max": "150000 100000\n"}, 1.5),
        (V2 | {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        (
            V2
            | {
                "sys/fs/cgroup/kube/pod/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/kube/cpu.max": "300000 100000\n",
            },
            3.0,
        ),
        (
            V1
            | {
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (
            V1
            | {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        (V2 | {"sys/fs/cgroup/cpu.max": "no number\n"}, None),
    ],
)
def test_the_least_quota_on_the_way_up_counts(
    tmp_path: Path, files: dict[str, str], cores: float | None
) -> None:
    assert cgroup_cores(write(tmp_path, files)) == cores


def test_threads_fit_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    assert (usable_cores(tmp_path), run_threads(0, tmp_path)) == (32, 4)
    for quota, cores, threads in (("250000", 3, 2), ("200000", 2, 1), ("10000", 1, 1)):
        write(tmp_path, {"sys/fs/cgroup/cpu.max": f"{quota} 100000"})
        assert (usable_cores(tmp_path), run_threads(0, tmp_path)) == (cores, threads)
    assert run_threads(7, tmp_path) == 7  # who asks knows why
