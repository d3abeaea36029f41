"""What several test files share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models want one thread
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the public data sets, where there is one."""
    if not (named := os.environ.get("TORSOR_DATA_DIR")):
        pytest.skip("needs the data sets: set TORSOR_DATA_DIR")
    return Path(named)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """A text of 3,600 characters over 16 symbols that small models learn fast."""
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat, and so did I\n"[:36] * 100, encoding="utf-8")
    return path
