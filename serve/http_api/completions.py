"""Completions as OpenAI's clients read them, and pairs, over HTTP."""

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from serve.http_api.responses import json_text
from serve.queries.generate import ABLATED, BASELINE, Chunk, Generation
from serve.queries.logprobs import Logprobs, joined

DONE = "data: [DONE]\n\n"

Json = dict[str, Any]


async def completion_events(generation: Generation, with_usage: bool) -> AsyncIterator[str]:
    """One event a chunk, then usage if asked for, then [DONE]."""
    head = _completion_head(generation)
    report_once = {"ablation": generation.variant.report}
    logprobs, plain = _logprobs_of(generation), PlainEvents(head)
    async for chunk in generation.chunks():
        if chunk.characters is None and chunk.finish_reason is None and not report_once:
            yield plain.text(chunk)
            continue
        shown = None if logprobs is None else logprobs[chunk.index].page(chunk)
        choice = completion_choice(chunk, shown)
        yield f"data: {await json_text({**head, 'choices': [choice], **report_once})}\n\n"
        report_once = {}  # it can be long
    if with_usage:
        yield event_text({**head, "choices": [], "usage": generation.usage})
    yield DONE


class PlainEvents:
    """The events in the middle of a stream, which differ in their text only: made by hand.

    Equal to `event_text` of the same choice; most of the events there are.
    """

    def __init__(self, head: Json) -> None:
        self._start = event_text({**head, "choices": []}).removesuffix("]}\n\n")

    def text(self, chunk: Chunk) -> str:
        """The event of a chunk without log-probabilities that isn't its choice's last."""
        return (
            f'{self._start}{{"index":{chunk.index},"text":{json.dumps(chunk.text)},'
            f'"finish_reason":null,"stop_string":null,"seed":{chunk.seed},"logprobs":null}}]}}\n\n'
        )


async def whole_completion(generation: Generation) -> Json:
    """The answer of a request that doesn't stream."""
    logprobs, parts = _logprobs_of(generation), dict[int, list[Chunk]]()
    pages: dict[int, list[Json]] = {}
    async for chunk in generation.chunks(all_or_none=True):
        parts.setdefault(chunk.index, []).append(chunk)
        if logprobs is not None:
            pages.setdefault(chunk.index, []).append(logprobs[chunk.index].page(chunk))
            chunk.characters = None  # there can be many
    choices = [
        completion_choice(join_chunks(parts[i]), joined(pages[i]) if pages else None)
        for i in range(len(generation.choices))
    ]
    whole = {"choices": choices, "usage": generation.usage, "ablation": generation.variant.report}
    return {**_completion_head(generation), **whole}


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


def completion_choice(chunk: Chunk, logprobs: Json | None) -> Json:
    """A chunk as OpenAI's clients read a choice."""
    return {
        "index": chunk.index,
        "text": chunk.text,
        "finish_reason": chunk.finish_reason,
        "stop_string": chunk.stop,
        "seed": chunk.seed,
        "logprobs": logprobs,
        **({} if chunk.state is None else {"state": chunk.state}),
    }


async def pair_events(generation: Generation) -> AsyncIterator[str]:
    """One event a chunk of either branch, then the summary, then [DONE]."""
    async for chunk in generation.chunks():
        yield event_text(
            {
                "index": chunk.index,
                "branch": chunk.branch,
                "text": chunk.text,
                "finish_reason": chunk.finish_reason,
                "stop_string": chunk.stop,
                "seed": chunk.seed,
            }
        )
    yield event_text({"summary": pair_summary(generation)})
    yield DONE


async def whole_pair(generation: Generation) -> Json:
    """Both texts, and where they first differ."""
    ends: dict[str, str | None] = {}
    async for chunk in generation.chunks(all_or_none=True):
        ends[chunk.branch] = chunk.finish_reason
    texts = {c.branch: "".join(c.text) for c in generation.choices[:2]}
    branches = {
        branch: {"text": texts[branch], "finish_reason": ends[branch]}
        for branch in (BASELINE, ABLATED)
    }
    return {**pair_summary(generation), **branches}


def pair_summary(generation: Generation) -> Json:
    """What a paired generation has shown."""
    return {
        "model": generation.bundle.name,
        "seed": generation.seed,
        "ablation": generation.variant.report,
        "first_difference": generation.first_difference,
        "usage": generation.usage,
    }


def _completion_head(generation: Generation) -> Json:
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": generation.bundle.name,
    }


def _logprobs_of(generation: Generation) -> list[Logprobs] | None:
    """For each choice, where log-probabilities are asked for."""
    if (top := generation.logprobs) is None:
        return None
    return [Logprobs(choice, generation.echo, top) for choice in generation.choices]


def event_text(page: Json) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(page, separators=(',', ':'))}\n\n"
