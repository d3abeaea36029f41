"""The query `generate`: from a request's fields to chunks of text, the same for HTTP and gRPC.

A request opens one stream a choice, and two where baseline and ablation are written side by side.
Opening checks everything and queues all streams or none; after that, errors come while reading.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from serve.engine.follow import Following
from serve.engine.sampling import SamplingSettings, bias_of, choice_seed, draw_seed
from serve.engine.stop_strings import StopStrings
from serve.engine.stream import Delivery, Opening, Stream
from serve.engine.wakeup import Wakeup
from serve.gateway.request_log import current_key, note_streams
from serve.models import Models
from serve.offload import offload_if_large
from serve.queries.prompts import encode_prompts, encode_stop, report_unknown
from serve.queries.saved_state import decode_state, encode_state
from serve.runtime.bundle import AblatedModel, Bundle
from serve.runtime.vocabulary import Decoder, Vocabulary
from serve.wire.errors import invalid
from serve.wire.requests import GenerateRequest
from serve.wire.responses import UnknownCharacters, Usage

FLUSH_S = 0.02  # the first chunk goes at once, then at most one a choice in this time
ID_BYTES = 3  # about what a token id, or a character, weighs in a request
BASELINE, ABLATED = "baseline", "ablated"


class Character(NamedTuple):
    """One character, its log-probability, and the most probable alternatives."""

    text: str
    logprob: float | None  # None: the first character of an echo
    top: dict[str, float]


@dataclass(slots=True)  # not frozen: there are many, and freezing costs
class Chunk:
    """More text of one choice."""

    index: int
    branch: str  # "baseline" or "ablated" where both are written, else empty
    text: str
    characters: list[Character] | None
    finish_reason: str | None
    stop: str | None  # the stop string that ended it
    seed: int
    state: str | None = None  # at the end, where it was asked for


@dataclass(slots=True)
class Choice:
    """One stream of a request, and what has been read of it."""

    index: int
    branch: str
    seed: int
    stream: Stream
    decoder: Decoder
    prompt_length: int  # characters of the prompt's text
    text: list[str] = field(default_factory=list)  # kept where branches are compared
    started: bool = False


class Generation:
    """The open streams of one request. Read `chunks` to the end, or close it."""

    def __init__(
        self,
        models: Models,
        request: GenerateRequest,
        bundle: Bundle,
        variant: AblatedModel,
        choices: list[Choice],
        following: Following,
        unknown: UnknownCharacters | None,
    ) -> None:
        # Not the request itself: its prompt, or the state to go on from, can be megabytes.
        self.n, self.logprobs, self.echo = request.n, request.logprobs, request.echo
        self._stops, self._unknown = request.stops, unknown
        self.bundle, self.variant, self.choices = bundle, variant, choices
        self.seed = choices[0].seed
        self._state_key, self._following = models.state_key, following

    async def chunks(self, all_or_none: bool = False) -> AsyncIterator[Chunk]:
        """Text as it comes, until every choice has ended; leaving early frees the slots.

        A stream that ends in an error stops no other one: the `RequestError` is raised once all
        have ended. Who has no use for some without the others gets it at once.
        """
        following = self._following
        with following:
            while not following.is_done:
                await following.wait()
                for chunk in self._read():
                    yield chunk
                    if len(self.choices) > 1:
                        await asyncio.sleep(0)  # many of one request must not hold the loop
                if all_or_none:
                    self._raise_error()
                if not following.is_done:
                    await asyncio.sleep(FLUSH_S)
            self._raise_error()

    def close(self) -> None:
        """Cancel the streams that still run."""
        self._following.close()

    @property
    def usage(self) -> Usage:
        """Characters of every prompt, counted once, and of all choices; cached ones weren't run
        again."""
        firsts = [c for c in self.choices if c.branch != ABLATED and c.index % self.n == 0]
        prompt = sum(len(choice.stream.forced) for choice in firsts)
        reused = sum(choice.stream.num_reused for choice in firsts)
        written = sum(choice.stream.num_written for choice in self.choices)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=written,
            total_tokens=prompt + written,
            cached_tokens=reused,
            unknown=self._unknown,
        )

    @property
    def first_difference(self) -> int | None:
        """The character at which baseline and ablated texts part; None if they don't."""
        baseline, ablated = ("".join(choice.text) for choice in self.choices[:2])
        pairs = zip(baseline, ablated, strict=False)
        return next(
            (i for i, (a, b) in enumerate(pairs) if a != b),
            None if len(baseline) == len(ablated) else min(len(baseline), len(ablated)),
        )

    def _raise_error(self) -> None:
        for choice, done in zip(self.choices, self._following.done, strict=True):
            if done and choice.stream.error is not None:
                raise choice.stream.error

    def _read(self) -> Iterator[Chunk]:
        is_alone = len(self.choices) == 1
        for place, arrived in self._following.collect():
            choice, done = self.choices[place], bool(self._following.done[place])
            if not arrived and (not done or (choice.stream.error and is_alone)):
                continue  # an error that is raised next says it better than an empty chunk
            indices = [i for delivery in arrived for i in delivery.characters]
            text = choice.decoder.feed(indices, final=done)
            yield self._chunk(choice, text, arrived, done)
            choice.started = True
            if choice.branch:
                choice.text.append(text)

    def _chunk(self, choice: Choice, text: str, arrived: list[Delivery], done: bool) -> Chunk:
        stream, characters = choice.stream, None
        if (top := self.logprobs) is not None:
            vocabulary = choice.decoder.vocabulary
            characters = [c for d in arrived for c in describe_characters(d, vocabulary, top)]
            if not choice.started and characters and self.echo and len(stream.forced):
                characters[0] = Character(characters[0].text, None, {})
        stop = stream.stop_index
        return Chunk(
            index=choice.index,
            branch=choice.branch,
            text=text,
            characters=characters,
            finish_reason=stream.finish_reason if done else None,
            stop=self._stops[stop] if done and stop is not None else None,
            seed=choice.seed,
            state=self._saved(stream) if done and stream.saved is not None else None,
        )

    def _saved(self, stream: Stream) -> str:
        assert stream.saved is not None
        end = (stream.position, stream.seed, stream.saved)
        return encode_state(self.bundle.manifest, self.variant.hash, *end, self._state_key)


