"""What answers look like over HTTP: completions as OpenAI's clients read them, and pairs."""

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from serve.http_api.responses import json_text
from serve.queries.generate import ABLATED, BASELINE, Piece, Writing
from serve.queries.logprobs import Logprobs, joined

DONE = "data: [DONE]\n\n"

Json = dict[str, Any]


async def completion_events(writing: Writing, with_usage: bool) -> AsyncIterator[str]:
    """One event a piece, then usage if asked for, then [DONE]."""
    head = _completion_head(writing)
    report_once = {"ablation": writing.variant.report}
    logprobs, plain = _logprobs_of(writing), PlainEvents(head)
    async for piece in writing.pieces():
        if piece.characters is None and piece.finish_reason is None and not report_once:
            yield plain.text(piece)
            continue
        shown = None if logprobs is None else logprobs[piece.index].page(piece)
        choice = completion_choice(piece, shown)
        yield f"data: {await json_text({**head, 'choices': [choice], **report_once})}\n\n"
        report_once = {}  # it can be long
    if with_usage:
        yield event_text({**head, "choices": [], "usage": writing.usage})
    yield DONE


class PlainEvents:
    """The events in the middle of a stream, which differ in their text only: made by hand.

    Equal to `event_text` of the same choice; most of the events there are.
    """

    def __init__(self, head: Json) -> None:
        self._start = event_text({**head, "choices": []}).removesuffix("]}\n\n")

    def text(self, piece: Piece) -> str:
        """The event of a piece without log-probabilities that isn't its choice's last."""
        return (
            f'{self._start}{{"index":{piece.index},"text":{json.dumps(piece.text)},'
            f'"finish_reason":null,"stop_string":null,"seed":{piece.seed},"logprobs":null}}]}}\n\n'
        )


async def whole_completion(writing: Writing) -> Json:
    """The answer of a request that doesn't stream."""
    logprobs, parts = _logprobs_of(writing), dict[int, list[Piece]]()
    pages: dict[int, list[Json]] = {}
    async for piece in writing.pieces(all_or_none=True):
        parts.setdefault(piece.index, []).append(piece)
        if logprobs is not None:
            pages.setdefault(piece.index, []).append(logprobs[piece.index].page(piece))
            piece.characters = None  # there can be many
    choices = [
        completion_choice(join_pieces(parts[i]), joined(pages[i]) if pages else None)
        for i in range(len(writing.choices))
    ]
    whole = {"choices": choices, "usage": writing.usage, "ablation": writing.variant.report}
    return {**_completion_head(writing), **whole}


def join_pieces(pieces: list[Piece]) -> Piece:
    """Consecutive pieces of one choice as one; without its characters."""
    last = pieces[-1]
    return Piece(
        index=last.index,
        branch=last.branch,
        text="".join(piece.text for piece in pieces),
        characters=None,
        finish_reason=last.finish_reason,
        stop=last.stop,
        seed=last.seed,
        state=last.state,
    )


def completion_choice(piece: Piece, logprobs: Json | None) -> Json:
    """A piece as OpenAI's clients read a choice."""
    return {
        "index": piece.index,
        "text": piece.text,
        "finish_reason": piece.finish_reason,
        "stop_string": piece.stop,
        "seed": piece.seed,
        "logprobs": logprobs,
        **({} if piece.state is None else {"state": piece.state}),
    }


async def pair_events(writing: Writing) -> AsyncIterator[str]:
    """One event a piece of either branch, then the summary, then [DONE]."""
    async for piece in writing.pieces():
        yield event_text(
            {
                "index": piece.index,
                "branch": piece.branch,
                "text": piece.text,
                "finish_reason": piece.finish_reason,
                "stop_string": piece.stop,
                "seed": piece.seed,
            }
        )
    yield event_text({"summary": pair_summary(writing)})
    yield DONE


async def whole_pair(writing: Writing) -> Json:
    """Both texts, and where they first differ."""
    ends: dict[str, str | None] = {}
    async for piece in writing.pieces(all_or_none=True):
        ends[piece.branch] = piece.finish_reason
    texts = {c.branch: "".join(c.text) for c in writing.choices[:2]}
    branches = {
        branch: {"text": texts[branch], "finish_reason": ends[branch]}
        for branch in (BASELINE, ABLATED)
    }
    return {**pair_summary(writing), **branches}


def pair_summary(writing: Writing) -> Json:
    """What a paired generation has shown."""
    return {
        "model": writing.bundle.name,
        "seed": writing.seed,
        "ablation": writing.variant.report,
        "first_difference": writing.first_difference,
        "usage": writing.usage,
    }


def _completion_head(writing: Writing) -> Json:
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": writing.bundle.name,
    }


def _logprobs_of(writing: Writing) -> list[Logprobs] | None:
    """For each choice, where log-probabilities are asked for."""
    if (top := writing.logprobs) is None:
        return None
    return [Logprobs(choice, writing.echo, top) for choice in writing.choices]


def event_text(page: Json) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(page, separators=(',', ':'))}\n\n"
