"""The native kernels against the plain forms, one by one; and the library where there is none."""

import itertools
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import train.groups.native as native
from serve.native.build import build, is_sealed
from serve.native.library import Library, load, status
from train.groups.matrix_exp import (
    ANGLE,
    MAX_SQUARINGS,
    coefficients,
    matrix_exp_reference,
    num_squarings,
)

ROOT = Path(__file__).parent.parent.parent
SIZES = (1, 2, 3, 8, 15, 22, 23, 24, 33)
# of float64: the polynomial itself is good to 4e-9, and test_float64_... looks closer
TOLERANCES = {torch.float32: 1e-5, torch.float64: 2e-7}


@pytest.fixture(scope="session")
def kernels() -> Library:
    """The library; skips where there is none."""
    if (library := load()) is None:
        pytest.skip(status())
    return library


needs_kernels = pytest.mark.usefixtures("kernels")


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def skew(norm: float, *shape: int) -> Tensor:
    """Random skew-symmetric matrices of that Frobenius norm."""
    A = random(*shape)
    S = A - A.mT
    size: Tensor = torch.linalg.matrix_norm(S)
    return S / size[..., None, None].clamp(min=1e-30) * norm


def skew_part(A: Tensor) -> Tensor:
    return (A - A.mT) / 2


def plain_scan(table: Tensor, xs: Tensor, H: Tensor, mixing: Tensor | None = None) -> Tensor:
    """The formulas of `osm_scan`, one step at a time."""
    d, Hs = H.shape[-1], []
    i, j = torch.triu_indices(d, d, 1)
    for x in xs:
        A = H.mT @ table[x]
        u = (A - A.mT)[:, i, j] / math.sqrt(2)
        v = u if mixing is None else u @ mixing.mT
        upper = torch.zeros_like(A)
        upper[:, i, j] = v / math.sqrt(2)
        H = H @ matrix_exp_reference(upper - upper.mT)
        Hs.append(H)
    return torch.stack(Hs)


def polynomial(S: Tensor) -> Tensor:
    """exp of one matrix by the polynomial and the squarings that the kernels use."""
    frobenius, one = torch.linalg.matrix_norm(S.detach()), S.detach().abs().sum(0).max()
    squarings, c = num_squarings(min(float(frobenius) / math.sqrt(2), float(one))), coefficients()
    S, identity = S * 0.5**squarings, torch.eye(S.shape[-1], dtype=S.dtype)
    E = c[9] * identity
    for k in range(8, 0, -1):
        E = E @ S + c[k] * identity
    power: Tensor = torch.linalg.matrix_power(E @ S + identity, 2**squarings)
    return power


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Measured against the largest number."""
    scale = max([1e-30, *expected.detach().abs().flatten().tolist()])
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=tolerance * scale)


def gradients(output: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    probe = random(*output.shape, seed=1).to(output.dtype)
    return torch.autograd.grad((output * probe).sum(), inputs)


def leaves(*tensors: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Copies in that dtype that want gradients."""
    return [tensor.detach().clone().to(dtype).requires_grad_() for tensor in tensors]


def scan_inputs(
    d: int, mixing: bool, T: int = 5, B: int = 3, V: int = 7
) -> tuple[Tensor, list[Tensor]]:
    """Tokens, and [table, H0] or [table, H0, mixing]."""
    D = d * (d - 1) // 2
    xs = torch.randint(V, (T, B), generator=torch.Generator().manual_seed(2))
    H0 = matrix_exp_reference(skew(2.0, B, d, d))
    G = torch.eye(D, dtype=torch.float64) + 0.3 / max(d, 3) * random(D, D, seed=3)
    return xs, [0.5 / math.sqrt(d) * random(V, d, d, seed=4), H0, *([G] if mixing else [])]


def scan(xs: Tensor, table: Tensor, H0: Tensor, mixing: Tensor | None = None) -> Tensor:
    return native.osm_scan(table, xs, H0, mixing)


def test_the_constants_are_those_of_the_plain_form(kernels: Library) -> None:
    assert kernels.constants() == [*coefficients(), ANGLE, MAX_SQUARINGS]


