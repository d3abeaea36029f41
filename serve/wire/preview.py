"""Values as the sentences of errors show them: as JSON has them, with Python's quotes."""

from collections.abc import Iterator
from typing import Any

CONSTANTS = {None: "null", True: "true", False: "false"}
MOST = 60  # characters


def shown(value: Any, most: int = MOST) -> str:
    """A parsed JSON value, cut to `most` characters: null, true, NaN, 'text', [1, 2], {'a': 1}.

    No more of a long or deep one is looked at.
    """
    text = ""
    for chunk in _pieces(value, most):
        text += chunk
        if len(text) >= most:
            break
    return text[:most]


def _pieces(value: Any, most: int) -> Iterator[str]:
    if isinstance(value, list):
        yield "["
        for place, item in enumerate(value):
            yield ", " if place else ""
            yield from _pieces(item, most)
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for place, (key, item) in enumerate(value.items()):
            yield ", " if place else ""
            yield from _pieces(key, most)
            yield ": "
            yield from _pieces(item, most)
        yield "}"
    else:
        yield _plain(value, most)


def _plain(value: Any, most: int) -> str:
    if value is None or isinstance(value, bool):
        return CONSTANTS[value]
    if isinstance(value, str | bytes):
        return repr(value[:most])
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, float) and abs(value) == float("inf"):
        return "Infinity" if value > 0 else "-Infinity"
    try:
        return repr(value)
    except ValueError:  # Python writes no whole number of more than some thousand digits
        return "a number of very many digits"
