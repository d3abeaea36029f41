"""Fields of each edit op, and the error for an unknown one.

What the keys mean stands in serve/ablation/ablation.py.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

KEYS = {  # in canonical order
    "schur": ("target", "alpha", "zero"),
    "zero": ("target", "rows", "columns"),
    "scale": ("target", "factor", "rows", "columns"),
    "identity": ("target",),
    "rank": ("target", "keep"),
    "project": ("target", "subspace"),
    "freeze": ("target", "rows", "columns"),
    "random": ("like", "seed"),
    "symmetry": ("kind", "seed"),
}
ABLATION_KEYS = ("name", "edits")
WRAPPED = 'put edits into a list: {"edits": [{"target": ..., "op": ...}]}'


def edit_keys(edit: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that an edit may have: those of its op, those of all where that is unknown."""
    op = edit.get("op")
    if not isinstance(op, str) or op not in KEYS:
        every = (key for keys in KEYS.values() for key in keys)
        return tuple(dict.fromkeys(("target", "op", *every)))
    own = KEYS[op]
    return ("target", "op", *own[1:]) if "target" in own else ("op", *own)


def stray_key(given: Mapping[str, Any], keys: Iterable[str]) -> tuple[str, str, str] | None:
    """The first key of an ablation or an edit that isn't one of `keys`: it, what is expected, and
    the remedy."""
    known = tuple(keys)
    for key in given:
        if key not in known:
            expected = f"an object with no keys but {', '.join(known)}"
            return str(key), expected, _remedy(str(key), known)
    return None


def _remedy(key: str, known: tuple[str, ...]) -> str:
    if known == ABLATION_KEYS and key in ("op", "target"):
        return WRAPPED
    near = difflib.get_close_matches(key, known, 1)
    return f"leave it out; did you mean {near[0]}?" if near else "leave it out"
