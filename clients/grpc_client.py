"""Ask a server over gRPC: the verbs, options, results and errors of `HttpClient`.

A stream starts when its first chunk is asked for; closing it early cancels the call.
"""

import base64
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from clients.credentials import bearer, read_ca
from clients.errors import (
    ConnectionFailed,
    ServerError,
    StreamBroken,
    TorsorError,
    UnexpectedAnswer,
)
from clients.grpc.messages import read_chunk, read_score
from clients.grpc.proto_json import fill, json_of
from clients.grpc.sweeps import GrpcSweeps
from clients.grpc.trials_file import trials_file
from clients.http.events import MALFORMED
from clients.options import (
    Ablation,
    CompareOptions,
    GenerateOptions,
    PairOptions,
    ScoreOptions,
    TrialsOptions,
    Uploaded,
    compare_body,
    generate_body,
    pair_body,
    score_body,
    trials_body,
)
from clients.query_results import CompareResult, TrialsResult
from clients.results import (
    Chunk,
    Completion,
    ModelInfo,
    ScoreResult,
    Structure,
    join_completion,
)
from clients.tls import SPEAKS_TLS, speaks_tls
from serve.wire import torsor_pb2 as pb
from serve.wire.codec import Json, JsonObject, from_json
from serve.wire.torsor_pb2_grpc import TorsorStub

DEFAULT_TARGET = "127.0.0.1:3001"
LOOPBACK = ("127.0.0.1:", "localhost:", "[::1]:")

Answer = TypeVar("Answer")
Item = TypeVar("Item")


class GrpcClient:
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
        pages = [json_of(model.details) | {"id": model.id} for model in reply.models]
        with _understood(self.target):
            return tuple(from_json(ModelInfo, found) for found in pages)

    def structure(self, model: str | None = None) -> Structure:
        """The targets and symmetries of a model, left out: of the first."""
        request = pb.StructureRequest(model=model)
        reply: pb.StructureReply = self._ask(self._stub.Structure, request)
        found: dict[str, Any] = {"model": reply.model}
        found |= {n: [json_of(p) for p in getattr(reply, n)] for n in ("targets", "symmetries")}
        with _understood(self.target):
            return from_json(Structure, found)

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
            return read_score(reply)

    def compare(
        self, prompt: str, ablations: list[Ablation], **given: Unpack[CompareOptions]
    ) -> CompareResult:
        """Distributions of the next character, without and with each of the ablations."""
        body = compare_body(prompt, ablations, given)
        return self._ask_json(self._stub.Compare, body, pb.CompareRequest(), CompareResult)

    def trials(
        self,
        ablation: Ablation | None = None,
        trials: Uploaded | None = None,
        **given: Unpack[TrialsOptions],
    ) -> TrialsResult:
        """Scores of a task model on trials, left out: the bundle's own."""
        body = trials_body(ablation, trials, given)
        if isinstance(trials, dict):  # this wire takes a file only
            file = trials_file(body.pop("trials"), self._task_of(given.get("model")))
            body["trials"] = base64.b64encode(file).decode()
        elif trials is not None:
            body["trials"] = body.pop("safetensors")  # JSON's form of bytes, too
        return self._ask_json(self._stub.Trials, body, pb.TrialsRequest(), TrialsResult)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _task_of(self, model: str | None) -> JsonObject:
        """The task of a model, left out: of the first that has one; empty where there is none."""
        tasks = [held.task for held in self.models() if held.task and model in (None, held.id)]
        return tasks[0] if tasks else {}

    def _ask_json(self, method: Any, body: Json, request: Message, kind: type[Answer]) -> Answer:
        reply = self._ask(method, fill(request, body))
        with _understood(self.target):
            return from_json(kind, json_of(reply.page))

    def _ask(self, method: Any, request: Message) -> Any:
        try:
            return method(request, timeout=self._deadline_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _translate(error, self.target, started=False) from error

    def _stream(self, request: pb.GenerateRequest) -> Generator[Chunk, None, None]:
        return self._read(self._stub.Generate, request, read_chunk)

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
        # One that was told https:// says itself what its handshake met
        plain = "handshake" not in details and speaks_tls(target)
        return ConnectionFailed(target, SPEAKS_TLS if plain else details)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return StreamBroken(target, details)
    return UnexpectedAnswer(target, f"gRPC {code.name} ({details})")
