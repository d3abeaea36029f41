"""Symmetries: changes of weights that no output of the model sees.

A symmetry is data (`serve.manifest.page`): a group of matrices, and how its elements move weights.

| group                | elements                                                        | size   |
|----------------------|-----------------------------------------------------------------|--------|
| `permutation`        | one 1 in every row and column                                   | 2, ... |
| `signed-permutation` | one 1 or -1 in every row and column                             | 1, ... |
| `pairs`              | rotations of the planes (2k, 2k + 1)                            | even   |
| `halves`             | rotations of the planes (k, m + k), m = ⌊size / 2⌋              | 2, ... |
| `special-orthogonal` | orthogonal of determinant 1                                     | 2, ... |
| `orthogonal`         | orthogonal                                                      | 2, ... |
| `unitary`            | U(d) as real matrices [[Re, -Im], [Im, Re]] of size 2d          | even   |
| `special-unitary`    | SU(d), the same                                                 | 4, 6.. |
| `invertible`         | singular values between 1/2 and 2                               | 1, ... |
| `scale`              | a positive number                                               | 1      |
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from serve.ablation.algebra import ALGEBRAS, adjoint, dimension
from serve.manifest.page import Action, Symmetry

Array = NDArray[Any]
Floats = NDArray[np.float64]
NEAREST = 0.25  # ‖g - I‖ of every element that is drawn


def draw(symmetry: Symmetry, seed: int) -> Floats:
    """An element (size, size) of the symmetry's group: the same for the same seed, never near I.

    Raises `ValueError` for a group that isn't one, or has no elements of that size but I.
    """
    if (problem := _group_problem(symmetry)) is not None:
        raise ValueError(f"symmetry {symmetry.name}: group: {problem}")
    size, generator = symmetry.size, np.random.default_rng(seed)
    while np.linalg.norm((g := DRAWS[symmetry.group](size, generator)) - np.eye(size)) < NEAREST:
        pass
    return g


def act(symmetry: Symmetry, g: Floats, weights: Mapping[str, Array]) -> dict[str, Array]:
    """The weights that g changes, as new arrays of their dtype; computed in float64.

    Raises `ValueError` for a g of another size, and weights that the actions don't fit.
    """
    shapes = {name: value.shape for name, value in weights.items()}
    for key, problem in symmetry_problems(symmetry, shapes):
        raise ValueError(f"symmetry {symmetry.name}: {key}: {problem}; export the bundle again")
    if g.shape != (symmetry.size, symmetry.size):
        expected = (symmetry.size, symmetry.size)
        raise ValueError(f"symmetry {symmetry.name}: found g of shape {g.shape}, not {expected}")
    matrices: dict[tuple[bool, str | None], Floats] = {}
    changed: dict[str, Array] = {}
    for action in symmetry.actions:
        kind = action.dual, action.algebra
        if kind not in matrices:
            matrices[kind] = _matrix(action, g)
        name = action.weight
        whole = changed.setdefault(name, np.array(weights[name], dtype=np.float64, order="C"))
        part = whole[tuple(slice(*bounds) for bounds in action.slice or ())]
        part[...] = _moved(matrices[kind], part, action)
    return {name: value.astype(weights[name].dtype) for name, value in changed.items()}


def symmetry_problems(
    symmetry: Symmetry, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, str]]:
    """What doesn't fit: the key in the symmetry, and found and expected in words."""
    if (problem := _group_problem(symmetry)) is not None:
        yield "group", problem
        return
    if not symmetry.actions:
        yield "actions", "found none, expected at least one"
    for i, action in enumerate(symmetry.actions):
        if (fault := _action_problem(symmetry, action, shapes.get(action.weight))) is not None:
            yield f"actions[{i}].{fault[0]}", fault[1]


def _group_problem(symmetry: Symmetry) -> str | None:
    group, size = symmetry.group, symmetry.size
    if group not in DRAWS:
        return f"found {group!r:.60}, expected one of {', '.join(DRAWS)}"
    least, most, every = SIZES.get(group, (2, math.inf, 1))
    if least <= size <= most and size % every == 0:
        return None
    told = f"{least}" if most == least else f"at least {least}{', even' if every == 2 else ''}"
    return f"found size {size}, expected {told} for {group}"


def _action_problem(
    symmetry: Symmetry, action: Action, shape: tuple[int, ...] | None
) -> tuple[str, str] | None:
    if shape is None:
        return "weight", f"found {action.weight!r:.80}, expected one of the bundle's tensors"
    bounds = action.slice or tuple((0, n) for n in shape)
    within = len(bounds) == len(shape) and all(
        0 <= start < stop <= n or start == 0 == stop == n  # a subspace may have no directions
        for (start, stop), n in zip(bounds, shape, strict=True)
    )
    if not within:
        return "slice", f"found {action.slice}, expected (start, stop) per axis within {shape}"
    if not 0 <= action.axis < len(shape):
        return "axis", f"found {action.axis}, expected 0 to {len(shape) - 1}"
    if action.algebra is not None and (action.algebra not in ALGEBRAS or symmetry.size < 2):
        expected = f"expected one of {', '.join(ALGEBRAS)} for matrices of size 2 or more"
        return "algebra", f"found {action.algebra!r:.60} and {symmetry.size}, {expected}"
    start, stop = bounds[action.axis]
    step = _size(symmetry, action) * action.inner
    if action.inner < 1 or step < 1 or (stop - start) % step:
        return "axis", f"found length {stop - start}, expected a multiple of {step}"
    return None