async def open_generation(
    models: Models, request: GenerateRequest, paired: bool = False
) -> Generation:
    """Check a request and queue its streams.

    Raises `RequestError` for a field that isn't as expected, an ablation that doesn't fit, a full
    queue, or a server that is shutting down.
    """
    bundle = models.text_bundle(request.model)
    vocabulary, unknown = models.vocabularies[bundle.name], request.unknown or models.unknown
    size = ID_BYTES * sum(map(len, request.prompts))
    prompts = await offload_if_large(size, encode_prompts, request, vocabulary, unknown)
    request.prompt = ""  # long ones are not held twice: from here on the indices stand for it
    settings = _settings(request, len(vocabulary))
    stops = StopStrings(encode_stop(s, vocabulary) for s in request.stops)
    if paired and request.ablation is None:
        raise invalid("ablation", "missing, expected the edits to compare with")
    variant = await models.variant(bundle, request.ablation)
    opening, seed = await _opening(models, request, bundle, variant)
    wakeup = Wakeup()
    branches = [(BASELINE, bundle.plain), (ABLATED, variant)] if paired else [("", variant)]

    def open_stream(session_of: AblatedModel, index: int) -> Stream:
        return Stream(
            bundle,
            session_of.session,
            prompts[index // request.n].indices,
            max_tokens=request.max_tokens,
            seed=choice_seed(seed, index),
            settings=settings,
            stops=stops,
            deliver_forced=request.echo,
            deliver_logprobs=request.logprobs is not None,
            deliver_logits=bool(request.logprobs),
            opening=opening,
            saves=request.save_state,
            weights=weights_of(bundle, session_of),
            wake=wakeup.ring,
        )

    choices = [
        Choice(
            index,
            branch,
            choice_seed(seed, index),
            open_stream(source, index),
            Decoder(vocabulary),
            prompts[index // request.n].length,
        )
        for index in range(request.n * len(prompts))
        for branch, source in branches
    ]
    streams = [choice.stream for choice in choices]
    following = Following(models.engine, streams, wakeup)
    note_streams(streams, variant.report)
    told = report_unknown(unknown, (prompt.unknown for prompt in prompts))
    return Generation(models, request, bundle, variant, choices, following, told)


def weights_of(bundle: Bundle, variant: AblatedModel) -> str:
    """The cache's name for states of a bundle under an ablation.

    Each key has its own: what others' prompts begin with is not for it to find out.
    """
    key = current_key()
    return f"{bundle.identity}/{variant.hash}/{key.name if key else ''}"


async def _opening(
    models: Models, request: GenerateRequest, bundle: Bundle, variant: AblatedModel
) -> tuple[Opening | None, int]:
    """The start state of a request's streams, and its seed."""
    seed = request.seed
    if request.state is None:
        return None, draw_seed() if seed is None else seed
    where = (bundle.manifest, variant.hash, models.state_key)
    saved = await offload_if_large(len(request.state), decode_state, request.state, *where)
    return Opening(saved.position, saved.rows), saved.seed if seed is None else seed


def describe_characters(delivery: Delivery, vocabulary: Vocabulary, top: int) -> list[Character]:
    """Each character with its log-probability and the `top` most probable ones."""
    texts = [vocabulary.names[i] for i in delivery.characters]
    tops = _top_logprobs(delivery, vocabulary, top) if top else [{} for _ in texts]
    return [Character(*row) for row in zip(texts, delivery.logprobs, tops, strict=True)]


def _top_logprobs(delivery: Delivery, vocabulary: Vocabulary, top: int) -> list[dict[str, float]]:
    # Counted from the character that was taken: where it is the most probable one, its entry is
    # its own log-probability to the last bit, and clients that ask "was it greedy?" compare them.
    assert delivery.logits is not None
    logits = delivery.logits.astype(np.float64)  # (N, V)
    taken = np.take_along_axis(logits, np.array(delivery.characters)[:, None], axis=-1)
    scores = logits - taken + np.array(delivery.logprobs)[:, None]
    best = np.argsort(-logits, axis=-1, kind="stable")[:, :top]
    return [
        {vocabulary.names[i]: float(row[i]) for i in places}
        for row, places in zip(scores, best, strict=True)
    ]


def _settings(request: GenerateRequest, size: int) -> SamplingSettings:
    return SamplingSettings(
        temperature=request.temperature,
        top_k=max(0, request.top_k),
        top_p=request.top_p,
        bias=bias_of(request.logit_bias, size) if request.logit_bias else None,
    )
