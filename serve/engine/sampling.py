"""Sampling: settings of a stream, seeds, and one uniform number a position.

The uniform of position i of a stream is a pure function of (seed, i), so a text depends on its
seed and on nothing else that runs.
"""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.wire.errors import invalid

FORBIDDEN = -100.0  # the logit bias that OpenAI's clients use to forbid a character
SEED_BITS = 53  # of those that are drawn here: many readers of JSON have doubles only
UNIFORM_BITS = 23  # with more, u · total could round up to total and pass the last character
BLOCK = 1024  # uniforms made at once, which costs little more than one; a multiple of Philox's 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """What `advance` needs to know of one row."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    bias: NDArray[np.float32] | None = None  # (V)


def uniform_block(seed: int, block: int) -> NDArray[np.float32]:
    """Uniforms of positions block · BLOCK and on, multiples of 2^-23 in [0, 1): (BLOCK)."""
    bits = np.random.Philox(key=seed, counter=block * (BLOCK // 4)).random_raw(BLOCK)
    return ((bits >> np.uint64(64 - UNIFORM_BITS)) * 2.0**-UNIFORM_BITS).astype(np.float32)


def uniforms(seed: int, start: int, count: int) -> NDArray[np.float32]:
    """The uniforms of positions start ... start + count - 1 of a stream: (count)."""
    first, last = start // BLOCK, (start + count - 1) // BLOCK
    blocks = [uniform_block(seed, block) for block in range(first, last + 1)]
    return np.concatenate(blocks)[start - first * BLOCK :][:count]


def draw_seed() -> int:
    """A seed for a request that brings none."""
    return secrets.randbits(SEED_BITS)


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index` of a request; the first choice has the request's own."""
    if index == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - SEED_BITS)


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """ln softmax over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def bias_of(entries: dict[str, float], size: int) -> NDArray[np.float32]:
    """The logit bias (V) of a request's entries, by index; `RequestError` if they allow nothing."""
    bias = np.zeros(size, np.float32)
    for key, value in entries.items():
        if not int(key) < size:
            raise invalid("logit_bias", f"found {key}, expected an index below {size}")
        bias[int(key)] = -np.inf if value <= FORBIDDEN else value
    if np.isneginf(bias).all():
        raise invalid("logit_bias", "forbids every character, expected one that may be written")
    return bias
