"""What answers look like over HTTP: completions as OpenAI's clients read them, and pairs."""

import itertools
import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from serve.wire.requests import CompletionRequest
from serve.writing import ABLATED, BASELINE, Piece, Writing

DONE = "data: [DONE]\n\n"

Json = dict[str, Any]


async def completion_events(writing: Writing, request: CompletionRequest) -> AsyncIterator[str]:
    """One event a piece, then usage if asked for, then [DONE]."""
    head = _completion_head(writing)
    report_once = {"ablation": writing.variant.report}
    offsets = _first_offsets(writing)
    plain = PlainEvents(head)
    async for piece in writing.pieces():
        if piece.characters is None and piece.finish_reason is None and not report_once:
            yield plain.text(piece)
            continue
        choice = completion_choice(piece, offsets[piece.index], request.logprobs)
        offsets[piece.index] += len(piece.text)
        yield event_text({**head, "choices": [choice], **report_once})
        report_once = {}  # it can be long
    if request.stream_options is not None and request.stream_options.include_usage:
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
    request, parts = writing.request, dict[int, list[Piece]]()
    async for piece in writing.pieces():
        parts.setdefault(piece.index, []).append(piece)
    choices = [
        completion_choice(join_pieces(parts[i]), offset, request.logprobs)
        for i, offset in enumerate(_first_offsets(writing))
    ]
    whole = {"choices": choices, "usage": writing.usage, "ablation": writing.variant.report}
    return {**_completion_head(writing), **whole}


def join_pieces(pieces: list[Piece]) -> Piece:
    """Consecutive pieces of one choice as one."""
    last = pieces[-1]
    characters = [c for piece in pieces for c in piece.characters or []]
    return Piece(
        index=last.index,
        branch=last.branch,
        text="".join(piece.text for piece in pieces),
        characters=None if last.characters is None else characters,
        finish_reason=last.finish_reason,
        stop=last.stop,
        seed=last.seed,
        state=last.state,
    )


def completion_choice(piece: Piece, offset: int, logprobs: int | None) -> Json:
    """A piece as OpenAI's clients read a choice; `offset` is the place of its first character."""
    return {
        "index": piece.index,
        "text": piece.text,
        "finish_reason": piece.finish_reason,
        "stop_string": piece.stop,
        "seed": piece.seed,
        "logprobs": None if logprobs is None else _logprobs(piece, offset, logprobs),
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
    async for piece in writing.pieces():
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


def _first_offsets(writing: Writing) -> list[int]:
    echo = writing.request.echo
    return [0 if echo else choice.prompt_length for choice in writing.choices]


def _logprobs(piece: Piece, offset: int, top: int) -> Json:
    characters = piece.characters or []
    tops = [c.top if c.logprob is not None else None for c in characters]
    return {
        "tokens": [c.text for c in characters],
        "token_logprobs": [c.logprob for c in characters],
        "top_logprobs": tops if top else None,
        "text_offset": [offset + place for place in _places([c.text for c in characters])],
    }


def _places(tokens: list[str]) -> list[int]:
    """The character that each token is, or is a byte of, counted from the first one."""
    begins = [not _CONTINUATION.fullmatch(token) for token in tokens]
    return [max(0, count - 1) for count in itertools.accumulate(map(int, begins))]


_CONTINUATION = re.compile(r"bytes:\\x[89ab].")  # what no character of UTF-8 begins with


def event_text(page: Json) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(page, separators=(',', ':'))}\n\n"
