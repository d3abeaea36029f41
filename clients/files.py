"""Files that are written whole or not at all."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """A file, whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
