"""Folders of runs: each run has one of its own, so that nothing of others is lost.

RUN/report.html     the page of `train.report.page`, written whole at every checkpoint
RUN/tensorboard/    event files of `train.report.tensorboard`, if the run asks for them
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serve.folder_lock import hold_folder
from train.checkpoint import PREFIX, CheckpointError, is_metrics


def refuse_other_things(folder: Path) -> None:
    """Raise `CheckpointError` unless a run may start here.

    The folder is new or empty, or holds what a run leaves that was killed before a checkpoint.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError(folder, "found a file, expected a folder; choose another --out")
    for path in sorted(folder.iterdir()):
        if not _is_left_over(path):
            raise CheckpointError(
                folder,
                f"found {path.name!r}, expected a new or empty folder; choose another --out, or "
                "go on with --resume if this is a run",
            )


@contextmanager
def hold_run(out: Path, resume: bool) -> Iterator[None]:
    """Hold the folder of a run while it trains, in the first of its processes; `FolderHeld`.

    `out` may be a checkpoint of the run. Where it doesn't start, folders that were made go again.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    folder = out.parent if out.name.startswith(PREFIX) else out
    if not folder.is_dir() and (resume or os.path.lexists(folder)):
        yield  # no folder of a run, as will be said
        return
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with hold_folder(folder, folder / LOCK, "wait until it has ended, or choose another --out"):
            yield
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()


LOCK = ".torsor-train.lock"


def _is_left_over(path: Path) -> bool:
    if path.name == LOCK:
        return path.is_file()
    if path.name == "metrics.jsonl":
        return path.is_file() and is_metrics(path)
    return is_byproduct(path) or (path.match(f".{PREFIX}*.part") and path.is_dir())


REPORT = "report.html"
REPORT_PART = f".{REPORT}.part"  # its name until it is whole
MARK = "<!doctype html>\n<!-- report of a torsor run -->\n"  # how it begins
EVENTS = "tensorboard"
EVENTS_PREFIX = "events.out.tfevents."


def is_byproduct(path: Path) -> bool:
    """Whether a run left it: by its name and by what is in it."""
    if path.name == REPORT_PART:
        return path.is_file()
    if path.name == REPORT:
        return path.is_file() and path.read_bytes().startswith(MARK.encode())
    return path.name == EVENTS and path.is_dir() and all(map(_is_event_file, path.iterdir()))


def remove_byproducts(run: Path) -> None:
    """Make room for those of a run that starts anew."""
    for name in (REPORT, REPORT_PART):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / EVENTS, ignore_errors=True)


def _is_event_file(path: Path) -> bool:
    return path.name.startswith(EVENTS_PREFIX) and path.is_file()
