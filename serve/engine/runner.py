"""Batches: the running streams of one bundle, and one run of `advance` for a group of them.

    gather rows -> run -> scatter rows -> deliver

A group shares its weights; a runner may hold several groups. What `advance` needs of every slot but
its state is kept as arrays, so a run costs little a stream.

Letters: S slots, B batch, K steps, V vocabulary.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve import metrics
from serve.engine.prefix_cache import PrefixCache, Prefixes
from serve.engine.sampling import BLOCK, UNIFORM_BITS, uniform_block
from serve.engine.state_table import StateTable
from serve.engine.stream import Stream
from serve.manifest.page import Manifest
from serve.runtime.bundle import Bundle
from serve.wire.errors import RequestError

Array = NDArray[Any]
Arrays = dict[str, Array]


class BatchRunner:
    """Slots for streams of one bundle, with what `advance` needs of each."""

    def __init__(self, bundle: Bundle, num_slots: int, cache: PrefixCache) -> None:
        self.bundle, self.slots = bundle, StateTable(bundle.initial, num_slots)
        self._feeds, self._cache = BatchInputs(bundle.manifest, num_slots), cache
        self._prefixes: dict[int, Prefixes] = {}  # by slot
        self._cut = bundle.manifest.graph.max_steps
        self._code = np.min_scalar_type(len(bundle.manifest.vocabulary) - 1).char  # of a character

    def enter(self, stream: Stream) -> None:
        """Give a stream a slot: with its own opening, a cached beginning, or the initial state."""
        slot = stream.slot = self.slots.acquire(stream.session.initial)
        if stream.opening is not None:
            self.slots.put(slot, stream.opening.rows)
        elif stream.caches and (known := self._cache.find(stream.weights, stream.forced)):
            stream.reuse(known[0])
            self.slots.put(slot, known[1])
        if stream.caches:
            self._prefixes[slot] = Prefixes(stream.forced)
        stream.snapshot = lambda: self.slots.rows(slot)
        self._feeds.enter(slot, stream)

    def leave(self, stream: Stream) -> None:
        """Free a stream's slot."""
        self._prefixes.pop(stream.slot, None)
        self.slots.release(stream.slot)

    def advance(self, group: Sequence[Stream]) -> None:
        """Take every stream of a group some characters further, or to its end."""
        slots = [stream.slot for stream in group]
        metrics.observe_fill(len(slots) / self.slots.num_slots)
        feeds = {**self.slots.gather(slots), **self._feeds.make(group)}
        outputs = group[0].session.run(feeds)
        self.slots.scatter(slots, outputs)
        tokens, K = self._tight(outputs["tokens"]), len(outputs["tokens"])
        logprobs = outputs["logprob"].T
        num_steps: list[int] = feeds["num_steps"].tolist()
        finite = rows_finite(outputs, self.bundle.manifest)
        for row, (stream, steps) in enumerate(zip(group, num_steps, strict=True)):
            if not finite[row]:
                # What came before is good, and a stream may have ended there, whatever the run's
                # length; a state that is asked for isn't.
                steps = 0 if stream.saves else num_finite(logprobs[row, :steps])
            taken = logprobs[row, :steps].tolist() if stream.deliver_logprobs else ()
            logits = outputs["logits"][:steps, row] if stream.deliver_logits else None
            stream.take(tokens[row * K : row * K + steps], taken, logits)
            if not finite[row]:
                stream.finish("error", not_finite(stream))  # no more than it has ended already
                continue
            if stream.caches and stream.position <= stream.first_own:
                self._publish(stream)
            if stream.rewinds:
                self._rewind(stream, row, feeds)

    def _tight(self, tokens: Array) -> "array[int]":
        """Tokens (K, B), a row after the other; small, since those of slow readers wait."""
        return array(self._code, tokens.T.astype(self._code).tobytes())

    def _publish(self, stream: Stream) -> None:
        """Offer the state of a complete beginning of a prompt to streams to come."""
        length = stream.position
        if self._cache.wants(length, len(stream.forced), self._cut):
            digest = self._prefixes[stream.slot].digest(length)
            self._cache.put(stream.weights, length, digest, self.slots.rows(stream.slot))

    def _rewind(self, stream: Stream, row: int, feeds: Arrays) -> None:
        """Undo a stream's part of a run that went past its stop string, to take it up to there."""
        before = {name: feeds[f"state.{name}"][row] for name in self.bundle.initial}
        self.slots.put(stream.slot, before)
        stream.rewind(int(feeds["position"][row]))
        self._feeds.move(stream.slot, stream)


def num_finite(logprobs: Array) -> int:
    """How many come before the first that is no number, or infinite."""
    strays = np.flatnonzero(~np.isfinite(logprobs))
    return int(strays[0]) if len(strays) else len(logprobs)


def not_finite(stream: Stream) -> RequestError:
    """The error of a stream whose model left the numbers."""
    told = (
        f"the model's state or log-probabilities are not finite after character {stream.position}"
    )
    if stream.is_ablated:
        return RequestError("model_error", f"{told}; the ablation may drive it out of its range")
    remedy = "this prompt drives the model, which is not ablated, out of its range"
    return RequestError("model_error", f"{told}; {remedy}")


assert UNIFORM_BITS == 23, "serve.manifest.read promises multiples of 2^-23"


class BatchInputs:
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