def _size(symmetry: Symmetry, action: Action) -> int:
    return dimension(action.algebra, symmetry.size) if action.algebra else symmetry.size


def _matrix(action: Action, g: Floats) -> Floats:
    A = g if action.algebra is None else adjoint(action.algebra, g)
    return np.asarray(np.linalg.inv(A).T, np.float64) if action.dual else A


def _moved(A: Floats, part: Array, action: Action) -> Array:
    x = np.moveaxis(part, action.axis, -1)
    count = x.shape[-1] // (len(A) * action.inner)  # -1 would be unclear where x has no entries
    split = x.reshape(*x.shape[:-1], count, len(A), action.inner)
    moved = (split.swapaxes(-1, -2) @ A.T).swapaxes(-1, -2)
    return np.moveaxis(moved.reshape(x.shape), -1, action.axis)


def _permutation(size: int, generator: Generator) -> Floats:
    """One cycle through all places: none stays."""
    g, order = np.zeros((size, size)), generator.permutation(size)
    g[order, np.roll(order, 1)] = 1.0
    return g


def _signed(size: int, generator: Generator) -> Floats:
    signs: Floats = generator.choice([-1.0, 1.0], (size, 1))
    return _permutation(size, generator) * signs


def _rotations(first: NDArray[np.int64], second: NDArray[np.int64], size: int, x: Floats) -> Floats:
    g, cos, sin = np.eye(size), np.cos(x), np.sin(x)
    g[first, first], g[second, second] = cos, cos
    g[first, second], g[second, first] = -sin, sin
    return g


def _pairs(size: int, generator: Generator) -> Floats:
    first = np.arange(0, size, 2)
    return _rotations(first, first + 1, size, _angles(size // 2, generator))


def _halves(size: int, generator: Generator) -> Floats:
    m = size // 2
    return _rotations(np.arange(m), np.arange(m, 2 * m), size, _angles(m, generator))


def _angles(count: int, generator: Generator) -> Floats:
    return generator.uniform(math.pi / 4, 7 * math.pi / 4, count)


def _orthogonal(size: int, generator: Generator) -> Floats:
    """Haar-distributed."""
    Q, R = np.linalg.qr(generator.standard_normal((size, size)))
    g: Floats = Q * np.sign(np.diagonal(R))
    return g


def _special_orthogonal(size: int, generator: Generator) -> Floats:
    g = _orthogonal(size, generator)
    g[:, 0] *= np.sign(np.linalg.det(g))
    return g


def _unitary(size: int, generator: Generator, special: bool = False) -> Floats:
    real, imag = generator.standard_normal((2, size // 2, size // 2))
    Q, R = np.linalg.qr(real + 1j * imag)
    Q = Q * (np.diagonal(R) / np.abs(np.diagonal(R)))
    if special:
        Q[:, 0] /= np.linalg.det(Q)
    return np.block([[Q.real, -Q.imag], [Q.imag, Q.real]])


def _special_unitary(size: int, generator: Generator) -> Floats:
    return _unitary(size, generator, special=True)


def _invertible(size: int, generator: Generator) -> Floats:
    left, right = _orthogonal(size, generator), _orthogonal(size, generator)
    return left * np.exp(_logarithms(size, 0.69, generator)) @ right


def _scale(size: int, generator: Generator) -> Floats:
    return np.diag(np.exp(_logarithms(size, 1.0, generator)))


def _logarithms(count: int, most: float, generator: Generator) -> Floats:
    return generator.choice([-1.0, 1.0], count) * generator.uniform(0.3, most, count)


DRAWS: Mapping[str, Callable[[int, Generator], Floats]] = {
    "permutation": _permutation,
    "signed-permutation": _signed,
    "pairs": _pairs,
    "halves": _halves,
    "special-orthogonal": _special_orthogonal,
    "orthogonal": _orthogonal,
    "unitary": _unitary,
    "special-unitary": _special_unitary,
    "invertible": _invertible,
    "scale": _scale,
}
SIZES: Mapping[str, tuple[int, float, int]] = {  # least, most, multiple; else 2 or more
    "signed-permutation": (1, math.inf, 1),
    "pairs": (2, math.inf, 2),
    "unitary": (2, math.inf, 2),
    "special-unitary": (4, math.inf, 2),
    "invertible": (1, math.inf, 1),
    "scale": (1, 1, 1),
}
