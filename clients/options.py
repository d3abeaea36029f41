"""Options of each verb, checked by the server's own rules before sending, once for HTTP and gRPC.

An option left out, or None, takes the server's default (see serve/wire/requests.py); one that does
not exist is a TypeError, one that has a wrong value a ServerError that names the field. NumPy's
numbers and arrays, and whatever else has `tolist()`, become Python's; tuples become lists. What
JSON can't hold is refused by its place.
"""

import base64
import math
import re
from typing import Any, TypedDict

from clients.errors import ServerError, UnfitRequest
from serve.wire.errors import RequestError
from serve.wire.preview import shown
from serve.wire.queries import CompareRequest, SweepRequest, TrialsRequest
from serve.wire.requests import GenerateRequest, Request, ScoreRequest, parse_request

Ablation = dict[str, Any]  # {"name": ..., "edits": [{"target": ..., "op": ..., ...}, ...]}


Uploaded = bytes | dict[str, Any]  # a safetensors file of trials, or the same parts as lists


class PairOptions(TypedDict, total=False):
    """Options of `generate_pair`."""

    model: str | None  # left out: the first that the server holds
    max_tokens: int | None  # characters to write at most
    temperature: float | None  # 0: always the most probable
    top_k: int | None  # keep the k most probable; 0: all
    top_p: float | None  # keep the smallest set of this probability
    seed: int | None  # left out: the server draws one and says which
    stop: str | list[str] | None  # strings that end the text, left out of it
    logit_bias: dict[str, float] | None  # index of a character: added to its logit
    echo: bool | None  # answer the prompt too
    unknown: str | None  # characters outside the vocabulary: "error", "skip" or "replace"


class GenerateOptions(PairOptions, total=False):
    """Options of `generate` and `complete`."""

    n: int | None  # choices, each with a seed of its own
    logprobs: int | None  # answer characters with this many alternatives
    ablation: Ablation | None
    save_state: bool | None  # answer the state after the last character
    state: str | None  # go on from a saved state, with its seed unless one is given


class ScoreOptions(TypedDict, total=False):
    """Options of `score`."""

    model: str | None
    unknown: str | None
    detail: bool | None  # also per-character log-probabilities and KL


class CompareOptions(TypedDict, total=False):
    """Options of `compare`."""

    model: str | None
    unknown: str | None
    top: int | None  # characters of each distribution to name


class TrialsOptions(TypedDict, total=False):
    """Options of `trials`."""

    model: str | None  # left out: the first of a task that the server holds
    resamples: int | None  # of the trials, for the intervals; 0: none
    seed: int | None  # of the resamples


def generate_body(prompt: str, options: GenerateOptions) -> dict[str, Any]:
    """The request of `generate` and `complete`, as JSON."""
    return _checked(GenerateRequest, {"prompt": prompt}, options, GenerateOptions)


def pair_body(prompt: str, ablation: Ablation, options: PairOptions) -> dict[str, Any]:
    """The request of `generate_pair`, as JSON."""
    given = {"prompt": prompt, "ablation": ablation}
    return _checked(GenerateRequest, given, options, PairOptions)


def score_body(text: str, ablation: Ablation | None, options: ScoreOptions) -> dict[str, Any]:
    """The request of `score`, as JSON."""
    given = {"text": text} | ({} if ablation is None else {"ablation": ablation})
    return _checked(ScoreRequest, given, options, ScoreOptions)


def compare_body(prompt: str, ablations: list[Ablation], options: CompareOptions) -> dict[str, Any]:
    """The request of `compare`, as JSON."""
    given = {"prompt": prompt, "ablations": ablations}
    return _checked(CompareRequest, given, options, CompareOptions)


def trials_body(
    ablation: Ablation | None, trials: Uploaded | None, options: TrialsOptions
) -> dict[str, Any]:
    """The request of `trials`, as JSON; a safetensors file stands in it in base64."""
    given: dict[str, Any] = {} if ablation is None else {"ablation": ablation}
    if isinstance(trials, bytes):
        given["safetensors"] = base64.b64encode(trials).decode()
    elif trials is not None:
        given["trials"] = trials
    return _checked(TrialsRequest, given, options, TrialsOptions)


def _checked(
    kind: type[Request], given: dict[str, Any], options: Any, known: Any
) -> dict[str, Any]:
    names = known.__annotations__
    if unknown := [name for name in options if name not in names]:
        raise TypeError(f"found option {unknown[0]!r}, expected any of: {', '.join(names)}")
    return checked_body(kind, given | options)


def checked_body(kind: type[Request], given: dict[str, Any]) -> dict[str, Any]:
    """The request of these fields, None left out, as JSON; `ServerError` or `UnfitRequest`."""
    body = {name: _plain(value, name) for name, value in given.items() if value is not None}
    try:
        return parse_request(kind, body).model_dump(exclude_unset=True)
    except RequestError as error:
        raise ServerError(error.code, error.message, error.field) from None


def _plain(value: Any, name: str) -> Any:
    # Of all else that stands alone the server's rules say what is wrong
    nested = isinstance(value, dict | list | tuple) or hasattr(value, "tolist")
    return plain_json(value, name) if nested else value


MAX_DEPTH = 90  # lists and objects within each other; protobuf reads 100
SURROGATE = re.compile("[\ud800-\udfff]")
REMEDY = "a finite number, a text, true, false, null, a list or an object; write it as one of them"


def plain_json(value: Any, place: str, depth: int = MAX_DEPTH) -> Any:
    """A value as JSON has it; `UnfitRequest` for one that it can't hold."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _unfit(place, shown(value), "a finite number; write one, or leave it out")
        return value
    if isinstance(value, str):
        if SURROGATE.search(value):
            raise _unfit(place, f"{value!r:.60}", "a text that UTF-8 can hold; leave it out")
        return value
    if depth == 0:
        expected = f"at most {MAX_DEPTH}; nest less"
        raise _unfit(place, "more lists and objects within each other", expected)
    if isinstance(value, list | tuple):
        return [plain_json(item, f"{place}[{i}]", depth - 1) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {_key(key, place): _inside(item, key, place, depth) for key, item in value.items()}
    raise _unfit(place, f"the {type(value).__name__} {str(value)!r:.60}", REMEDY)


def _inside(item: Any, key: Any, place: str, depth: int) -> Any:
    return plain_json(item, f"{place}.{key}", depth - 1)


def _key(key: Any, place: str) -> str:
    if not isinstance(key, str):
        raise _unfit(place, f"the key {key!r:.60}", "texts as keys; put it in quotes")
    return key


def _unfit(place: str, found: str, expected: str) -> UnfitRequest:
    return UnfitRequest(place, f"found {found}, expected {expected}")


class SweepOptions(TypedDict, total=False):
    """Options of `sweeps.start`."""

    model: str | None  # left out: the first that the query fits
    query: str | None  # "score" (of `text`) or "trials" (the bundle's own)
    text: str | None
    unknown: str | None  # characters outside the vocabulary: "error", "skip" or "replace"
    ablations: list[Ablation] | None  # the first points
    grid: dict[str, Any] | None  # {"edits": [...], "axes": {"alpha": [0.85, 0.9]}}
    controls: int | None  # random ablations of the same mass beside each point
    seed: int | None  # of the first control


def sweep_body(options: SweepOptions) -> dict[str, Any]:
    """The request of `sweeps.start`, as JSON; TypeError for an option that doesn't exist."""
    names = SweepOptions.__annotations__
    if unknown := [name for name in options if name not in names]:
        raise TypeError(f"found option {unknown[0]!r}, expected any of: {', '.join(names)}")
    return checked_body(SweepRequest, dict(options))
