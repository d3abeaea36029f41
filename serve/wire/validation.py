"""Validation of request bodies by pydantic, and its first error as a `RequestError` in our words.

Every field is known, and the first error is the only one: pydantic would describe every wrong item
of a list, and every unknown key; a million of them take seconds on the event loop.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema

from serve.wire.errors import RequestError, invalid
from serve.wire.preview import shown

COLLECTIONS = ("list", "dict", "tuple", "set", "frozenset", "generator")  # pydantic's schemas


def _end_at_first_error(schema: Any) -> None:
    if isinstance(schema, list | tuple):
        for inner in schema:
            _end_at_first_error(inner)
    elif isinstance(schema, dict):
        if schema.get("type") in COLLECTIONS:
            schema["fail_fast"] = True
        for inner in schema.values():
            _end_at_first_error(inner)


class Strict(BaseModel):
    """A body of which every field is known, and of its type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic's, of which every list and dict ends at its first wrong item."""
        schema = handler(source)
        _end_at_first_error(schema)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _keep_one_unknown(cls, value: Any) -> Any:
        # Where there are more keys than fields some are unknown. One of them tells as much as all.
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields):
            return value
        first = next(key for key in value if key not in cls.model_fields)
        known = {key: value[key] for key in cls.model_fields if key in value}
        return {**known, first: value[first]}


def require_unicode(value: Any, place: str = "") -> None:
    """`RequestError` names a string in a JSON value that holds half a surrogate pair.

    JSON can carry them, and UTF-8, which everything else here is written in, can't.
    """
    if isinstance(value, str):
        _require_text(value, place)
    elif isinstance(value, dict):
        for key, inner in value.items():
            within = f"{place}.{key}" if place else key
            _require_text(key, within)
            require_unicode(inner, within)
    elif isinstance(value, list) and value and isinstance(value[0], str | dict | list):
        for index, inner in enumerate(value):
            require_unicode(inner, f"{place}[{index}]")


def _require_text(text: str, place: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"{text[error.start]!r}, at index {error.start}"
        found = f"found half a surrogate pair, {half}; expected Unicode text"
        raise invalid(place or "body", found) from None


LIMIT_OF = {  # a field's largest value or length
    "prompt": "max_prompt_characters",
    "text": "max_prompt_characters",
    "max_tokens": "max_tokens",
    "n": "max_choices",
    "logprobs": "max_logprobs",
    "top": "max_top",
    "resamples": "max_resamples",
    "controls": "max_controls",
}


def explain(error: ValidationError) -> RequestError:
    """The error of a request: field, what was found, what was expected, and the limit's name."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"] if not _is_branch(part))
    if first["type"] == "extra_forbidden":
        field = ".".join(str(part) for part in first["loc"])
        return unknown_field(field)
    if first["type"] == "value_error":  # our own sentences already name field and remedy
        message = first["msg"].removeprefix("Value error, ")
        return RequestError("invalid_request", message, message.split(":")[0])
    if first["type"] == "missing":
        return invalid(field, "missing, expected a value")
    if first["type"] in ("string_too_long", "string_too_short"):
        bounds = first["ctx"]
        expected = f"at {'most' if 'max_length' in bounds else 'least'} {[*bounds.values()][0]}"
        found = f"found {len(first['input'])} characters, expected {expected}"
        return invalid(field, found + _limit_name(field, first["type"]))
    if first["type"] in ("too_long", "too_short"):
        bounds = first["ctx"]
        most, least = bounds.get("max_length"), bounds.get("min_length")
        expected = f"at most {most}" if most is not None else f"at least {least}"
        return invalid(field, f"found {len(first['input'])} entries, expected {expected}")
    found = shown(first["input"], 80)
    expected = first["msg"].removeprefix("Input should be ")
    remedy = "; the server honours nothing else" if first["type"] == "literal_error" else ""
    remedy += _limit_name(field, first["type"])
    return invalid(field or "body", f"found {found}, expected {expected}{remedy}")


def unknown_field(field: str) -> RequestError:
    """The error of a field that no request of this kind has."""
    return invalid(field, "unknown field; remove it, the server does not honour it")


def _limit_name(field: str, kind: str) -> str:
    is_limit = kind in ("string_too_long", "less_than_equal") and field in LIMIT_OF
    return f" ({LIMIT_OF[field]})" if is_limit else ""


def _is_branch(part: int | str) -> bool:
    # pydantic names the branch of a union in the location ("str", "list[str]")
    return isinstance(part, str) and part in ("str", "list[str]")
