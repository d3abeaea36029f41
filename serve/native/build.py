"""Compile the C sources of the folders beside this file, once for each machine and compiler.

The library lands in `$XDG_CACHE_HOME/torsor/native/KEY/`, else `~/.cache/torsor/native/KEY/`. KEY
is a hash of all that shapes it, so a changed source or compiler builds anew and two machines with
one home never share. It is written under another name and moved into place: several processes may
build at once. Its last bytes are the SHA-256 of those before, which is checked before it is loaded:
a library that was cut short would end every process that maps it. One that doesn't fit is built
again.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent  # cpu/, ort/ and cuda/
INCLUDES = ("cpu", "ort")  # folders whose headers sources of the others name
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-Wno-psabi")
CUDA_FLAGS = (  # for sm_80, sm_90, and what comes after them
    *("-std=c++17", "-O3", "-Xcompiler", "-fPIC,-fvisibility=hidden"),
    *("-gencode", "arch=compute_80,code=sm_80"),
    *("-gencode", "arch=compute_90,code=[sm_90,compute_90]"),
)
CUDA_LINK = ("-shared", "-cudart", "static", "-Xlinker", "--exclude-libs=ALL,--as-needed")
TIMEOUT = 300  # seconds that one call of the compiler may take


class BuildError(Exception):
    """Why there is no library, in one sentence."""


def build() -> Path:
    """The compiled library: the one in the cache, or a new one."""
    compiler = find_compiler()

    def make(folder: str, library: str) -> None:
        objects = compile_objects(folder, compiler)
        run([*compiler, "-shared", *objects, "-o", library, "-lm"])

    return cached("torsor.so", (".c", ".h"), words_of(compiler), make)


def build_cuda() -> Path:
    """The library with the CUDA kernels as well: nvcc takes half a minute, so ask where a GPU is.

    The CUDA runtime is linked in, so that it loads without CUDA and beside any other version.
    """
    compiler, nvcc = find_compiler(), find_nvcc()

    def make(folder: str, library: str) -> None:
        kernels = f"{folder}/cuda.o"
        run([*nvcc, *CUDA_FLAGS, *includes(), "-c", str(SOURCES / "cuda/cuda.cu"), "-o", kernels])
        objects = compile_objects(folder, compiler, cuda=True)
        run([*nvcc, *CUDA_LINK, *objects, kernels, "-o", library])

    words = [*words_of(compiler), *nvcc, run([*nvcc, "--version"]), *CUDA_FLAGS, *CUDA_LINK]
    return cached("torsor_cuda.so", (".c", ".h", ".cu", ".cuh"), words, make)


def words_of(compiler: list[str]) -> list[str]:
    """What shapes the objects of the CPU, besides their sources."""
    version = run([*compiler, "--version"])
    return [platform.machine(), sys.platform, *compiler, version, *FLAGS, repr(levels())]


def cached(
    name: str, suffixes: tuple[str, ...], words: list[str], make: Callable[[str, str], None]
) -> Path:
    """The file of that name made of these sources and words; `make(folder, file)` makes it anew."""
    digest = hashlib.sha256("\0".join(words).encode())
    for path in sorted(path for path in SOURCES.rglob("*") if path.suffix in suffixes):
        name_in_cache = path.relative_to(SOURCES).as_posix()
        digest.update(name_in_cache.encode() + b"\0" + path.read_bytes())
    library = cache_dir() / digest.hexdigest()[:20] / name
    try:
        if not is_sealed(library):
            library.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=library.parent) as folder:
                make(folder, f"{folder}/{name}")
                seal(Path(folder, name))
                os.replace(f"{folder}/{name}", library)
    except OSError as error:
        remedy = "make it writable, or set XDG_CACHE_HOME to a folder that is"
        raise BuildError(f"the cache folder can't be used: {error}; {remedy}") from error
    return library


def seal(library: Path) -> None:
    """Append the SHA-256 of its bytes to a file; what loads a library looks at none behind it."""
    with library.open("ab") as file:
        file.write(hashlib.sha256(library.read_bytes()).digest())


def is_sealed(library: Path) -> bool:
    """Whether a file is there, and ends in the SHA-256 of the bytes before."""
    try:
        content = library.read_bytes()
    except FileNotFoundError:
        return False
    size = hashlib.sha256().digest_size
    return hashlib.sha256(content[:-size]).digest() == content[-size:]


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


def find_nvcc() -> list[str]:
    """The command of CUDA's compiler: $NVCC, else the one that is there."""
    if named := shlex.split(os.environ.get("NVCC", "")):
        return named
    if found := shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc"):
        return [found]
    raise BuildError("no CUDA compiler was found: looked for $NVCC, nvcc")


def compile_objects(folder: str, compiler: list[str], cuda: bool = False) -> list[str]:
    """One object a level and those that choose between them."""

    def compile_one(name: str, source: str, *flags: str) -> str:
        made = f"{folder}/{name}.o"
        run([*compiler, *FLAGS, *includes(), *flags, "-c", str(SOURCES / source), "-o", made])
        return made

    named = [f"-DTORSOR_{level.upper()}" for level in (*levels(), *(["cuda"] if cuda else []))]
    with ThreadPoolExecutor() as pool:
        jobs = [
            pool.submit(compile_one, "dispatch", "ort/dispatch.c"),
            pool.submit(compile_one, "operators", "ort/operators.c", *named),
        ]
        if cuda:
            jobs.append(pool.submit(compile_one, "operators_cuda", "cuda/operators_cuda.c"))
        for level, flags in levels().items():
            jobs.append(
                pool.submit(compile_one, level, "cpu/kernels.c", *flags, f"-DLEVEL={level}")
            )
        return [job.result() for job in jobs]


def includes() -> list[str]:
    """The flags that let a source include headers of another folder."""
    return [flag for folder in INCLUDES for flag in ("-I", str(SOURCES / folder))]


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
