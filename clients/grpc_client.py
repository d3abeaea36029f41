"""Ask a server over gRPC: the verbs, options, results and errors of `HttpClient`.

A stream starts when its first chunk is asked for; closing it early cancels the call.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from clients import answers
from clients.credentials import bearer, read_ca
from clients.errors import (
    ConnectionFailed,
    ServerError,
    StreamBroken,
    TorsorError,
    UnexpectedAnswer,
)
from clients.grpc.proto_json import fill, page_of
from clients.grpc.queries import GrpcQueries
from clients.grpc.sweeps import GrpcSweeps
from clients.http.events import MALFORMED
from clients.options import (
    Ablation,
    GenerateOptions,
    PairOptions,
    ScoreOptions,
    generate_body,
    pair_body,
    score_body,
)
from clients.results import (
    Character,
    Chunk,
    Completion,
    Json,
    ModelInfo,
    ScoreResult,
    Structure,
    Summary,
    Usage,
    join_completion,
)
from serve.wire import torsor_pb2 as pb
from serve.wire.torsor_pb2_grpc import TorsorStub

DEFAULT_TARGET = "127.0.0.1:3001"
LOOPBACK = ("127.0.0.1:", "localhost:", "[::1]:")

Item = TypeVar("Item")


class GrpcClient(GrpcQueries):
    """`target` is HOST:PORT; `deadline_s` the time for a whole call, None: the server's limits.

    With TLS where `tls` is true, `ca` names a file of certificates to trust, or `target` begins
    with https://. `api_key` goes with every call.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        deadline_s: float | None = None,
        api_key: str | None = None,
        tls: bool = False,
        ca: str | None = None,
    ) -> None:
        tls = tls or ca is not None or target.startswith("https://")
        target = target.removeprefix("https://").removesuffix("/")
        if "://" in target:
            raise ValueError(f"target: found {target!r}, expected HOST:PORT or https://HOST:PORT")
        self.target, self._deadline_s = target, deadline_s
        self._metadata = tuple(bearer(api_key).items())
        self._channel = _open_channel(target, tls, ca)
        self._stub: Any = TorsorStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self.sweeps = GrpcSweeps(self._stub, self._ask, self._read)

    def models(self) -> tuple[ModelInfo, ...]:
        """The models that the server holds."""
        reply: pb.ModelsReply = self._ask(self._stub.Models, pb.ModelsRequest())
        pages = [page_of(model.details) | {"id": model.id} for model in reply.models]
        with _understood(self.target):
            return answers.read_models({"data": pages})

    def structure(self, model: str | None = None) -> Structure:
        """What can be ablated in a model, left out: in the first."""
        request = pb.StructureRequest(model=model)
        reply: pb.StructureReply = self._ask(self._stub.Structure, request)
        page: dict[str, Any] = {"model": reply.model}
        page |= {n: [page_of(p) for p in getattr(reply, n)] for n in ("targets", "symmetries")}
        with _understood(self.target):
            return answers.read_structure(page)

    def generate(
        self, prompt: str, **options: Unpack[GenerateOptions]
    ) -> Generator[Chunk, None, None]:
        """The text as it is written; the last chunk holds the summary."""
        return self._stream(_generate_request(generate_body(prompt, options)))

    def complete(self, prompt: str, **options: Unpack[GenerateOptions]) -> Completion:
        """All choices, when they are whole."""
        stream = self.generate(prompt, **options)
        with _understood(self.target):
            return join_completion(stream)

    def generate_pair(
        self, prompt: str, ablation: Ablation, **options: Unpack[PairOptions]
    ) -> Generator[Chunk, None, None]:
        """Chunks of the branches `baseline` and `ablated`, under the same random numbers."""
        body = pair_body(prompt, ablation, options)
        return self._stream(_generate_request(body | {"paired": True}))

    def score(
        self, text: str, ablation: Ablation | None = None, **options: Unpack[ScoreOptions]
    ) -> ScoreResult:
        """Bits per character of `text`, and with an ablation what it changes."""
        request = fill(pb.ScoreRequest(), score_body(text, ablation, options))
        reply: pb.ScoreReply = self._ask(self._stub.Score, request)
        with _understood(self.target):
            return answers.read_score(_score_page(reply))

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: Any, request: Message) -> Any:
        try:
            return method(request, timeout=self._deadline_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _translate(error, self.target, started=False) from error

    def _stream(self, request: pb.GenerateRequest) -> Generator[Chunk, None, None]:
        return self._read(self._stub.Generate, request, _chunk)

    def _read(
        self, method: Any, request: Message, read: Callable[[Any], Item]
    ) -> Generator[Item, None, None]:
        call = method(request, timeout=self._deadline_s, metadata=self._metadata)
        started = False
        try:
            for message in call:
                started = True
                yield read(message)
        except grpc.RpcError as error:
            raise _translate(error, self.target, started) from error
        finally:
            call.cancel()  # does nothing to a call that has ended


def _open_channel(target: str, tls: bool, ca: str | None) -> grpc.Channel:
    options = _channel_options(target)
    if not tls:
        return grpc.insecure_channel(target, options=options)
    credentials = grpc.ssl_channel_credentials(None if ca is None else read_ca(ca))
    return grpc.secure_channel(target, credentials, options=options)


def _channel_options(target: str) -> list[tuple[str, int]]:
    # A detailed score of a long text is larger than gRPC's limit of 4 MiB
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.enable_http_proxy", int(not target.startswith(LOOPBACK))),
    ]


