"""A manifest with targets of every kind, and weights that fit it."""

from typing import Any

import numpy as np

from serve.manifest.page import GraphSpec, Manifest, Parity, Target

n = 12


ALL = ("schur", "zero", "identity")


COUNTS = dict.fromkeys(("correct_every", "max_steps", "opset", "ir_version"), 1)


TARGETS: list[tuple[str, str, Any, tuple[int, ...], tuple[str, ...]]] = [
    ("recurrent", "recurrent", None, (n, n), ALL),
    ("input", "input", None, (n, 3), ("zero",)),
    ("misdescribed", "input", None, (n, 3), ALL),
    ("gate", "gates", ((n, 2 * n), (0, n)), (n, n), ALL),
    ("head", "heads", ((1, 2), (0, 4), (0, 4)), (4, 4), ALL),
    ("bias", "bias", None, (n,), ("zero", "scale")),
]


MANIFEST = Manifest(
    name="small",
    family="tanh-rnn",
    config={},
    num_parameters=0,
    symbols="characters",
    vocabulary=(),
    task=None,
    states=(),
    graph=GraphSpec(inputs=(), outputs=(), operators={}, ranges={}, **COUNTS),
    targets=tuple(
        Target(name=name, weight=weight, slice=bounds, shape=shape, ops=ops, meaning=f"is {name}")
        for name, weight, bounds, shape, ops in TARGETS
    ),
    parity=Parity(tolerance=0.0, max_error=0.0, cases=()),
    files={},
)


def weights() -> Any:
    normal = np.random.default_rng(0).normal
    shapes = {"recurrent": (n, n), "input": (n, 3), "gates": (4 * n, n), "heads": (3, 4, 4)}
    made = {name: normal(0, 0.25, shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "bias": np.ones(n, np.float32)}
