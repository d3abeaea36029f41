"""How much a JSON body holds, found before it is parsed.

The parser can't be interrupted: millions of empty lists in a body of allowed size would hold the
event loop for seconds. So what stands outside of strings is counted first, a window at a time.
"""

import asyncio

from serve.wire.errors import invalid
from serve.wire.prompts import MAX_PROMPT_CHARACTERS

MAX_JSON_PARTS = 50_000  # strings, lists and objects in one body
MAX_JSON_NUMBERS = MAX_PROMPT_CHARACTERS + MAX_JSON_PARTS  # a prompt of token ids fits
SMALL = 1 << 16  # bytes that can't hold much
WINDOW = 1 << 18  # bytes that are counted without a pause


async def require_light(content: bytes) -> None:
    """`RequestError` names the limit that a body's JSON is beyond."""
    if len(content) <= SMALL:
        return
    weight = Weight()
    for start in range(0, len(content), WINDOW):
        weight.add(content[start : start + WINDOW])
        for found, limit, name in (
            (weight.num_parts, MAX_JSON_PARTS, "max_json_parts"),
            (weight.num_commas, MAX_JSON_NUMBERS, "max_json_numbers"),
        ):
            if found > limit:
                what = name.removeprefix("max_json_")
                what = "strings, lists and objects" if what == "parts" else "values"
                sentence = f"found more than {limit} {what}, expected fewer ({name})"
                raise invalid("body", f"{sentence}; send less at once")
        await asyncio.sleep(0)


class Weight:
    """Counts what JSON holds; fed in windows that may end anywhere."""

    def __init__(self) -> None:
        self.num_commas = self._num_quotes = self._num_brackets = 0
        self._escapes = self._inside = False  # the last window ended in a backslash, in a string

    @property
    def num_parts(self) -> int:
        """Strings, lists and objects so far."""
        return self._num_brackets + (self._num_quotes + 1) // 2

    def add(self, window: bytes) -> None:
        """Count one more window."""
        bare = window[1:] if self._escapes and window else window
        bare = bare.replace(b"\\\\", b"")
        self._escapes = bare.endswith(b"\\")
        pieces = bare.replace(b'\\"', b"").split(b'"')
        outside = b" ".join(pieces[self._inside :: 2])
        self._inside ^= len(pieces) % 2 == 0
        self._num_quotes += len(pieces) - 1
        self._num_brackets += outside.count(b"[") + outside.count(b"{")
        self.num_commas += outside.count(b",")
