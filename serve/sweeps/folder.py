"""The folder in which a server keeps what must outlive it: the sweeps and their points.

`--data-folder` or TORSOR_DATA_FOLDER; left out, `torsor` in the user's data home. It is made when
it is first written to. One server at a time uses it.
"""

import fcntl
import os
from pathlib import Path

LOCK_FILE = "sweeps.lock"


class FolderBusy(OSError):
    """Another server uses the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"data_folder: {folder} is used by another server, expected one server at a time; "
            "name another folder with --data-folder or TORSOR_DATA_FOLDER"
        )


def data_folder(named: str) -> Path:
    """The folder that a setting means; empty: the usual one."""
    if named:
        return Path(named)
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "torsor"


def check_data_folder(named: str) -> None:
    """`ValueError` in one line where a named folder can't be written; the usual one is no duty."""
    if not named:
        return
    folder = Path(named)
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = "is no folder" if not there.is_dir() else "can't be written"
        raise ValueError(
            f"data_folder: found {folder}, but {there} {what}, expected a folder that this user "
            "can write; choose another one"
        )


def lock_folder(folder: Path) -> int:
    """Make the folder, and hold it for as long as the returned file descriptor is open.

    Raises `FolderBusy` where another process holds it, `OSError` where it can't be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise FolderBusy(folder) from None
    return handle
