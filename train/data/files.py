"""Files that people call text: their bytes, unpacked and decoded, or a sentence on why not.

What is done to a file, in this order, each with a note:
- gzip, known by its first bytes, is unpacked;
- a byte order mark names UTF-8, UTF-16 or UTF-32 and is dropped; without one a file is UTF-8;
- CRLF, then a lone CR, becomes LF, so one line end is one character wherever a file was written.
Bytes that don't decode and NUL characters are refused with their offset in the unpacked file.
"""

import codecs
import gzip
import os
import zlib

GZIP = b"\x1f\x8b"
MARKS = {  # byte order mark: encoding, longest mark first
    codecs.BOM_UTF32_LE: "UTF-32 LE",
    codecs.BOM_UTF32_BE: "UTF-32 BE",
    codecs.BOM_UTF8: "UTF-8",
    codecs.BOM_UTF16_LE: "UTF-16 LE",
    codecs.BOM_UTF16_BE: "UTF-16 BE",
}
CONTROLS = {chr(i) for i in range(32)} - set("\t\n\f\r")  # no text holds them

Notes = tuple[str, ...]  # what was found and done, in plain words


class DataError(ValueError):
    """Text that can't be had or read: what was found and what to do."""


def read_file(name: str) -> bytes:
    """The bytes of a file as they lie on disk; `FileNotFoundError` if there is none."""
    if os.path.isdir(name):
        raise DataError(f"{name}: found a folder, expected a file; name a file in it")
    try:
        with open(name, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(
            f"{name}: found a file that can't be read ({error.strerror}), expected a readable one; "
            "see to its permissions, or copy it elsewhere"
        ) from None


def unpack(name: str, content: bytes) -> tuple[bytes, Notes]:
    """The content of a gzip file; any other content as it is."""
    if not content.startswith(GZIP):
        return content, ()
    try:
        return gzip.decompress(content), ("unpacked with gzip",)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{name}: found a gzip file that doesn't unpack ({error}), expected a whole one; "
            "copy or pack it again"
        ) from None


def decode(name: str, content: bytes) -> tuple[str, Notes]:
    """The characters of an unpacked file, which may be none, with line ends as LF."""
    mark, encoding = _encoding(content)
    if not mark and b"\0" in content:
        raise DataError(_nul(name, content.index(b"\0"), _unmarked_encoding(content)))
    try:
        text = content[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        offset = len(mark) + error.start
        raise DataError(
            f"{name}: byte 0x{content[offset]:02X} at offset {offset} is not {encoding}; "
            "convert the file first"
        ) from None
    if "\0" in text:
        offset = len(mark) + len(text[: text.index("\0")].encode(encoding))
        raise DataError(_nul(name, offset, None))
    text, notes = unify_line_ends(text)
    return text, _mark_notes(mark, encoding) + notes


def unify_line_ends(text: str) -> tuple[str, Notes]:
    """CRLF and lone CR as LF, and how many of each there were."""
    pairs = text.count("\r\n")
    text = text.replace("\r\n", "\n") if pairs else text
    alone = text.count("\r")
    text = text.replace("\r", "\n") if alone else text
    counts = {"CRLF": pairs, "lone CR": alone}
    return text, tuple(
        f"{count(n, f'{kind} line end')} read as LF" for kind, n in counts.items() if n
    )


def count(number: int, noun: str) -> str:
    """A number and its noun: 1 character, 1,200 characters."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _encoding(content: bytes) -> tuple[bytes, str]:
    for mark, encoding in MARKS.items():
        if content.startswith(mark):
            return mark, encoding
    return b"", "UTF-8"


def _mark_notes(mark: bytes, encoding: str) -> Notes:
    read_as = (f"read as {encoding}",) if mark and encoding != "UTF-8" else ()
    return (*read_as, "byte order mark dropped") if mark else ()


def _unmarked_encoding(content: bytes) -> str | None:
    """What a file with NUL bytes may be: UTF-32 or UTF-16 text with ASCII letters or blanks."""
    for encoding, width in (("UTF-32", 4), ("UTF-16", 2)):
        for order, place in (("LE", width - 1), ("BE", 0)):
            try:
                text = content.decode(f"{encoding} {order}")
            except UnicodeDecodeError:
                continue
            if not CONTROLS & set(text) and _are_high_bytes(content[place::width]):
                return f"{encoding} {order}"
    return None


def _are_high_bytes(values: bytes) -> bool:
    kinds, zeros = len(set(values)), values.count(0)
    return zeros == len(values) or (zeros * 10 >= len(values) and kinds * 4 <= len(values))


def _nul(name: str, offset: int, encoding: str | None) -> str:
    if encoding:
        return (
            f"{name}: found a NUL at offset {offset}, as in {encoding} without a byte order mark, "
            "expected UTF-8; convert it, or add a byte order mark"
        )
    return (
        f"{name}: found a NUL at offset {offset}, as in a binary file, expected text; remove it, "
        "or train on bytes with --symbols bytes"
    )
