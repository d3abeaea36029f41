"""What `advance` needs of every slot but its state, kept as arrays: a run costs little a stream.

Letters: S slots, B batch, K steps, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.engine.sampling import BLOCK, UNIFORM_BITS, uniform_block
from serve.engine.stream import Stream
from serve.manifest.read import Manifest

Array = NDArray[Any]
assert UNIFORM_BITS == 23, "serve.manifest.read promises multiples of 2^-23"


class FeedTable:
    """Settings, positions and random numbers of the streams that hold slots."""

    def __init__(self, manifest: Manifest, num_slots: int) -> None:
        S, V = num_slots, len(manifest.vocabulary)
        graph = manifest.graph
        # Runs end where the state is corrected and where a block of uniforms does, so that a
        # stream's runs are cut in the same places whatever else runs.
        self._cuts = [n for n in (graph.max_steps, graph.correct_every, BLOCK) if n]
        self._position, self._own, self._end = (np.zeros(S, np.int64) for _ in range(3))
        self._temperature, self._top_p = np.zeros(S, np.float32), np.ones(S, np.float32)
        self._top_k, self._bias = np.zeros(S, np.int64), np.zeros((S, V), np.float32)
        self._uniform, self._block = np.zeros((S, BLOCK), np.float32), np.full(S, -1, np.int64)

    def enter(self, slot: int, stream: Stream) -> None:
        """A stream takes a slot, at its position."""
        settings = stream.settings
        self._temperature[slot], self._top_p[slot] = settings.temperature, settings.top_p
        self._top_k[slot] = settings.top_k
        self._bias[slot] = 0 if settings.bias is None else settings.bias
        self._block[slot] = -1
        self.move(slot, stream)

    def move(self, slot: int, stream: Stream) -> None:
        """The stream is somewhere else than where its last run left it, or ends elsewhere."""
        self._position[slot] = stream.position
        self._own[slot], self._end[slot] = stream.first_own, stream.end

    def make(self, group: Sequence[Stream]) -> dict[str, Array]:
        """The inputs of `advance` for streams that run, but for the state; moves them on."""
        slots = np.array([stream.slot for stream in group])
        position = self._position[slots]
        num_steps = self._end[slots] - position
        for every in self._cuts:
            np.minimum(num_steps, every - position % every, out=num_steps)
        self._position[slots] += num_steps
        K = int(num_steps.max())
        return {
            "position": position,
            "forced": self._forced(group, slots, position, K),
            "num_steps": num_steps,
            "uniform": self._uniforms(group, slots, position, K),
            "temperature": self._temperature[slots],
            "top_k": self._top_k[slots],
            "top_p": self._top_p[slots],
            "bias": self._bias[slots],
        }

    def _forced(self, group: Sequence[Stream], slots: Array, position: Array, K: int) -> Array:
        forced = np.full((K, len(group)), -1, np.int64)
        for row in np.flatnonzero(position < self._own[slots]).tolist():
            start = int(position[row]) - group[row].start
            prompt = group[row].forced[start : start + K]  # a row doesn't look past its num_steps
            forced[: len(prompt), row] = prompt
        return forced

    def _uniforms(self, group: Sequence[Stream], slots: Array, position: Array, K: int) -> Array:
        blocks = position // BLOCK
        for row in np.flatnonzero(self._block[slots] != blocks).tolist():
            slot, block = slots[row], int(blocks[row])
            self._uniform[slot] = uniform_block(group[row].seed, block)
            self._block[slot] = block
        places = position % BLOCK + np.arange(K)[:, None]  # (K, B); a resting row's don't count
        return self._uniform[slots, np.minimum(places, BLOCK - 1)]


def rows_finite(outputs: dict[str, Array], manifest: Manifest) -> list[bool]:
    """Which rows (B) came out of a run without a NaN or an infinity."""
    finite: Array = np.isfinite(outputs["logprob"].sum(axis=0))
    for state in manifest.states:
        value = outputs[f"next.{state.name}"]
        finite &= np.isfinite(value).reshape(len(value), -1).all(axis=1)
    found: list[bool] = finite.tolist()
    return found
