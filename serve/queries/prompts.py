"""A request's prompts and stop strings as indices of a model's characters."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serve.runtime.vocabulary import Vocabulary
from serve.wire.errors import RequestError
from serve.wire.prompts import Prompt
from serve.wire.requests import GenerateRequest
from serve.wire.responses import UnknownCharacters

NEVER = (-1,)  # the index of no character: a stop string that the model can't write


class Encoded(NamedTuple):
    """A prompt as a stream takes it."""

    indices: NDArray[np.int32]  # of which a server may hold many millions
    length: int  # characters of its text, before any were skipped
    unknown: dict[str, int]  # how often each character that the model lacks was in it


def encode_prompts(request: GenerateRequest, vocabulary: Vocabulary, unknown: str) -> list[Encoded]:
    """The request's prompts; `RequestError` names the one that isn't as expected."""
    several = len(request.prompts) > 1
    return [
        _encode(prompt, f"prompt[{i}]" if several else "prompt", unknown, vocabulary)
        for i, prompt in enumerate(request.prompts)
    ]


def report_unknown(policy: str, counts: Iterable[dict[str, int]]) -> UnknownCharacters | None:
    """The characters that texts had and the model lacks; None where there are none."""
    total = Counter[str]()
    for found in counts:
        total.update(found)
    return UnknownCharacters(policy=policy, counts=dict(total.most_common())) if total else None


def encode_stop(stop: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Indices of a stop string; one with characters that the model lacks never comes."""
    try:
        return tuple(int(i) for i in vocabulary.encode(stop, "stop", "error"))
    except RequestError:
        return NEVER


def _encode(prompt: Prompt, field: str, unknown: str, vocabulary: Vocabulary) -> Encoded:
    if isinstance(prompt, str):
        indices, counts = vocabulary.encode_counted(prompt, field, unknown)
        return Encoded(indices.astype(np.int32), len(prompt), counts)
    checked = vocabulary.check(prompt, field).astype(np.int32)
    return Encoded(checked, len(vocabulary.decode(checked)), {})
