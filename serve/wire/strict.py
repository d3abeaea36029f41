"""The base of all request bodies: every field is known, and the first error is the only one.

pydantic would describe every wrong item of a list, and every unknown key: a million of them take
seconds, on the event loop, and one of them is told.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema

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
