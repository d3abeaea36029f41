"""Every path and every dotted name of ours that a text mentions is there.

Texts are Markdown, docstrings and comments. A path is one below a room, such as
serve/engine/runner.py; a dotted name begins with a room, such as `serve.engine.runner`.
"""

import ast
import functools
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("train", "export", "serve", "clients", "tests")
PATH = re.compile(rf"(?<![\w./-])((?:{'|'.join(ROOMS)})/[\w./-]*[\w/])(?![\w*{{<])")
DOTTED = re.compile(rf"`((?:{'|'.join(ROOMS[:4])})(?:\.\w+)+)`")
SOURCES = (".c", ".h", ".cu", ".cuh", ".cpp", ".proto")


def tracked(*endings: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip("needs the git repository")
    paths = [ROOT / name for name in listing.stdout.split("\0") if name.endswith(endings)]
    return [path for path in paths if path.is_file() and "_pb2" not in path.name]


def texts_of(path: Path) -> Iterator[str]:
    """What a file says to people: all of Markdown and C, docstrings and comments of Python."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines, and what its classes do, as CLASS.NAME."""
    found = set[str]()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = [
                n for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            found |= {f"{node.name}.{one.name}" for one in inner}
            fields = [n.target for n in node.body if isinstance(n, ast.AnnAssign)]
            found |= {f"{node.name}.{ast.unparse(field)}" for field in fields}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for t in targets for one in ast.walk(t) if isinstance(one, ast.Name)}
    return frozenset(found)


def is_there(dotted: str) -> bool:
    """Whether a dotted name is a package, a module, or something that one defines."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:length])
        if place.is_dir():
            return length == len(parts)
        if (module := place.with_suffix(".py")).is_file():
            rest = ".".join(parts[length:])
            return not rest or rest in names_in(module)
    return False


def missing(text: str) -> list[str]:
    """The paths and names of a text that aren't there."""
    paths = [m[1].rstrip("./") for m in PATH.finditer(text)]
    wrong = [path for path in paths if not (ROOT / path).exists()]
    return wrong + [m[1] for m in DOTTED.finditer(text) if not is_there(m[1])]


def test_every_path_and_name_that_a_text_mentions_is_there() -> None:
    files = tracked(".md", ".py", "Makefile", *SOURCES)
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in files
        if (found := [name for text in texts_of(path) for name in missing(text)])
    }
    assert wrong == {}


PAIR = re.compile(r"`(serve/[\w/]+\.py|train/[\w/]+\.py|export/[\w/]+\.py)`, `([\w.]+)`")


def test_every_function_that_the_architecture_names_is_in_its_file() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    pairs = PAIR.findall(text)
    assert len(pairs) > 12
    assert [(path, name) for path, name in pairs if name not in names_in(ROOT / path)] == []


def test_every_folder_of_the_rooms_has_its_line() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    inits = [path for path in tracked("__init__.py") if path.parent.name not in ROOMS]
    folders = [path.parent.relative_to(ROOT).as_posix() for path in inits]
    assert [folder for folder in folders if f"`{folder}/`" not in text] == []


def test_a_wrong_name_is_found() -> None:
    names = ["serve/engine/none" + ".py", "serve.engine.none", "serve.engine.runner.None_"]
    assert missing("see {}, `{}`, `{}`, serve/engine/".format(*names)) == names
    assert missing("serve/engine/runner.py and `serve.engine.runner.BatchRunner.advance`") == []
