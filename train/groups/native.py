"""The native kernels as torch operators of the domain `torsor_native`.

| operator                          | shapes                                | gives             |
|-----------------------------------|---------------------------------------|-------------------|
| `matrix_exp(S)`                   | (..., d, d)                           | exp(S)            |
| `ortho_step(H, S)`                | (..., d, d) both                      | H exp(S)          |
| `osm_scan(table, xs, H0, mixing)` | (V, d, d), (T, B), (B, d, d), (D, D)  | Hs (T, B, d, d)   |

On the CPU, one thread, float32 or float64. Every S is skew-symmetric; its gradient is the
skew-symmetric part, which is all that it can feel. Each matrix is computed by itself, so what else
is in a batch never shows in its bits. There are no second derivatives.

Letters: B batch, T time, V rows of the table, d matrix size, D = d (d - 1) / 2.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from serve.native.library import Library, load, status

REALS = {torch.float32: "f32", torch.float64: "f64"}
DOMAIN = "torsor_native"
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def available(*tensors: Tensor) -> bool:
    """Whether the kernels are there and take these: on the CPU, float32 or float64, one dtype."""
    dtypes = {tensor.dtype for tensor in tensors}
    return (
        len(dtypes) <= 1
        and dtypes <= REALS.keys()
        and all(tensor.device.type == "cpu" for tensor in tensors)
        and load() is not None
    )


def matrix_exp(S: Tensor) -> Tensor:
    """exp(S) of skew-symmetric S: (..., d, d) -> (..., d, d)."""
    E: Tensor = torch.ops.torsor_native.matrix_exp.default(S)
    return E


def ortho_step(H: Tensor, S: Tensor) -> Tensor:
    """H exp(S) of skew-symmetric S: (..., d, d), (..., d, d) -> (..., d, d)."""
    E: Tensor = torch.ops.torsor_native.ortho_step.default(H, S)
    return E


def osm_scan(table: Tensor, xs: Tensor, H0: Tensor, mixing: Tensor | None = None) -> Tensor:
    """The states of an OSM-RNN over SO(d) after each of the tokens xs.

        H' = H exp(tangent(Γ coordinates(Hᵀ M_x)))

    | argument | shape        |                                    |
    |----------|--------------|------------------------------------|
    | `table`  | (V, d, d)    | M, any matrices                    |
    | `xs`     | (T, B)       | int64, rows of the table           |
    | `H0`     | (B, d, d)    | the first states                   |
    | `mixing` | (D, D)       | Γ on coordinates; None is identity |
    | returns  | (T, B, d, d) | H_1 ... H_T                        |
    """
    Hs: Tensor = torch.ops.torsor_native.osm_scan.default(table, xs, H0, mixing)[0]
    return Hs


def _library() -> Library:
    library = load()
    if library is None:
        raise RuntimeError(f"{status()}; ask train.groups.native.available first")
    return library


def _real(*tensors: Tensor | None) -> str:
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    if len(dtypes) != 1 or not dtypes <= REALS.keys():
        found = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"found {found}, expected torch.float32 or torch.float64 for all")
    return REALS[dtypes.pop()]


def _check(name: str, tensor: Tensor, *shape: int) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: found shape {tuple(tensor.shape)}, expected {shape}")


def _square(name: str, tensor: Tensor) -> tuple[int, int]:
    """Number and size of the matrices in a (..., d, d) tensor."""
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2]:
        raise ValueError(f"{name}: found shape {tuple(tensor.shape)}, expected (..., d, d)")
    return tensor.shape[:-2].numel(), tensor.shape[-1]


def _run(name: str, real: str, tensors: tuple[Tensor | None, ...], *sizes: int) -> None:
    """Call a kernel with the addresses of contiguous tensors; results come last."""
    kept = [None if tensor is None else tensor.contiguous() for tensor in tensors]
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in kept]
    _library().run(name, real, *addresses, *sizes)


def _operator(schema: str, fake: Callable[..., Any]) -> Callable[[_Kernel], _Kernel]:
    """Register a kernel, and `fake` for the shapes of its results.

    Not by `torch.library.custom_op`: its first call imports torch's compiler, seconds of it.
    """

    def register(kernel: _Kernel) -> _Kernel:
        name, arguments = schema.split("(", 1)
        torch.library.define(f"{DOMAIN}::{name}", f"({arguments}")
        torch.library.impl(f"{DOMAIN}::{name}", "CPU", kernel)
        torch.library.register_fake(f"{DOMAIN}::{name}", fake)
        return kernel

    return register


def _like(tensor: Tensor) -> Tensor:
    """An empty contiguous tensor of that shape."""
    return tensor.new_empty(tensor.shape)


@_operator("matrix_exp(Tensor S) -> Tensor", fake=_like)
def _matrix_exp(S: Tensor) -> Tensor:
    n, d = _square("S", S)
    E = _like(S)
    _run("ortho_step", _real(S), (None, S, E), n, d)
    return E


@_operator("matrix_exp_backward(Tensor S, Tensor dE) -> Tensor", fake=lambda S, dE: _like(S))
def _matrix_exp_backward(S: Tensor, dE: Tensor) -> Tensor:
    n, d = _square("S", S)
    dS = _like(S)
    _run("ortho_step_backward", _real(S, dE), (None, S, dE, None, dS), n, d)
    return dS


@_operator("ortho_step(Tensor H, Tensor S) -> Tensor", fake=lambda H, S: _like(S))
def _ortho_step(H: Tensor, S: Tensor) -> Tensor:
    n, d = _square("S", S)
    _check("H", H, *S.shape)
    E = _like(S)
    _run("ortho_step", _real(H, S), (H, S, E), n, d)
    return E


@_operator(
    "ortho_step_backward(Tensor H, Tensor S, Tensor dE) -> (Tensor, Tensor)",
    fake=lambda H, S, dE: (_like(H), _like(S)),
)
def _ortho_step_backward(H: Tensor, S: Tensor, dE: Tensor) -> tuple[Tensor, Tensor]:
    n, d = _square("S", S)
    dH, dS = _like(H), _like(S)
    _run("ortho_step_backward", _real(H, S, dE), (H, S, dE, dH, dS), n, d)
    return dH, dS


def _scan_results(
    table: Tensor, xs: Tensor, H0: Tensor, mixing: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Hs, and for the backward u (empty without mixing) and v."""
    (T, B), d = xs.shape, table.shape[-1]
    D = d * (d - 1) // 2
    u = table.new_empty((T, B, D) if mixing is not None else 0)
    return table.new_empty(T, B, d, d), u, table.new_empty(T, B, D)


