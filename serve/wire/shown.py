"""Values as the sentences of errors show them: as JSON has them, with Python's quotes."""

from typing import Any

CONSTANTS = {None: "null", True: "true", False: "false"}
MOST = 60  # characters


def shown(value: Any, most: int = MOST) -> str:
    """A parsed JSON value, cut to `most` characters: null, true, NaN, 'text', [1, 2], {'a': 1}."""
    return _shown(value, most, most)[:most]


def _shown(value: Any, most: int, depth: int) -> str:
    if value is None or isinstance(value, bool):
        return CONSTANTS[value]
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, float) and abs(value) == float("inf"):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | dict) and depth == 0:
        return "…"
    if isinstance(value, list):
        return f"[{', '.join(_shown(item, most, depth - 1) for item in value[:most])}]"
    if isinstance(value, dict):
        some = list(value.items())[:most]
        pairs = (f"{key!r:.{most}}: {_shown(item, most, depth - 1)}" for key, item in some)
        return f"{{{', '.join(pairs)}}}"
    try:
        return f"{value!r:.{most}}"
    except ValueError:  # Python writes no whole number of more than some thousand digits
        return "a number of very many digits"
