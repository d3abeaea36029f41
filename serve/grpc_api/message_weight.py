"""How many fields a protobuf message holds, found before it is parsed.

The parser can't be interrupted, and two bytes make an object of a hundred: 16 MB of empty messages
would hold the event loop for seconds and a gigabyte for good. So tags are counted first, in plain
Python, which lets other threads run. A packed list of numbers is one field.
"""

import functools
from collections.abc import Mapping

from google.protobuf.descriptor import Descriptor

from serve.wire.errors import invalid

MAX_MESSAGE_FIELDS = 200_000  # those of inner messages too
MAX_VARINT_BYTES = 10
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # types of the wire; 3 and 4 are bare brackets


def require_few_fields(content: bytes, kind: Descriptor) -> None:
    """`RequestError` for a message of this kind with more fields than one may have.

    What is no message at all is left to the parser.
    """
    found, inner = 0, [(0, len(content), kind)]
    while inner:
        place, end, described = inner.pop()
        messages = _messages_of(described)
        while place < end:
            if (found := found + 1) > MAX_MESSAGE_FIELDS:
                sentence = f"found more than {MAX_MESSAGE_FIELDS} fields, expected fewer"
                raise invalid("message", f"{sentence} (max_message_fields); send less at once")
            tag, place = _varint(content, place, end)
            size = _FIXED.get(tag & 7)
            if size is None:
                size, place = _varint(content, place, end)
            if tag & 7 == VARINT:
                continue
            if tag & 7 == BYTES and size and (message := messages.get(tag >> 3)):
                inner.append((place, min(place + size, end), message))
            place += size


_FIXED = {FIXED64: 8, FIXED32: 4, 3: 0, 4: 0, 6: 0, 7: 0}  # bytes; 6 and 7 don't exist


@functools.cache
def _messages_of(kind: Descriptor) -> Mapping[int, Descriptor]:
    """By their numbers the fields that hold messages, entries of maps included."""
    return {f.number: f.message_type for f in kind.fields if f.message_type is not None}


def _varint(content: bytes, place: int, end: int) -> tuple[int, int]:
    """A number and where it ends; one that is cut or too long leads past the end."""
    number = shift = 0
    for at in range(place, min(place + MAX_VARINT_BYTES, end)):
        byte = content[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at + 1
        shift += 7
    return 0, end
