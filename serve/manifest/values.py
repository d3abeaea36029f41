"""Parsed JSON as checked values of dataclasses, and the error that says what is wrong with it.

Standard library only: `serve.manifest.page` stands on it.
"""

import dataclasses
import re
import sys
import types
import typing
from pathlib import Path
from typing import Any

MOST = 1 << 53  # of whole numbers, which many readers of JSON take as doubles
Json = Any  # free-form JSON: numbers, strings, lists, objects


class BundleError(ValueError):
    """A bundle that can't be used: which file, which key, what was found and expected."""

    def __init__(self, file: Path | str, key: str, problem: str) -> None:
        place = f"{file}: {key}" if key else str(file)
        super().__init__(f"{place}: {problem}")
        # For those who may not know where on the server the bundle lies
        self.brief = ": ".join(part for part in (Path(file).name, key, problem) if part)


def parse_value(kind: Any, value: Json, path: Path | str, key: str) -> Any:
    """`value` as `kind`, a dataclass or one of the JSON types that the page's dataclasses use."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _parse_object(kind, value, path, key)
    if origin in (typing.Union, types.UnionType):
        fits = [a for a in arguments if _is_json(a, value)]
        if not fits:
            raise _wrong(kind, value, path, key)
        return parse_value(fits[0], value, path, key)
    if not _is_json(kind, value):
        raise _wrong(kind, value, path, key)
    if origin is tuple:
        return _parse_list(arguments, value, path, key)
    if origin is dict:
        return {k: parse_value(arguments[1], v, path, f"{key}.{k}") for k, v in value.items()}
    return float(value) if kind is float else value


def _parse_object(kind: Any, value: Json, path: Path | str, key: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(kind, value, path, key)
    hints, prefix = typing.get_type_hints(kind), f"{key}." if key else ""
    optional = {f.name for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING}
    if unknown := sorted(set(value) - set(hints)):
        raise BundleError(path, prefix + unknown[0], "unknown key; use the torsor that wrote it")
    if missing := [name for name in hints if name not in value and name not in optional]:
        raise BundleError(path, prefix + missing[0], "missing key")
    given = [name for name in hints if name in value]
    parsed = {name: parse_value(hints[name], value[name], path, prefix + name) for name in given}
    return kind(**parsed)


def _parse_list(arguments: tuple[Any, ...], value: Json, path: Path | str, key: str) -> Any:
    kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
    if len(kinds) != len(value):
        raise BundleError(path, key, f"found {len(value)} entries, expected {len(kinds)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(parse_value(kind, item, path, f"{key}[{i}]") for i, (kind, item) in pairs)


def _is_json(kind: Any, value: Json) -> bool:
    if kind is types.NoneType:
        return value is None
    if dataclasses.is_dataclass(kind):
        return isinstance(value, dict)
    origin = typing.get_origin(kind) or kind
    if origin is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) <= sys.float_info.max  # False for NaN
    if origin is int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and abs(value) <= MOST
    return isinstance(value, {tuple: list}.get(origin, origin))


def _wrong(kind: Any, value: Json, path: Path | str, key: str) -> BundleError:
    name = getattr(kind, "__name__", str(kind)) if not typing.get_args(kind) else str(kind)
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        name = f"at most {MOST}"
    name = re.sub(r"serve\.(\w+\.)+", "", name)  # where a class stands is nobody's concern
    return BundleError(path, key, f"found {value!r:.60}, expected {name}")