@needs_kernels
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_steps_equal_the_reference(dtype: torch.dtype) -> None:
    for d, norm in itertools.product(SIZES, (1e-3, 0.7, 3.0, 20.0)):
        given = [random(3, d, d, seed=4).to(dtype), skew(norm, 3, d, d).to(dtype)]
        ours, theirs = leaves(*given, dtype=dtype), leaves(*given, dtype=torch.float64)
        found = native.ortho_step(*ours)
        expected = theirs[0] @ matrix_exp_reference(theirs[1])
        assert_close(found, expected, TOLERANCES[dtype])
        dH, dS = gradients(expected, theirs)
        for f, e in zip(gradients(found, ours), (dH, skew_part(dS)), strict=True):
            assert_close(f, e, TOLERANCES[dtype])


@needs_kernels
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_exponentials_and_their_gradients_equal_the_reference(dtype: torch.dtype) -> None:
    for d, norm in itertools.product((2, 15, 22, 33, 70), (1e-3, 3.0)):
        S = skew(norm, 2, 3, d, d).to(dtype)
        ours, theirs = leaves(S, dtype=dtype), leaves(S, dtype=torch.float64)
        found, expected = native.matrix_exp(*ours), matrix_exp_reference(*theirs)
        assert_close(found, expected, TOLERANCES[dtype])
        [dS] = gradients(expected, theirs)
        assert_close(gradients(found, ours)[0], skew_part(dS), TOLERANCES[dtype])


@needs_kernels
@pytest.mark.parametrize("norm", [1e-3, 1.0, 4.0, 20.0])
def test_float64_equals_the_same_polynomial(norm: float) -> None:
    ours, theirs = (leaves(skew(norm, 15, 15), dtype=torch.float64) for _ in range(2))
    found, expected = native.matrix_exp(*ours), polynomial(*theirs)
    assert_close(found, expected, 1e-12)
    [dS] = gradients(expected, theirs)
    assert_close(gradients(found, ours)[0], skew_part(dS), 1e-10)


@needs_kernels
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("mixing", [True, False])
def test_scans_equal_the_loop(mixing: bool, dtype: torch.dtype) -> None:
    for d in SIZES:
        xs, given = scan_inputs(d, mixing)
        given = [tensor.to(dtype) for tensor in given]
        ours, theirs = leaves(*given, dtype=dtype), leaves(*given, dtype=torch.float64)
        found, expected = scan(xs, *ours), plain_scan(theirs[0], xs, *theirs[1:])
        assert_close(found, expected, TOLERANCES[dtype])
        for f, e in zip(gradients(found, ours), gradients(expected, theirs), strict=True):
            assert_close(f, e, 3 * TOLERANCES[dtype])


@needs_kernels
def test_gradients_are_those_of_the_maps_themselves() -> None:
    A, H = leaves(skew(3.0, 2, 4, 4).triu(), random(2, 4, 4), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda A: native.matrix_exp(A - A.mT), (A,))
    assert torch.autograd.gradcheck(lambda H, A: native.ortho_step(H, A - A.mT), (H, A))
    xs, given = scan_inputs(3, True, T=3, B=2, V=3)
    inputs = leaves(*given, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *tensors: scan(xs, *tensors), inputs)


@needs_kernels
def test_operators_keep_the_rules_of_torch() -> None:
    operators = torch.ops.torsor_native
    S, H = leaves(skew(1.0, 2, 4, 4), random(2, 4, 4), dtype=torch.float32)
    torch.library.opcheck(operators.matrix_exp.default, (S,))
    torch.library.opcheck(operators.ortho_step.default, (H, S))
    for mixing in (True, False):
        xs, given = scan_inputs(4, mixing)
        table, H0, *G = leaves(*given, dtype=torch.float32)
        torch.library.opcheck(operators.osm_scan.default, (table, xs, H0, G[0] if G else None))


@needs_kernels
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_matrix_alone_has_the_bits_that_it_has_in_a_batch(dtype: torch.dtype) -> None:
    norms = torch.tensor([0.1, 7.0, 1.0, 300.0, 2.0], dtype=torch.float64)
    S = (skew(1.0, 5, 22, 22) * norms[:, None, None]).to(dtype)
    E = native.matrix_exp(S)
    assert all(torch.equal(E[i], native.matrix_exp(S[i])) for i in range(5))
    xs, given = scan_inputs(22, True, B=7)
    table, H0, mixing = (tensor.to(dtype) for tensor in given)
    Hs = native.osm_scan(table, xs, H0, mixing)
    for b in range(7):
        alone = native.osm_scan(table, xs[:, b : b + 1], H0[b : b + 1], mixing)
        assert torch.equal(alone[:, 0], Hs[:, b])