def _generate_request(body: dict[str, Any]) -> pb.GenerateRequest:
    if isinstance(body.get("stop"), str):
        body |= {"stop": [body["stop"]]}
    return fill(pb.GenerateRequest(), body)


def _optional(message: Message, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _ablation(message: pb.Summary | pb.ScoreReply) -> Json:
    return answers.plain(page_of(message.ablation)) if message.HasField("ablation") else None


def _chunk(message: pb.GenerateChunk) -> Chunk:
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


def _character(message: pb.Character) -> Character:
    logprob = _optional(message, "logprob")
    # The most probable first: a map keeps no order
    top = dict(sorted(message.top_logprobs.items(), key=lambda item: (-item[1], item[0])))
    return Character(text=message.text, logprob=logprob, top_logprobs=top)


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
    )


def _score_page(reply: pb.ScoreReply) -> Json:
    def score(message: pb.Score) -> Json:
        return {"bpc": message.bpc, "logprobs": list(message.logprobs)}

    return {
        "model": reply.model,
        "num_characters": reply.num_characters,
        "baseline": score(reply.baseline),
        "ablated": score(reply.ablated) if reply.HasField("ablated") else None,
        "delta_bpc": _optional(reply, "delta_bpc"),
        "mean_kl": _optional(reply, "mean_kl"),
        "kl": list(reply.kl),
        "ablation": _ablation(reply),
    }


@contextmanager
def _understood(target: str) -> Iterator[None]:
    try:
        yield
    except MALFORMED as error:
        raise UnexpectedAnswer(target, f"a reply that can't be read ({error!r})") from error


def _translate(error: grpc.RpcError, target: str, started: bool) -> TorsorError:
    assert isinstance(error, grpc.Call)
    code, details = error.code(), error.details() or ""
    trailing = {key: str(value) for key, value in error.trailing_metadata() or ()}
    if "torsor-code" in trailing:
        field, wait_s = trailing.get("torsor-field"), trailing.get("torsor-retry-after-s")
        retry_after_s = float(wait_s) if wait_s else None
        return ServerError(trailing["torsor-code"], details, field or None, retry_after_s)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return ServerError("too_large", f"message: {details} (max_message_bytes)")  # gRPC's own
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServerError("timeout", f"deadline_s: found no whole answer in time ({details})")
    if code is grpc.StatusCode.UNAVAILABLE and not started:
        return ConnectionFailed(target, details)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return StreamBroken(target, details)
    return UnexpectedAnswer(target, f"gRPC {code.name} ({details})")
