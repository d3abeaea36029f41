"""Completions and pairs from the wire's JSON to chunks and choices.

The other results are read as serve/wire declares them: `serve.wire.codec.from_json`.
"""

from typing import Any

from clients.results import Character, Choice, Chunk, Completion, Summary
from serve.wire import responses
from serve.wire.codec import Json, JsonObject, from_json
from serve.wire.responses import CompletionChoice, CompletionEvent, Logprobs, PairEvent


def read_completion(answer: Json) -> Completion:
    """`POST /v1/completions`, not streaming."""
    found = from_json(responses.Completion, answer)
    choices = (Choice(text=one.text, **_ending(one)) for one in found.choices)
    return Completion(
        model=found.model,
        choices=tuple(sorted(choices, key=lambda choice: choice.index)),
        usage=found.usage,
        ablation=found.ablation,
    )


class CompletionEvents:
    """The events of a streaming `POST /v1/completions` in, chunks out."""

    def __init__(self) -> None:
        self._ablation: JsonObject | None = None  # said once, before the stream's end

    def read(self, event: Json) -> list[Chunk]:
        """The chunks of one event: one a choice, and one for the usage."""
        found = from_json(CompletionEvent, event)
        self._ablation = found.ablation or self._ablation
        chunks = [Chunk(text=one.text, **_ending(one)) for one in found.choices]
        if found.usage:
            told = Summary(model=found.model, usage=found.usage, ablation=self._ablation)
            chunks.append(Chunk(summary=told))
        return chunks


def read_pair_event(event: Json) -> list[Chunk]:
    """One event of a streaming `POST /v1/ablations/generate`."""
    found = from_json(PairEvent, event)
    if (end := found.summary) is None:
        return [
            Chunk(
                text=found.text,
                index=found.index,
                branch=found.branch,
                finish_reason=found.finish_reason,
            )
        ]
    summary = Summary(
        model=end.model,
        usage=end.usage,
        ablation=end.ablation,
        first_difference=end.first_difference,
    )
    return [Chunk(seed=end.seed, summary=summary)]


def _ending(choice: CompletionChoice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "finish_reason": choice.finish_reason,
        "stop": choice.stop_string,
        "seed": choice.seed,
        "characters": () if choice.logprobs is None else _characters(choice.logprobs),
        "state": choice.state,
    }


def _characters(found: Logprobs) -> tuple[Character, ...]:
    tops = found.top_logprobs or [None] * len(found.tokens)
    return tuple(
        Character(text=text, logprob=logprob, top_logprobs=top or {})
        for text, logprob, top in zip(found.tokens, found.token_logprobs, tops, strict=True)
    )