@needs_kernels
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_gives_nan_and_leaves_its_batch_mates_alone(bad: float) -> None:
    S, H = skew(8.0, 3, 6, 6).float(), random(3, 6, 6).float()
    S[1, 0, 1], S[1, 1, 0] = bad, -bad
    inputs = leaves(H, S, dtype=torch.float32)
    E = native.ortho_step(*inputs)
    for result in (E, native.matrix_exp(S), *gradients(E, inputs)):
        assert result[1].isnan().all()
        assert result[[0, 2]].isfinite().all()
    assert torch.equal(E[2], native.ortho_step(H[2], S[2]))


@needs_kernels
def test_a_broken_token_breaks_only_the_sequences_that_read_it() -> None:
    xs, given = scan_inputs(6, True, T=4)
    table, H0, mixing = leaves(*given, dtype=torch.float32)
    xs[:], xs[1, 0] = 2, 3
    broken = table.detach().clone()
    broken[3, 0, 1] = math.nan
    Hs = native.osm_scan(broken, xs, H0, mixing)
    assert Hs[1:, 0].isnan().all()
    assert torch.equal(Hs[:, 1:], native.osm_scan(table, xs, H0, mixing)[:, 1:])


@needs_kernels
def test_nothing_gives_nothing() -> None:
    assert native.matrix_exp(torch.zeros(0, 5, 5)).shape == (0, 5, 5)
    xs, given = scan_inputs(4, True)
    table, H0, mixing = leaves(*given, dtype=torch.float32)
    assert native.osm_scan(table, xs[:, :0], H0[:0], mixing).shape == (5, 0, 4, 4)
    Hs = native.osm_scan(table, xs[:0], H0, mixing)
    assert Hs.shape == (0, 3, 4, 4)
    assert all((g == 0).all() for g in gradients(Hs, [table, H0, mixing]))


@needs_kernels
def test_views_and_big_norms_are_taken_as_they_are() -> None:
    S = skew(3.0, 4, 9, 9).float()
    turned = S.mT.flip(0)
    assert not turned.is_contiguous()
    assert torch.equal(native.matrix_exp(turned), native.matrix_exp(turned.contiguous()))
    # 2^20 is beyond what float32 can follow exactly, not beyond the kernels
    assert native.matrix_exp(skew(2.0**20, 2, 9, 9).float()).isfinite().all()


