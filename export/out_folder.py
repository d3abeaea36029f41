"""The place of a bundle: what may be replaced, and a folder that appears whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serve.folder_lock import hold_folder
from serve.manifest.page import MANIFEST_FILE
from serve.manifest.read import parse_manifest


def refuse_other_things(out: Path) -> None:
    """Raise `ValueError` unless there is nothing at `out`, or nothing but a bundle."""
    if Path.cwd().is_relative_to(out):
        raise ValueError(
            f"{out}: found the folder you are in, expected one beside or below it, since a bundle "
            "takes the whole place of its folder; leave the folder, or choose another --out"
        )
    if (other := _other_thing(out)) is not None:
        raise ValueError(
            f"{out}: is no bundle: found {other}, expected nothing, an empty folder, or a bundle "
            "and nothing beside it; choose another --out, or remove it"
        )


def _other_thing(out: Path) -> str | None:
    """What of `out` an export must not replace."""
    if not out.is_dir():
        return "a file" if os.path.lexists(out) else None
    names = sorted(path.name for path in out.iterdir())
    if not names:
        return None
    if MANIFEST_FILE not in names:
        return f"{names[0]!r} and no {MANIFEST_FILE}"
    try:
        manifest = parse_manifest(json.loads((out / MANIFEST_FILE).read_bytes()))
    except (ValueError, RecursionError, OSError) as error:
        return f"a {MANIFEST_FILE} of something else ({error})"
    ours = (MANIFEST_FILE, *manifest.files)
    others = [name for name in names if name not in ours or not (out / name).is_file()]
    return f"{others[0]!r}, which its {MANIFEST_FILE} doesn't list" if others else None


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder that takes the place of `out` if the block ends well, and vanishes if not.

    `out` is held meanwhile: `FolderHeld` where another export writes it.
    """
    remedy = "wait until it has ended, or choose another --out"
    with hold_folder(out, out.parent / f".{out.name}.lock", remedy):
        part, old = (_new_folder(out, suffix) for suffix in (".part", ".old"))
        try:
            yield part
            if out.exists():
                refuse_other_things(out)  # again: the export took a while
                os.rename(out, old)
            os.rename(part, out)
        except BaseException:
            if not out.exists() and any(old.iterdir()):
                os.rename(old, out)
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


def _new_folder(out: Path, suffix: str) -> Path:
    """An empty folder beside `out`, with a name that nothing there had: it can be removed again."""
    folder = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.", suffix=suffix))
    folder.chmod(0o777 & ~_umask())
    return folder


def _umask() -> int:
    os.umask(mask := os.umask(0))
    return mask
