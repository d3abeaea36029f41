"""The engine's side of one run of `advance`: what goes in for a group, what comes out for a row.

Letters: B batch, K steps, V vocabulary.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.manifest import Manifest
from serve.sampling import UNIFORM_BITS
from serve.stream import Stream
from serve.wire.errors import RequestError

Array = NDArray[Any]
assert UNIFORM_BITS == 23, "serve.manifest promises multiples of 2^-23"


def make_feeds(group: list[Stream], manifest: Manifest) -> dict[str, Array]:
    """The inputs of `advance` for a group, but for the state; `serve.manifest` explains them."""
    B, V = len(group), len(manifest.vocabulary)
    position = np.array([stream.position for stream in group], np.int64)
    num_steps = np.array([next_steps(stream, manifest) for stream in group], np.int64)
    K = int(num_steps.max())
    forced, uniform = np.full((K, B), -1, np.int64), np.zeros((K, B), np.float32)
    bias = np.zeros((B, V), np.float32)
    for row, stream in enumerate(group):
        start, count = stream.position, int(num_steps[row])
        prompt = stream.forced[start : start + count]
        forced[: len(prompt), row] = prompt
        uniform[:count, row] = stream.uniforms.take(start, count)
        if stream.settings.bias is not None:
            bias[row] = stream.settings.bias
    return {
        "position": position,
        "forced": forced,
        "num_steps": num_steps,
        "uniform": uniform,
        "temperature": np.array([s.settings.temperature for s in group], np.float32),
        "top_k": np.array([s.settings.top_k for s in group], np.int64),
        "top_p": np.array([s.settings.top_p for s in group], np.float32),
        "bias": bias,
    }


def next_steps(stream: Stream, manifest: Manifest) -> int:
    """Steps of the next run: what is left, but never across a correction of the state."""
    steps, every = manifest.graph.max_steps, manifest.graph.correct_every
    if every:
        steps = min(steps, every - stream.position % every)
    return min(steps, stream.length - stream.position)


def rows_finite(outputs: dict[str, Array], manifest: Manifest) -> Array:
    """Which rows (B) came out of a run without a NaN or an infinity."""
    finite: Array = np.asarray(np.isfinite(outputs["logprob"]).all(axis=0))
    for state in manifest.states:
        value = outputs[f"next.{state.name}"]
        finite &= np.isfinite(value).all(axis=tuple(range(1, value.ndim)))
    return finite


def deliver_row(
    stream: Stream, outputs: dict[str, Array], row: int, steps: int, finite: bool
) -> None:
    """Hand one row's characters to its stream, or end it if the row isn't finite."""
    if not finite:
        sentence = (
            f"the model's state or log-probabilities are not finite after character "
            f"{stream.position}; the ablation may drive it out of its range"
        )
        stream.finish("error", RequestError("model_error", sentence))
        return
    logits = outputs["logits"][:steps, row] if stream.deliver_logits else None
    stream.take(outputs["tokens"][:steps, row], outputs["logprob"][:steps, row], logits)
