"""Prompts: text, or the indices of its characters; one of either, or a list."""

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from serve.wire.limits import MAX_PROMPT_CHARACTERS
from serve.wire.preview import shown

SLICE = 1 << 15  # token ids that are looked at at once

Prompt = str | list[int]
AnyPrompt = str | list[str] | list[int] | list[list[int]]

_TEXT = {"type": "string", "maxLength": MAX_PROMPT_CHARACTERS}
_INDEX = {"type": "integer", "minimum": 0}
_INDICES = {"type": "array", "items": _INDEX}
_SCHEMA = {
    "anyOf": [
        _TEXT,
        {"type": "array", "items": _TEXT, "minItems": 1},
        {**_INDICES, "minItems": 1},
        {"type": "array", "items": _INDICES, "minItems": 1},
    ]
}
_EXPECTED = "expected a text, a list of texts, a list of token ids, or a list of such lists"


def prompt_list(value: AnyPrompt) -> list[Prompt]:
    """The prompts one by one; a list of indices is one prompt."""
    if isinstance(value, str):
        return [value]
    return [value] if isinstance(value[0], int) else list(value)


def _check(value: Any) -> Any:
    if isinstance(value, str):
        return _check_text(value)
    if not isinstance(value, list):
        raise ValueError(f"prompt: found {shown(value, 80)}, {_EXPECTED}")
    if not value:
        raise ValueError("prompt: found an empty list, expected at least one prompt or token id")
    if all(isinstance(item, str) for item in value):
        return [_check_text(item) for item in value]
    if _is_indices(value) or all(isinstance(item, list) and _is_indices(item) for item in value):
        return value
    raise ValueError(f"prompt: found {shown(value, 80)}, {_EXPECTED}")


def _check_text(text: str) -> str:
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise ValueError(
            f"prompt: found {len(text)} characters, expected at most {MAX_PROMPT_CHARACTERS} "
            "(max_prompt_characters)"
        )
    return text


def _is_indices(value: list[Any]) -> bool:
    # A bool is an int, and no index. In slices: the interpreter's lock is held for each of them.
    slices = (value[start : start + SLICE] for start in range(0, len(value), SLICE))
    return all(set(map(type, part)) <= {int} for part in slices)


PromptField = Annotated[AnyPrompt, PlainValidator(_check), WithJsonSchema(_SCHEMA)]
