"""Calls over HTTP and how their answers are read, without a transport: once for both clients."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from clients import answers, options
from clients.errors import ServerError, TorsorError, UnexpectedAnswer
from clients.http.events import MALFORMED, error_of
from clients.query_results import CompareResult, TrialsResult
from clients.results import (
    Completion,
    ModelInfo,
    ScoreResult,
    Structure,
)
from serve.wire.codec import Json, from_json

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One question with one answer."""

    method: str
    path: str
    read: Callable[[Json], Answer]
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class StreamCall:
    """One question that is answered by events; `read` turns one into chunks, or what else it
    streams."""

    path: str
    content: bytes | None
    read: Callable[[Json], list[Any]]
    method: str = "POST"


def models() -> Call[tuple[ModelInfo, ...]]:
    """The models that the server holds."""
    return Call("GET", "v1/models", _models)


def structure(model: str) -> Call[Structure]:
    """The targets and symmetries of a model."""
    return Call("GET", f"v1/models/{quote(model, safe='')}/structure", _reads(Structure))


def complete(prompt: str, given: options.GenerateOptions) -> Call[Completion]:
    """A completion, all at once."""
    body = options.generate_body(prompt, given)
    return Call("POST", "v1/completions", answers.read_completion, _content(body))


def generate(prompt: str, given: options.GenerateOptions) -> StreamCall:
    """A completion as it is written."""
    body = options.generate_body(prompt, given)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    return StreamCall("v1/completions", _content(body), answers.CompletionEvents().read)


def generate_pair(
    prompt: str, ablation: options.Ablation, given: options.PairOptions
) -> StreamCall:
    """The plain and the ablated model's texts as they are written."""
    body = options.pair_body(prompt, ablation, given) | {"stream": True}
    return StreamCall("v1/ablations/generate", _content(body), answers.read_pair_event)


def load(folder: str) -> Call[ModelInfo]:
    """A bundle's folder on the server's machine, to be served."""
    return Call("POST", "management/models", _reads(ModelInfo), _content({"folder": folder}))


def reload(model: str) -> Call[ModelInfo]:
    """A served model, to be read again."""
    path = f"management/models/{quote(model, safe='')}/reload"
    return Call("POST", path, _reads(ModelInfo))


def unload(model: str) -> Call[None]:
    """A model, to be served no more."""
    return Call("DELETE", f"management/models/{quote(model, safe='')}", lambda answer: None)


def score(
    text: str, ablation: options.Ablation | None, given: options.ScoreOptions
) -> Call[ScoreResult]:
    """Bits per character of a text."""
    body = options.score_body(text, ablation, given)
    return Call("POST", "v1/ablations/score", _reads(ScoreResult), _content(body))


def compare(
    prompt: str, ablations: list[options.Ablation], given: options.CompareOptions
) -> Call[CompareResult]:
    """Distributions of the next character after a prompt."""
    body = options.compare_body(prompt, ablations, given)
    return Call("POST", "v1/ablations/compare", _reads(CompareResult), _content(body))


def trials(
    ablation: options.Ablation | None,
    uploaded: options.Uploaded | None,
    given: options.TrialsOptions,
) -> Call[TrialsResult]:
    """Scores of a task model on trials."""
    body = options.trials_body(ablation, uploaded, given)
    return Call("POST", "v1/ablations/trials", _reads(TrialsResult), _content(body))


def first_model(held: tuple[ModelInfo, ...]) -> str:
    """The id of the first model: the one that the server takes where none is named."""
    if not held:
        raise ServerError("not_found", "model: found none on the server, expected one", "model")
    return held[0].id


def read_answer(call: Call[Answer], address: str, content: bytes) -> Answer:
    """The answer in a body; `UnexpectedAnswer` if it isn't shaped as the wire says."""
    try:
        return call.read(json.loads(content))
    except MALFORMED as error:
        found = f"{content[:80]!r} from {call.path}"
        raise UnexpectedAnswer(address, found) from error


def read_error(
    address: str, status: int, headers: Mapping[str, str], content: bytes
) -> TorsorError:
    """The error that an answer with a status other than 2xx says."""
    seconds = headers.get("retry-after", "")
    try:
        return error_of(json.loads(content), float(seconds) if seconds.isdigit() else None)
    except MALFORMED:
        return UnexpectedAnswer(address, f"HTTP {status} with the body {content[:80]!r}")


def _models(answer: Json) -> tuple[ModelInfo, ...]:
    return tuple(from_json(ModelInfo, model) for model in answer["data"])


def _reads(kind: type[Answer]) -> Callable[[Json], Answer]:
    return lambda answer: from_json(kind, answer)


def _content(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()
