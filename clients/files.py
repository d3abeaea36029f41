"""Files that are written whole or not at all, and folders of them."""

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """A file, whole or not at all; text as UTF-8. `OSError` says where, why and what to do."""
    # Of this process alone: two commands may write one file at a time, and the last one's stays
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except OSError as error:
        expected = "a file that can be written, in a folder that is there; choose another"
        raise OSError(f"{path}: found {error.strerror}, expected {expected}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def make_folder(path: Path, option: str) -> None:
    """A folder that an option names, made unless it is there; `OSError` as above."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        found = "a file"
    except OSError as error:
        found = str(error.strerror)
    else:
        return
    expected = f"a folder, or room for one; choose another {option}"
    raise OSError(f"{path}: found {found}, expected {expected}")
