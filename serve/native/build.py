"""Compile the C sources of this folder, once for each machine and compiler.

The library lands in `$XDG_CACHE_HOME/torsor/native/KEY/`, else `~/.cache/torsor/native/KEY/`. KEY
is a hash of all that shapes it, so a changed source or compiler builds anew and two machines with
one home never share. It is written under another name and moved into place: several processes may
build at once.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-Wno-psabi")
TIMEOUT = 300  # seconds that one call of the compiler may take


class BuildError(Exception):
    """Why there is no library, in one sentence."""


def build() -> Path:
    """The compiled library: the one in the cache, or a new one."""
    compiler = find_compiler()
    version = run([*compiler, "--version"])
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h"))
    parts = [platform.machine(), sys.platform, *compiler, version, *FLAGS, repr(levels())]
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    library = cache_dir() / digest.hexdigest()[:20] / "torsor.so"
    if not library.is_file():
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            compile_into(library, compiler)
        except OSError as error:
            raise BuildError(f"the cache folder can't be used: {error}") from error
    return library


def levels() -> dict[str, tuple[str, ...]]:
    """The instruction sets that are built for this machine's kind, with the compiler's flags."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return {"plain": (), "avx2": ("-mavx2", "-mfma")}
    return {"plain": ()}


def cache_dir() -> Path:
    """Where libraries are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "torsor", "native")


def find_compiler() -> list[str]:
    """The command of the compiler: $CC, else the first that is there."""
    if named := shlex.split(os.environ.get("CC", "")):
        return named
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise BuildError(f"no C compiler was found: looked for $CC, {', '.join(COMPILERS)}")


def compile_into(library: Path, compiler: list[str]) -> None:
    """One object a level and those that choose between them, linked and moved into place."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:

        def compile_one(name: str, source: str, *flags: str) -> str:
            made = f"{folder}/{name}.o"
            run([*compiler, *FLAGS, *flags, "-c", str(SOURCES / source), "-o", made])
            return made

        with ThreadPoolExecutor() as pool:
            named = [f"-DTORSOR_{level.upper()}" for level in levels()]
            jobs = [
                pool.submit(compile_one, "dispatch", "dispatch.c"),
                pool.submit(compile_one, "operators", "operators.c", *named),
            ]
            for level, flags in levels().items():
                define = f"-DLEVEL={level}"
                jobs.append(pool.submit(compile_one, level, "kernels.c", *flags, define))
            objects = [job.result() for job in jobs]
        run([*compiler, "-shared", *objects, "-o", f"{folder}/torsor.so", "-lm"])
        os.replace(f"{folder}/torsor.so", library)


def run(command: list[str]) -> str:
    """What a command prints."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the compiler can't be run: {error}") from error
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        first = next((line for line in lines if "error" in line), lines[0] if lines else "no words")
        raise BuildError(f"{command[0]} failed with code {done.returncode}: {first}")
    return done.stdout
