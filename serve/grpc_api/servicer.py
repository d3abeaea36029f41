"""Calls of the gRPC service, on the same models as HTTP.

serve/wire/torsor.proto is the contract.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from serve.grpc_api.interceptor import SMALL_MESSAGE, abort
from serve.grpc_api.structs import make_struct, read_struct
from serve.models import Models
from serve.offload import offload_if_large
from serve.queries.compare import compare
from serve.queries.generate import Character, Chunk, Generation, open_generation
from serve.queries.score import score
from serve.queries.trials import answer_trials
from serve.wire import torsor_pb2 as pb
from serve.wire import torsor_pb2_grpc as rpc
from serve.wire.codec import shallow, to_json
from serve.wire.errors import RequestError, invalid, server_failed
from serve.wire.limits import MAX_JSON_PARTS
from serve.wire.queries import CompareRequest, TrialsRequest
from serve.wire.query_responses import ScoreResult
from serve.wire.requests import GenerateRequest, PairRequest, ScoreRequest, parse_request
from serve.wire.requests import Request as Asked

log = logging.getLogger("torsor")

Context = grpc.aio.ServicerContext[Any, Any]
Reply = TypeVar("Reply")


class TorsorServicer(rpc.TorsorServicer):
    """Answers the calls; errors carry code and field in the trailing metadata."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def Models(self, request: pb.ModelsRequest, context: Context) -> pb.ModelsReply:
        """The served models."""
        del request, context
        limits = {"limits": self._models.limits()}
        held = [self._models.describe(bundle) for bundle in self._models.bundles.values()]
        details = [await make_struct(shallow(model) | limits) for model in held]
        pairs = zip(held, details, strict=True)
        return pb.ModelsReply(models=[pb.Model(id=m.id, details=told) for m, told in pairs])

    async def Structure(self, request: pb.StructureRequest, context: Context) -> pb.StructureReply:
        """The targets and symmetries of a model."""

        async def answer() -> pb.StructureReply:
            bundle = self._models.bundle(fields_of(request).get("model"))
            found = await self._models.structure(bundle)
            moved = [await make_struct(symmetry) for symmetry in found.symmetries]
            targets = [await make_struct(target) for target in found.targets]
            return pb.StructureReply(model=found.model, targets=targets, symmetries=moved)

        return await or_abort(context, answer)

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreReply:
        """Bits per character of a text."""

        async def answer() -> pb.ScoreReply:
            found = await score(self._models, await read_asked(ScoreRequest, request))
            report = found.ablation
            return score_reply(found, None if report is None else await make_struct(report))

        return await or_abort(context, answer)

    async def Compare(self, request: pb.CompareRequest, context: Context) -> pb.CompareReply:
        """Distributions of the next character."""

        async def answer() -> pb.CompareReply:
            found = await compare(self._models, await read_asked(CompareRequest, request))
            return pb.CompareReply(page=await make_struct(found))

        return await or_abort(context, answer)

    async def Trials(self, request: pb.TrialsRequest, context: Context) -> pb.TrialsReply:
        """Scores of a task model on trials."""

        async def answer() -> pb.TrialsReply:
            content = request.trials if request.HasField("trials") else None
            request.ClearField("trials")
            asked = await read_asked(TrialsRequest, request)
            found = await answer_trials(self._models, asked, content)
            return pb.TrialsReply(page=await make_struct(found))

        return await or_abort(context, answer)

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateChunk]:
        """Text as it is written; the last chunk sums up."""
        paired = request.paired
        request.ClearField("paired")

        async def opened() -> Generation:
            kind = PairRequest if paired else GenerateRequest
            return await open_generation(self._models, await read_asked(kind, request), paired)

        generation = await or_abort(context, opened)
        try:
            async for chunk in generation.chunks():
                yield chunk_of(chunk)
            yield pb.GenerateChunk(summary=await summary_of(generation, paired))
        except RequestError as error:
            await abort(context, error)
        except Exception:
            await abort(context, unexpected())
        finally:
            generation.close()


async def read_asked(kind: type[Asked], message: Message) -> Asked:
    """The checked request in a message; `RequestError` if it is none of this kind."""
    size = message.ByteSize()
    return await offload_if_large(size, _asked, kind, message, small=SMALL_MESSAGE)


def fields_of(message: Message) -> dict[str, Any]:
    """The fields that were set, as the JSON of the same request over HTTP.

    `RequestError` for one that holds more entries than such a body may.
    """
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        is_text = isinstance(value, str | bytes)
        if not is_text and isinstance(value, Sequence | Mapping) and len(value) > MAX_JSON_PARTS:
            sentence = f"found {len(value)} entries, expected at most {MAX_JSON_PARTS}"
            raise invalid(field.name, f"{sentence} (max_json_parts); send less at once")
        found[field.name] = _plain(value, field.name)
    return found


def chunk_of(chunk: Chunk) -> pb.GenerateChunk:
    """A chunk of text on this wire."""
    return pb.GenerateChunk(
        index=chunk.index,
        branch=chunk.branch,
        text=chunk.text,
        characters=[_character(c) for c in chunk.characters or []],
        finish_reason=chunk.finish_reason,
        stop=chunk.stop,
        seed=chunk.seed,
        state=chunk.state,
    )


async def summary_of(generation: Generation, paired: bool) -> pb.Summary:
    """The last chunk of a call."""
    report = generation.variant.report
    return pb.Summary(
        model=generation.bundle.name,
        usage=pb.Usage(**asdict(generation.usage)),
        ablation=None if report is None else await make_struct(report),
        first_difference=generation.first_difference if paired else None,
    )


def score_reply(found: ScoreResult, ablation: Struct | None) -> pb.ScoreReply:
    """A score on this wire."""
    fields = to_json(replace(found, ablation=None)) | {"ablation": ablation}
    scores = {n: pb.Score(**fields[n]) for n in ("baseline", "ablated") if fields[n]}
    return pb.ScoreReply(**(fields | scores))


async def or_abort(context: Context, work: Callable[[], Awaitable[Reply]]) -> Reply:
    """The reply of `work`, or the call ended with its error."""
    try:
        return await work()
    except RequestError as error:
        await abort(context, error)
    except Exception:
        await abort(context, unexpected())


def unexpected() -> RequestError:
    """Our own mistake, logged; clients learn no more than that."""
    log.exception("a call failed")
    return server_failed()


def _character(character: Character) -> pb.Character:
    return pb.Character(text=character.text, logprob=character.logprob, top_logprobs=character.top)


def _asked(kind: type[Asked], message: Message) -> Asked:
    return parse_request(kind, fields_of(message))


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, Struct):
        return read_struct(value, name)
    if isinstance(value, Message):
        return fields_of(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item, name) for item in value]
    return value
