"""Completions as OpenAI's clients read them, and pairs, over HTTP."""

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from serve.http_api.responses import json_text
from serve.queries.generate import ABLATED, BASELINE, Chunk, Generation
from serve.queries.logprobs import Logprobs, joined
from serve.wire import responses
from serve.wire.codec import JsonObject, shallow, to_json
from serve.wire.no_op_fields import StreamOptions
from serve.wire.responses import (
    Branch,
    Completion,
    CompletionChoice,
    CompletionHead,
    Pair,
    PairEvent,
    PairSummary,
)

DONE = "data: [DONE]\n\n"


async def completion_events(generation: Generation, asked: StreamOptions) -> AsyncIterator[str]:
    """One event a chunk, with usage so far if asked for; then usage if asked for; then [DONE]."""
    head = to_json(CompletionHead(**_head(generation)))
    report_once = {"ablation": generation.variant.report}
    logprobs, plain = _logprobs_of(generation), PlainEvents(head)
    async for chunk in generation.chunks():
        is_plain = chunk.characters is None and chunk.finish_reason is None and not report_once
        if is_plain and not asked.continuous_usage_stats:
            yield plain.text(chunk)
            continue
        shown = None if logprobs is None else logprobs[chunk.index].of(chunk)
        choice = completion_choice(chunk, shown)
        usage = {"usage": generation.usage} if asked.continuous_usage_stats else {}
        event = {**head, "choices": [choice], **usage, **report_once}
        yield f"data: {await json_text(event)}\n\n"
        report_once = {}  # it can be long
    if asked.include_usage:
        yield event_text({**head, "choices": [], "usage": to_json(generation.usage)})
    yield DONE


class PlainEvents:
    """The events in the middle of a stream, which differ in their text only: made by hand.

    Equal to `event_text` of the same choice; most of the events there are.
    """

    def __init__(self, head: JsonObject) -> None:
        self._start = event_text({**head, "choices": []}).removesuffix("]}\n\n")

    def text(self, chunk: Chunk) -> str:
        """The event of a chunk without log-probabilities that isn't its choice's last."""
        return (
            f'{self._start}{{"index":{chunk.index},"text":{json.dumps(chunk.text)},'
            f'"finish_reason":null,"stop_string":null,"seed":{chunk.seed},"logprobs":null}}]}}\n\n'
        )


async def whole_completion(generation: Generation) -> Completion:
    """The answer of a request that doesn't stream."""
    logprobs, parts = _logprobs_of(generation), dict[int, list[Chunk]]()
    found: dict[int, list[responses.Logprobs]] = {}
    async for chunk in generation.chunks(all_or_none=True):
        parts.setdefault(chunk.index, []).append(chunk)
        if logprobs is not None:
            found.setdefault(chunk.index, []).append(logprobs[chunk.index].of(chunk))
            chunk.characters = None  # there can be many
    choices = tuple(
        completion_choice(join_chunks(parts[i]), joined(found[i]) if found else None)
        for i in range(len(generation.choices))
    )
    return Completion(
        **_head(generation),
        choices=choices,
        usage=generation.usage,
        ablation=generation.variant.report,
    )


def join_chunks(chunks: list[Chunk]) -> Chunk:
    """Consecutive chunks of one choice as one; without its characters."""
    last = chunks[-1]
    return Chunk(
        index=last.index,
        branch=last.branch,
        text="".join(chunk.text for chunk in chunks),
        characters=None,
        finish_reason=last.finish_reason,
        stop=last.stop,
        seed=last.seed,
        state=last.state,
    )


def completion_choice(chunk: Chunk, logprobs: responses.Logprobs | None) -> CompletionChoice:
    """A chunk as OpenAI's clients read a choice."""
    return CompletionChoice(
        index=chunk.index,
        text=chunk.text,
        finish_reason=chunk.finish_reason,
        stop_string=chunk.stop,
        seed=chunk.seed,
        logprobs=logprobs,
        state=chunk.state,
    )


async def pair_events(generation: Generation) -> AsyncIterator[str]:
    """One event a chunk of either branch, then the summary, then [DONE]."""
    async for chunk in generation.chunks():
        event = PairEvent(
            index=chunk.index,
            branch=chunk.branch,
            text=chunk.text,
            finish_reason=chunk.finish_reason,
            stop_string=chunk.stop,
            seed=chunk.seed,
        )
        yield event_text(event)
    yield event_text({"summary": PairSummary(**_summary(generation))})
    yield DONE


async def whole_pair(generation: Generation) -> Pair:
    """Both texts, and where they first differ."""
    ends: dict[str, str | None] = {}
    async for chunk in generation.chunks(all_or_none=True):
        ends[chunk.branch] = chunk.finish_reason
    texts = {c.branch: "".join(c.text) for c in generation.choices[:2]}

    def written(branch: str) -> Branch:
        return Branch(text=texts[branch], finish_reason=ends[branch])

    return Pair(**_summary(generation), baseline=written(BASELINE), ablated=written(ABLATED))


def _summary(generation: Generation) -> JsonObject:
    return {
        "model": generation.bundle.name,
        "seed": generation.seed,
        "ablation": generation.variant.report,
        "first_difference": generation.first_difference,
        "usage": generation.usage,
    }


def _head(generation: Generation) -> JsonObject:
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": generation.bundle.name,
    }


def _logprobs_of(generation: Generation) -> list[Logprobs] | None:
    """A `Logprobs` for each choice; None where they weren't asked for."""
    if (top := generation.logprobs) is None:
        return None
    return [Logprobs(choice, generation.echo, top) for choice in generation.choices]


def event_text(event: Any) -> str:
    """A server-sent event of a response, or of other JSON."""
    return f"data: {json.dumps(event, separators=(',', ':'), default=shallow)}\n\n"
