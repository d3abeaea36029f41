"""The rules of the house: who imports whom, what the rooms hold, what stands once."""

import ast
import functools
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent.parent
DOORS = {  # room: what it may import of the other rooms
    "train": ("serve.manifest", "serve.native", "serve.folder_lock"),
    # What export accepts, serve accepts: it loads a bundle as a server does
    "export": ("train", "serve.manifest", "serve.native", "serve.runtime", "serve.folder_lock"),
    "serve": (),
    "clients": ("serve.wire", "serve.folder_lock"),
}
TORCH_FREE = ("serve", "clients")
HEAVY = ("torch", "onnx", "onnxscript")
PICKLERS = ("pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve")
TOP_LEVEL = {
    *(
        "README.md",
        "ARCHITECTURE.md",
        "Makefile",
        "pyproject.toml",
        "bentofile.yaml",
        ".gitignore",
        ".ci",
    ),
    *("train", "export", "serve", "clients", "tests"),
}
SOURCES = (".py", ".c", ".h", ".cu", ".cuh", ".cpp", ".proto", ".js", ".html", ".css")
LOCK = ".ci/constraints.txt"  # what the pins resolved to, with all that they need
FLOORS = (  # of serve, the highest first; rooms of one floor don't know each other
    ("serve.service", "serve.__main__"),
    ("serve.startup",),
    ("serve.bento", "serve.sweeps", "serve.kserve"),
    ("serve.http_api", "serve.grpc_api"),
    ("serve.queries",),
    ("serve.models", "serve.gateway"),
    ("serve.engine",),
    ("serve.runtime",),
    ("serve.ablation",),
    ("serve.offload", "serve.cancel"),
    ("serve.manifest", "serve.wire", "serve.native"),
    ("serve.metrics", "serve.lru_cache", "serve.settings", "serve.folder_lock", "serve.packages"),
)
MAX_FILES = 15  # of a folder; generated modules don't count
MAX_FILE_LINES = 300
LONG_FILES = {  # and why
    "serve.engine.engine": "one loop owns the streams",
    "train.models.lightning": "a family is one file",
    "train.models.transformer": "a family is one file",
}
MAX_FUNCTION_LINES = 60


