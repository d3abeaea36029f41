"""What stands in a run's folder beside its checkpoints and follows from them.

RUN/report.html     the page of `train.report.page`, written whole at every checkpoint
RUN/tensorboard/    event files of `train.report.tensorboard`, if the run asks for them
"""

import shutil
from pathlib import Path

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
