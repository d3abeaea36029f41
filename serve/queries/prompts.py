"""A request's prompts and stop strings as indices of a model's characters."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serve.runtime.vocabulary import Vocabulary
from serve.wire.errors import RequestError
from serve.wire.prompts import Prompt
from serve.wire.requests import GenerateRequest

NEVER = (-1,)  # the index of no character: a stop string that the model can't write


class Encoded(NamedTuple):
    """A prompt as a stream takes it."""

    indices: NDArray[np.int32]  # of which a server may hold many millions
    length: int  # characters of its text, before any were skipped


def encode_prompts(request: GenerateRequest, vocabulary: Vocabulary) -> list[Encoded]:
    """The request's prompts; `RequestError` names the one that isn't as expected."""
    several = len(request.prompts) > 1
    return [
        _encode(prompt, f"prompt[{i}]" if several else "prompt", request.unknown, vocabulary)
        for i, prompt in enumerate(request.prompts)
    ]


def encode_stop(stop: str, vocabulary: Vocabulary, unknown: str) -> tuple[int, ...]:
    """Indices of a stop string; one with characters that the model lacks never comes.

    Where unknown characters are an error in prompts, they are one here: `RequestError`.
    """
    try:
        return tuple(int(i) for i in vocabulary.encode(stop, "stop", "error"))
    except RequestError:
        if unknown == "error":
            raise
        return NEVER


def _encode(prompt: Prompt, field: str, unknown: str, vocabulary: Vocabulary) -> Encoded:
    if isinstance(prompt, str):
        indices = vocabulary.encode(prompt, field, unknown).astype(np.int32)
        return Encoded(indices, len(prompt))
    indices = vocabulary.check(prompt, field).astype(np.int32)
    return Encoded(indices, len(vocabulary.decode(indices)))