@needs_kernels
def test_mistakes_are_named() -> None:
    S, xs = torch.zeros(2, 4, 4), torch.zeros(3, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match="H: found shape"):
        native.ortho_step(S[:1], S)
    with pytest.raises(ValueError, match=r"expected \(..., d, d\)"):
        native.matrix_exp(S[:, :3])
    with pytest.raises(ValueError, match="expected torch.float32 or"):
        native.ortho_step(S.double(), S)
    with pytest.raises(ValueError, match="mixing: found shape"):
        native.osm_scan(S, xs, S, torch.zeros(5, 5))
    with pytest.raises(IndexError, match="not a row of the table"):
        native.osm_scan(S, xs + 2, S)
    S.requires_grad_()
    [first] = torch.autograd.grad(native.matrix_exp(S).sum(), S, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(first.sum(), S)


@needs_kernels
def test_available_says_what_the_kernels_take() -> None:
    single, double = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    assert native.available() and native.available(single, single) and native.available(double)
    assert not native.available(single, double)
    assert not native.available(single.half())
    assert not native.available(single.to("meta"))


def test_without_avx2_results_are_the_same_up_to_rounding(
    kernels: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels.level == "plain":
        pytest.skip("this processor has no AVX2")
    plain = Library(kernels.path, plain=True)
    assert plain.level == "plain"
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        xs, given = scan_inputs(15, True)
        inputs = leaves(*given, dtype=dtype)
        results = []
        for library in (kernels, plain):
            monkeypatch.setattr(native, "load", lambda library=library: library)
            Hs = scan(xs, *inputs)
            results.append((Hs, *gradients(Hs, inputs)))
        for found, expected in zip(*results, strict=True):
            assert_close(found, expected, tolerance)


def run_python(code: str, **environment: str) -> str:
    """What Python prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


SAY = "from serve.native.library import load, status; print(load() is not None, status())"


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"PATH": "", "CC": ""}, "no C compiler was found"),
        ({"CC": "false"}, "false failed with code 1"),
        ({"CC": "no-such-compiler"}, "the compiler can't be run"),
        ({"TORSOR_NATIVE": "off"}, "TORSOR_NATIVE=off"),
    ],
)
def test_without_a_library_the_reason_is_said(
    environment: dict[str, str], reason: str, tmp_path: Path
) -> None:
    said = run_python(SAY, **{"XDG_CACHE_HOME": str(tmp_path), "TORSOR_NATIVE": "", **environment})
    assert said.startswith("False") and reason in said
    assert said.count("\n") == 1


def test_without_a_library_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: None)
    assert not native.available(torch.zeros(1))
    with pytest.raises(RuntimeError, match=r"ask train\.groups\.native\.available first"):
        native.matrix_exp(torch.zeros(2, 2))


def compiler_script(folder: Path, last_words: str) -> str:
    """A compiler of our own; $out is the file that it is asked for."""
    script = folder / "our-cc"
    find_out = 'for word in "$@"; do [ "$last" = -o ] && out=$word; last=$word; done'
    script.write_text(f"#!/bin/sh\n{find_out}\n{last_words}\n")
    script.chmod(0o755)
    return str(script)


def test_what_the_compiler_says_is_passed_on(tmp_path: Path) -> None:
    words = '[ -z "$out" ] || { echo "In file x.c:" >&2; echo "x.c:1: error: no" >&2; exit 3; }'
    compiler = compiler_script(tmp_path, words)
    said = run_python(SAY, CC=compiler, XDG_CACHE_HOME=str(tmp_path), TORSOR_NATIVE="")
    assert said.startswith("False")
    assert said.endswith("failed with code 3: x.c:1: error: no\n")


def test_two_processes_may_build_at_once(kernels: Library, tmp_path: Path) -> None:
    words = f'[ -z "$out" ] || {{ sleep 0.5; cp {kernels.path} "$out"; echo >> {tmp_path}/calls; }}'
    compiler = compiler_script(tmp_path, words)
    environment = {"CC": compiler, "XDG_CACHE_HOME": str(tmp_path), "TORSOR_NATIVE": ""}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SAY],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert all(process.communicate(timeout=60)[0].startswith("True") for process in processes)
    kept = [path.name for path in (tmp_path / "torsor" / "native").glob("*/*")]
    assert kept == ["torsor.so"]
    assert len((tmp_path / "calls").read_text().splitlines()) >= 4  # 3 or fewer by one alone


def test_the_library_needs_nothing_but_the_c_library(kernels: Library) -> None:
    if not shutil.which("nm") or sys.platform != "linux":
        pytest.skip("needs nm")
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", str(kernels.path)],
        capture_output=True,
        text=True,
        check=True,
    )
    needed = {
        line.split()[-1].split("@")[0] for line in listing.stdout.splitlines() if " U " in line
    }
    memory = {"calloc", "free", "malloc", "memcmp", "memcpy", "memmove", "memset"}
    others = {"__tls_get_addr", "getenv", "qsort", "snprintf", "sqrt", "strcmp"}
    assert needed <= memory | others
    versions = re.findall(r"@GLIBC_2\.(\d+)", listing.stdout)
    assert max(map(int, versions), default=0) <= 14  # any Linux since 2011


def test_the_library_in_the_cache_is_used_again(kernels: Library) -> None:
    before = kernels.path.stat().st_mtime_ns
    assert build() == kernels.path
    assert kernels.path.stat().st_mtime_ns == before


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "cut to a header": lambda content: content[:64],
    "empty": lambda content: b"",
    "changed": lambda content: bytes(len(content)),
    "one byte": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_library_in_the_cache_is_built_again(
    kernels: Library, tmp_path: Path, harm: str
) -> None:
    """It would end the process that loads it, with a signal."""
    library = tmp_path / "torsor" / "native" / kernels.path.parent.name / kernels.path.name
    library.parent.mkdir(parents=True)
    whole = kernels.path.read_bytes()
    library.write_bytes(HARMS[harm](whole))
    told = subprocess.run(
        [sys.executable, "-c", "from serve.native.library import status; print(status())"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told == f"native kernels ({kernels.level}) from {library}\n"
    assert is_sealed(library)
