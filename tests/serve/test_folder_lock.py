"""Locks of folders: one process at a time, however it ends; and the commands that hold them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serve.folder_lock import FolderHeld, hold_folder

HOLD = """
import sys, time
from pathlib import Path
from serve.folder_lock import hold_folder
with hold_folder(Path(sys.argv[1]), Path(sys.argv[2]), "wait"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def holder(folder: Path) -> "subprocess.Popen[str]":
    """Another process that holds a folder until it reads a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(folder / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def try_it(folder: Path) -> None:
    with hold_folder(folder, folder / "lock", "wait for it"):
        assert (folder / "lock").read_text().startswith(f"process {os.getpid()} since ")


@pytest.mark.process
def test_the_second_process_is_told_who_holds_a_folder(tmp_path: Path) -> None:
    process = holder(tmp_path)
    with pytest.raises(FolderHeld) as error:
        try_it(tmp_path)
    told = str(error.value)
    assert told.startswith(f"{tmp_path}: is being written by process {process.pid} since 20")
    assert told.endswith("; wait for it")
    process.communicate("end\n")
    try_it(tmp_path)
    assert not (tmp_path / "lock").exists()


@pytest.mark.process
def test_a_process_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    process = holder(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / "lock").exists()
    try_it(tmp_path)


@pytest.mark.process
def test_many_processes_hold_a_folder_one_after_the_other(tmp_path: Path) -> None:
    """Each adds one to a number that it reads first: nothing is lost, so no two were inside."""
    count = tmp_path / "count"
    count.write_text("0")
    work = """
import sys, time
from pathlib import Path
from serve.folder_lock import FolderHeld, hold_folder
folder, done = Path(sys.argv[1]), 0
while done < 20:
    try:
        with hold_folder(folder, folder / "lock", "wait"):
            number = int((folder / "count").read_text())
            time.sleep(0.002)
            (folder / "count").write_text(str(number + 1))
            done += 1
    except FolderHeld:
        time.sleep(0.001)
"""
    command = [sys.executable, "-c", work, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert count.read_text() == "80"


def train(*more: str) -> list[str]:
    sizes = ("--n", "8", "--window", "16", "--batch", "2", "--quiet")
    return [sys.executable, "-m", "train", "tanh-rnn", *sizes, *more]


@pytest.mark.slow
def test_two_commands_never_write_one_folder(tmp_path: Path) -> None:
    """Two trainings to one --out, then two exports: the second says why it doesn't begin."""
    (tmp_path / "text.txt").write_text("to be or not to be " * 500)
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    data = ("--data", str(tmp_path / "text.txt"), "--out", str(run))
    first = subprocess.Popen(train(*data, "--iterations", "100000"))
    wait_for(run / ".torsor-train.lock")
    for more in ((), ("--resume",)):
        second = subprocess.run(train("--out", str(run), *more), capture_output=True, text=True)
        assert second.returncode == 1 and second.stderr.count("\n") == 1
        assert f"{run}: is being written by process {first.pid} since" in second.stderr
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130 and list(run.glob("checkpoint-*"))

    export = [sys.executable, "-m", "export", str(run), "--out", str(bundle), "--quiet"]
    with hold_folder(bundle, tmp_path / ".bundle.lock", "wait"):
        second = subprocess.run(export, capture_output=True, text=True)
    assert second.returncode == 1 and second.stderr.count("\n") == 1
    assert f"{bundle}: is being written by process {os.getpid()} since" in second.stderr
    subprocess.run(export, check=True)
    check = [sys.executable, "-m", "export", "--check", str(bundle), "--quiet"]
    assert subprocess.run(check).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "run", "bundle"}


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_an_export_removes_nothing_beside_its_place(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be " * 500)
    beside = [tmp_path / name for name in (".bundle.part", ".bundle.old", ".bundle.x.part")]
    for folder in beside:
        folder.mkdir()
        (folder / "mine").write_text("keep")
    data = ("--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "run"))
    subprocess.run(train(*data, "--iterations", "2"), check=True)
    export = [sys.executable, "-m", "export", str(tmp_path / "run"), "--quiet"]
    for _ in range(2):  # new, and in place of another one
        subprocess.run([*export, "--out", str(tmp_path / "bundle")], check=True)
    assert all((folder / "mine").read_text() == "keep" for folder in beside)
