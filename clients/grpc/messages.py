"""Messages of protobuf as results: chunks and scores, which no Struct carries."""

from typing import Any

from google.protobuf.message import Message

from clients.grpc.proto_json import json_of
from clients.results import Character, Chunk, Score, ScoreResult, Summary, Usage
from serve.wire import torsor_pb2 as pb
from serve.wire.codec import Json, whole
from serve.wire.responses import UnknownCharacters


def read_chunk(message: pb.GenerateChunk) -> Chunk:
    """More text of a choice, or the summary."""
    return Chunk(
        text=message.text,
        index=message.index,
        branch=message.branch,
        characters=tuple(_character(character) for character in message.characters),
        finish_reason=_optional(message, "finish_reason"),
        stop=_optional(message, "stop"),
        seed=_optional(message, "seed"),
        state=_optional(message, "state"),
        summary=_summary(message.summary) if message.HasField("summary") else None,
    )


def read_score(reply: pb.ScoreReply) -> ScoreResult:
    """Bits per character of a text."""

    def score(message: pb.Score) -> Score:
        return Score(bpc=message.bpc, logprobs=tuple(message.logprobs))

    return ScoreResult(
        model=reply.model,
        num_characters=reply.num_characters,
        baseline=score(reply.baseline),
        ablated=score(reply.ablated) if reply.HasField("ablated") else None,
        delta_bpc=_optional(reply, "delta_bpc"),
        mean_kl=_optional(reply, "mean_kl"),
        kl=tuple(reply.kl) or None,
        ablation=_ablation(reply),
        unknown=_unknown(reply),
    )


def _summary(message: pb.Summary) -> Summary:
    return Summary(
        model=message.model,
        usage=_usage(message.usage),
        ablation=_ablation(message),
        first_difference=_optional(message, "first_difference"),
    )


def _usage(message: pb.Usage) -> Usage:
    return Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        total_tokens=message.total_tokens,
        cached_tokens=message.cached_tokens,
        unknown=_unknown(message),
    )


def _unknown(message: pb.Usage | pb.ScoreReply) -> UnknownCharacters | None:
    if not message.HasField("unknown"):
        return None
    found = message.unknown
    return UnknownCharacters(policy=found.policy, counts=dict(found.counts))


def _character(message: pb.Character) -> Character:
    logprob = _optional(message, "logprob")
    # The most probable first: a map keeps no order
    top = dict(sorted(message.top_logprobs.items(), key=lambda item: (-item[1], item[0])))
    return Character(text=message.text, logprob=logprob, top_logprobs=top)


def _ablation(message: pb.Summary | pb.ScoreReply) -> Json:
    return whole(json_of(message.ablation)) if message.HasField("ablation") else None


def _optional(message: Message, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None