@_operator(
    "osm_scan(Tensor table, Tensor xs, Tensor H0, Tensor? mixing) -> (Tensor, Tensor, Tensor)",
    fake=_scan_results,
)
def _osm_scan(
    table: Tensor, xs: Tensor, H0: Tensor, mixing: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    (V, d), (T, B) = _square("table", table), xs.shape
    D = d * (d - 1) // 2
    _check("table", table, V, d, d)
    _check("H0", H0, B, d, d)
    if mixing is not None:
        _check("mixing", mixing, D, D)
    if xs.dtype != torch.int64:
        raise ValueError(f"xs: found {xs.dtype}, expected torch.int64")
    Hs, u, v = _scan_results(table, xs, H0, mixing)
    tensors = (table, xs, H0, mixing, Hs, u, v)
    _run("osm_scan", _real(table, H0, mixing), tensors, T, B, V, d)
    return Hs, u, v


@_operator(
    "osm_scan_backward(Tensor table, Tensor xs, Tensor H0, Tensor? mixing, Tensor Hs, Tensor v, "
    "Tensor dHs) -> (Tensor, Tensor, Tensor)",
    fake=lambda table, xs, H0, mixing, Hs, v, dHs: (_like(table), _like(H0), _like(v)),
)
def _osm_scan_backward(
    table: Tensor, xs: Tensor, H0: Tensor, mixing: Tensor | None, Hs: Tensor, v: Tensor, dHs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of table, H0 and v."""
    (V, d), (T, B) = _square("table", table), xs.shape
    results = (_like(table), _like(H0), _like(v))
    tensors = (table, xs, H0, mixing, Hs, v, dHs, *results)
    _run("osm_scan_backward", _real(table, dHs), tensors, T, B, V, d)
    return results


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _keep_scan(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.set_materialize_grads(False)


def _exp_gradient(ctx: Any, dE: Tensor) -> Tensor:
    dS: Tensor = torch.ops.torsor_native.matrix_exp_backward.default(*ctx.saved_tensors, dE)
    return dS


def _step_gradients(ctx: Any, dE: Tensor) -> tuple[Tensor, Tensor]:
    dH, dS = torch.ops.torsor_native.ortho_step_backward.default(*ctx.saved_tensors, dE)
    return dH, dS


def _scan_gradients(
    ctx: Any, dHs: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, None, Tensor | None, Tensor | None]:
    table, xs, H0, mixing, Hs, u, v = ctx.saved_tensors
    if dHs is None:
        return None, None, None, None
    backward = torch.ops.torsor_native.osm_scan_backward.default
    dtable, dH0, dv = backward(table, xs, H0, mixing, Hs, v, dHs)
    # v_t = Γ u_t: the sum of dv_t ⊗ u_t, over all times at once
    dmixing = None if mixing is None else dv.flatten(0, 1).mT @ u.flatten(0, 1)
    return dtable, None, dH0, dmixing


def _no_second_derivative(ctx: Any, *_: Tensor) -> None:
    raise RuntimeError("the native kernels have no second derivatives: use the plain form")


for _name, _gradients, _setup in (
    ("matrix_exp", _exp_gradient, _keep),
    ("ortho_step", _step_gradients, _keep),
    ("osm_scan", _scan_gradients, _keep_scan),
    ("matrix_exp_backward", _no_second_derivative, None),
    ("ortho_step_backward", _no_second_derivative, None),
    ("osm_scan_backward", _no_second_derivative, None),
):
    torch.library.register_autograd(f"{DOMAIN}::{_name}", _gradients, setup_context=_setup)