def name_of(path: Path) -> str:
    """The dotted name of a module: serve/wire/errors.py is serve.wire.errors."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for room in DOORS for path in sorted((ROOT / room).rglob("*.py"))}
WRITTEN = {name: path for name, path in MODULES.items() if "_pb2" not in name}  # not generated


@functools.cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def package_of(name: str) -> str:
    return name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]


@functools.cache
def imports(name: str) -> tuple[str, ...]:
    """Dotted names that a module imports, wherever in it; of our own the module, not the member."""
    return tuple(_imports(name))


def _imports(name: str) -> Iterator[str]:
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(dots, package_of(name))
            for alias in node.names:
                member = f"{base}.{alias.name}"
                yield base if base in MODULES and member not in MODULES else member


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def functions(name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def tracked_files() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip("needs the git repository")
    return [name for name in listing.stdout.split("\0") if name]


@pytest.mark.parametrize("room", DOORS)
def test_rooms_use_only_the_doors_of_their_neighbours(room: str) -> None:
    neighbours = [other for other in DOORS if other != room]
    wrong = [
        f"{name} imports {imported}"
        for name in MODULES
        if is_inside(name, room)
        for imported in imports(name)
        if any(is_inside(imported, other) for other in neighbours)
        and not any(is_inside(imported, door) for door in DOORS[room])
    ]
    assert wrong == []


@pytest.mark.parametrize("room", TORCH_FREE)
def test_serve_and_clients_never_import_what_trains_and_exports(room: str) -> None:
    wrong = [
        f"{name} imports {imported}"
        for name in MODULES
        if is_inside(name, room)
        for imported in imports(name)
        if any(is_inside(imported, heavy) for heavy in HEAVY)
    ]
    assert wrong == []


def test_no_room_imports_the_tests() -> None:
    assert [name for name in MODULES if any(is_inside(i, "tests") for i in imports(name))] == []


def test_imports_run_in_no_circle() -> None:
    graph = {name: {i for i in imports(name) if i in MODULES} for name in MODULES}
    TopologicalSorter(graph).prepare()  # its CycleError shows the circle


def test_every_init_file_is_one_sentence_and_no_code() -> None:
    inits = {name: tree_of(name) for name, path in MODULES.items() if path.name == "__init__.py"}
    assert inits
    sentences = {name: ast.get_docstring(tree) or "" for name, tree in inits.items()}
    wrong = [n for n, text in sentences.items() if not re.fullmatch(r"[A-Z][^\n]*\.", text)]
    assert wrong == [] and [name for name, tree in inits.items() if len(tree.body) != 1] == []


def test_folders_are_small() -> None:
    sizes = Counter(path.parent for path in WRITTEN.values() if path.name != "__init__.py")
    wrong = {str(folder): n for folder, n in sizes.items() if n > MAX_FILES}
    assert wrong == {}


def floor_of(name: str) -> tuple[int, str] | None:
    """The floor of a module of serve, and its room."""
    rooms = [(i, room) for i, floor in enumerate(FLOORS) for room in floor if is_inside(name, room)]
    return rooms[0] if rooms else None


def test_every_module_of_serve_stands_on_a_floor() -> None:
    inside = [name for name in MODULES if is_inside(name, "serve") and name != "serve"]
    assert [name for name in inside if floor_of(name) is None] == []
    assert [room for floor in FLOORS for room in floor if room not in MODULES] == []


def test_imports_inside_serve_run_down() -> None:
    wrong = [
        f"{name} imports {imported}"
        for name in WRITTEN
        for imported in imports(name)
        if (mine := floor_of(name))
        and (other := floor_of(imported))
        and mine[1] != other[1]
        and other[0] <= mine[0]
    ]
    assert wrong == []


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in MODULES.values()}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_tests_are_no_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize("room", DOORS)
def test_rooms_tell_type_checkers_that_they_are_typed(room: str) -> None:
    assert (ROOT / room / "py.typed").is_file()


@pytest.mark.parametrize("word", ["NotImplementedError", "TODO", "FIXME"])
def test_nothing_is_left_to_be_done_later(word: str) -> None:
    paths = [path for room in DOORS for path in (ROOT / room).rglob("*")]
    sources = [path for path in paths if path.suffix in SOURCES and "_pb2" not in path.name]
    wrong = [str(path) for path in sources if word in path.read_text(encoding="utf-8")]
    assert wrong == []


def test_files_are_short_or_have_a_reason() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in WRITTEN.items()}
    assert {name for name, n in lengths.items() if n > MAX_FILE_LINES} == set(LONG_FILES)


def test_functions_are_short() -> None:
    long = [
        f"{name}.{function.name}"
        for name in WRITTEN
        for function in functions(name)
        if (function.end_lineno or 0) - function.lineno >= MAX_FUNCTION_LINES
    ]
    assert long == []


def test_nothing_is_pickled() -> None:
    assert [n for n in MODULES for i in imports(n) if any(is_inside(i, p) for p in PICKLERS)] == []
    nodes = [(name, node) for name in MODULES for node in ast.walk(tree_of(name))]
    used = {
        (name, ast.unparse(node))
        for name, node in nodes
        if isinstance(node, ast.Attribute) and node.attr in ("load", "save")
    }
    used |= {(name, imported) for name in MODULES for imported in imports(name)}
    assert [name for name, what in used if what in ("torch.load", "torch.save")] == []
    assert [
        n for n, node in nodes if isinstance(node, ast.keyword) and node.arg == "allow_pickle"
    ] == []


def test_the_top_level_holds_the_rooms_and_little_else() -> None:
    assert {name.split("/")[0] for name in tracked_files()} - TOP_LEVEL == set()


@pytest.mark.parametrize("module", ["serve.service", "clients.command_line.main"])
def test_imports_where_what_trains_is_absent(module: str, tmp_path: Path) -> None:
    absent = "; ".join(f"sys.modules[{name!r}] = None" for name in (*HEAVY, "train", "export"))
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; {absent}; import {module}"],
        cwd="/",
        env={**os.environ, "BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_regenerating_the_protobuf_files_changes_nothing(tmp_path: Path) -> None:
    outs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    contracts = [f"serve/wire/{name}.proto" for name in ("torsor", "open_inference")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outs, *contracts]
    subprocess.run(command, cwd=ROOT, check=True)
    made = {path.name: path.read_bytes() for path in (tmp_path / "serve/wire").iterdir()}
    kept = {path.name: path.read_bytes() for path in (ROOT / "serve/wire").glob("*_pb2*.py*")}
    assert made == kept


def test_the_bento_installs_the_serve_extra_word_for_word() -> None:
    bento = yaml.safe_load((ROOT / "bentofile.yaml").read_text(encoding="utf-8"))
    extra = pyproject()["project"]["optional-dependencies"]["serve"]
    assert bento["python"]["packages"] == extra


def pins() -> set[str]:
    """Every requirement of pyproject.toml as NAME==VERSION, without markers."""
    page = pyproject()
    groups = [page["build-system"]["requires"], *page["project"]["optional-dependencies"].values()]
    lines = {line for group in groups for line in group if not line.startswith("torsor[")}
    return {line.split(";")[0].strip() for line in lines}


def test_every_requirement_is_pinned_and_to_one_version() -> None:
    assert [pin for pin in pins() if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    assert len({pin.split("==")[0] for pin in pins()}) == len(pins())


def test_the_lock_agrees_with_the_pins() -> None:
    lines = (ROOT / LOCK).read_text(encoding="utf-8").splitlines()
    locked = dict(line.split("==") for line in lines if "==" in line)
    versions = dict(pin.split("==") for pin in pins())
    assert {name: locked[name] for name in versions if name in locked}.items() <= versions.items()


def test_the_pin_of_a_tool_stands_in_one_place() -> None:
    page = pyproject()
    tools = page["build-system"]["requires"] + page["project"]["optional-dependencies"]["dev"]
    paths = [ROOT / name for name in tracked_files() if name != LOCK]
    sources = [path for path in paths if path.is_file() and path.stat().st_size < 1_000_000]
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in sources]
    for tool in (pin.split("==")[0] for pin in tools):
        pattern = re.compile(rf"(?<![\w-]){re.escape(tool)}==")
        assert sum(len(pattern.findall(text)) for text in texts if f"{tool}==" in text) == 1, tool


def test_exactly_one_onnxruntime_is_installed() -> None:
    names = [distribution.metadata["Name"] for distribution in distributions()]
    assert len([name for name in names if name in ("onnxruntime", "onnxruntime-gpu")]) == 1


def test_module_docstrings_begin_with_their_noun() -> None:
    clause = re.compile(r"(What|How|Whether|Whose|Where|Which|Who|Why)\b")
    firsts = {name: ast.get_docstring(tree_of(name)) or "" for name in WRITTEN}
    assert [name for name, text in firsts.items() if clause.match(text)] == []
