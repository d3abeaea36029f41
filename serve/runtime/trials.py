"""Trials of a task, taken through a session in process; `serve.manifest.page` defines them.

Letters: T time, N trials, B batch, K steps, X input size, Y output size.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serve.manifest.page import Manifest

Array = NDArray[Any]
Arrays = Mapping[str, Array]
BATCH = 128


class Trials(NamedTuple):
    """Trials side by side, as trials.safetensors has them."""

    inputs: Array  # (T, N) characters, or (T, N, X)
    targets: Array  # (T, N) classes, or (T, N, Y); pooled: T is 1
    mask: Array  # (T, N): 1 where a step counts


def run_pieces(
    run: Callable[[dict[str, Array]], Arrays], manifest: Manifest, initial: Arrays, inputs: Array
) -> Iterator[tuple[int, Array]]:
    """The outputs (K, B, Y) of all runs of some trials, and the step that each begins at."""
    T, B = inputs.shape[:2]
    every, most = manifest.graph.correct_every, manifest.graph.max_steps
    state = {f"state.{name}": np.stack([value] * B) for name, value in initial.items()}
    position = 0
    while position < T:
        # A state is corrected where a run begins, so no run goes past such a position.
        steps = min(most, T - position, every - position % every if every else most)
        numbers = {"position": np.full(B, position), "num_steps": np.full(B, steps)}
        found = run({**state, **numbers, "inputs": inputs[position : position + steps]})
        state = {f"state.{name}": found[f"next.{name}"] for name in initial}
        yield position, found["outputs"]
        position += steps
