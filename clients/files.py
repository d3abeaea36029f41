"""Files that are written whole or not at all."""

import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """A file, whole or not at all; text as UTF-8."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(temporary, path)
