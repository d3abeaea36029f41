"""Kernel check: native kernels against the operators' bodies, on the device, on drawn inputs.

    difference = max |a - b| / (1 + |b|)     over outputs and states; infinite where not finite

That is the measure of the export's parity report, so the manifest's tolerance says how much may be.
The inputs have the model's own shapes: batches of one and of several rows, whole runs and rows that
end early, from the initial state and on from what it has become, at a position where the state is
corrected. Of a model of text, characters are forced; after that every row samples one, which may
differ only where its uniform, or for the most probable one the logits, are as close as `NEAR`.

Letters: B rows, K steps, V vocabulary.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.manifest.page import Manifest

Array = NDArray[Any]
Arrays = dict[str, Array]
Run = Callable[[Arrays], Arrays]

BATCHES = (1, 5)
NEAR = 1e-3  # of a sum of probabilities, or between two logits
SEED = 0


def kernel_difference(kernels: Run, bodies: Run, manifest: Manifest, initial: Arrays) -> float:
    """The largest difference of two sessions' runs; infinite where one fails."""
    generator = np.random.default_rng(SEED)
    try:
        return max(
            difference
            for B in BATCHES
            for difference in _differences(kernels, bodies, manifest, initial, B, generator)
        )
    except Exception:  # the runtime raises bare Exceptions: a kernel that fails is a wrong one
        return np.inf


def _differences(
    kernels: Run,
    bodies: Run,
    manifest: Manifest,
    initial: Arrays,
    B: int,
    generator: np.random.Generator,
) -> Iterator[float]:
    state = {name: np.stack([value] * B) for name, value in initial.items()}
    for position in (0, manifest.graph.correct_every):
        feeds = _feeds(manifest, state, position, B, manifest.graph.max_steps, generator)
        found, expected = kernels(feeds), bodies(feeds)
        yield largest_error(found, expected)
        state = {name: expected[f"next.{name}"] for name in initial}
    if manifest.task is None:
        feeds = _feeds(manifest, state, 0, B, 1, generator) | {"forced": np.full((1, B), -1)}
        yield 0.0 if tokens_agree(kernels(feeds), bodies(feeds), feeds) else np.inf


def largest_error(found: Arrays, expected: Arrays) -> float:
    """The difference over all that `expected` names."""
    worst = 0.0
    for name, b in expected.items():
        error = np.abs(found[name].astype(np.float64) - b) / (1.0 + np.abs(b))
        worst = max(worst, float(error.max(initial=0)) if np.isfinite(error).all() else np.inf)
    return worst


def tokens_agree(found: Arrays, expected: Arrays, feeds: Arrays) -> bool:
    """Whether one sampled step took the same characters, but for those that could be either."""
    rows = zip(found["tokens"][0], expected["tokens"][0], strict=True)
    return all(
        mine == other or _could_be_either(mine, other, expected["logits"][0, b], feeds, b)
        for b, (mine, other) in enumerate(rows)
    )


def _could_be_either(mine: int, other: int, logits: Array, feeds: Arrays, row: int) -> bool:
    if not 0 <= mine < len(logits):
        return False
    temperature, uniform = float(feeds["temperature"][row]), float(feeds["uniform"][0, row])
    if temperature == 0:
        return bool(abs(logits[mine] - logits[other]) <= NEAR)
    odds = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    edge = odds.cumsum()[min(mine, other)] / odds.sum()
    return abs(mine - other) == 1 and bool(abs(edge - uniform) <= NEAR)


def _feeds(
    manifest: Manifest,
    state: Arrays,
    position: int,
    B: int,
    K: int,
    generator: np.random.Generator,
) -> Arrays:
    num_steps = np.maximum(1, K - np.arange(B) * K // B)  # the first row takes all of them
    feeds: Arrays = {f"state.{name}": value for name, value in state.items()}
    feeds |= {"position": np.full(B, position), "num_steps": num_steps}
    task, V = manifest.task, len(manifest.vocabulary)
    if task is not None:
        shape = (K, B) if task.inputs == "characters" else (K, B, task.input_size)
        characters = generator.integers(0, task.input_size, shape)
        vectors = generator.standard_normal(shape, np.float32)
        return feeds | {"inputs": characters if task.inputs == "characters" else vectors}
    return feeds | {
        "forced": generator.integers(0, V, (K, B)),
        "uniform": generator.integers(0, 1 << 23, (K, B)).astype(np.float32) / (1 << 23),
        "temperature": np.where(np.arange(B) % 2, 0.0, 1.0).astype(np.float32),
        "top_k": np.zeros(B, np.int64),
        "top_p": np.ones(B, np.float32),
        "bias": np.zeros((B, V), np.float32),
    }
