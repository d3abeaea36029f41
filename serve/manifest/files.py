"""Files of a bundle in memory: the bytes that were hashed are the bytes that run.

A file that the runtime maps instead could change under a running model: written over in place it
changes what the model computes, cut short it ends the process with SIGBUS.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from serve.manifest.page import FileSpec, Manifest
from serve.manifest.values import BundleError


@dataclass(frozen=True, slots=True, eq=False)
class BundleFiles:
    """Contents of some files of a bundle, as the manifest states them."""

    folder: Path
    contents: Mapping[str, bytes]

    def __getitem__(self, name: str) -> bytes:
        return self.contents[name]


def read_files(folder: Path, manifest: Manifest, names: Iterable[str]) -> BundleFiles:
    """The named files of a bundle; `BundleError` where one isn't as the manifest says."""
    contents = {name: read_file(folder / name, manifest.files[name]) for name in names}
    return BundleFiles(folder, contents)


def read_file(path: Path, expected: FileSpec) -> bytes:
    """A file's bytes; `BundleError` where size or SHA-256 differ from those expected."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BundleError(path, "", "missing; export the bundle again") from None
    found = FileSpec(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    require_same(path, found, expected)
    return content


def require_same(path: Path, found: FileSpec, expected: FileSpec) -> None:
    """`BundleError` where a file's size or SHA-256 differ from those expected."""
    if found.size != expected.size:
        problem = f"found {found.size} bytes, expected {expected.size}; truncated?"
        raise BundleError(path, "size", problem)
    if found.sha256 != expected.sha256:
        problem = f"found {found.sha256}, expected {expected.sha256}; changed?"
        raise BundleError(path, "sha256", problem)
