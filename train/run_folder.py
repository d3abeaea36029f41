"""Where a run may start: a folder of its own, so that nothing of others is lost."""

from pathlib import Path

from train.byproducts import is_byproduct
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


def _is_left_over(path: Path) -> bool:
    if path.name == "metrics.jsonl":
        return path.is_file() and is_metrics(path)
    return is_byproduct(path) or (path.match(f".{PREFIX}*.part") and path.is_dir())
