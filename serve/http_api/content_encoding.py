"""Content-Encoding of request bodies: gzip and deflate, unpacked within the limits of a body."""

import zlib
from collections.abc import Iterator

from serve.wire.errors import RequestError

STEP = 1 << 18  # bytes that are unpacked without a pause
WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class Unpacker:
    """Unpacks the chunks of one body; `RequestError` for data that is not of its encoding."""

    def __init__(self, encoding: str) -> None:
        """`encoding`: the header; `RequestError` for one that is not known here."""
        self._encoding = encoding.strip().lower()
        is_plain = self._encoding in ("", "identity")
        if not is_plain and self._encoding not in WINDOWS:
            expected = "gzip, deflate or none; send the body as one of them"
            sentence = f"content-encoding: found {encoding!r:.80}, expected {expected}"
            raise RequestError("unsupported_media_type", sentence, "content-encoding")
        self._inflate = None if is_plain else zlib.decompressobj(WINDOWS[self._encoding])
        self._is_begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """What the next chunk unpacks to, at most `STEP` bytes at a time."""
        if self._inflate is None:
            yield chunk
            return
        is_more = False
        while chunk or is_more:
            self._is_begun = True
            if self._inflate.eof:  # gzip data may have several members
                self._inflate = zlib.decompressobj(WINDOWS[self._encoding])
            try:
                part = self._inflate.decompress(chunk, STEP)
            except zlib.error as error:
                raise self._refuse(str(error)) from None
            yield part
            is_more = len(part) == STEP and not self._inflate.eof
            chunk = self._inflate.unconsumed_tail or self._inflate.unused_data

    def end(self) -> None:
        """`RequestError` where the data ends before its end."""
        if self._inflate is not None and self._is_begun and not self._inflate.eof:
            raise self._refuse("it ends too soon")

    def _refuse(self, reason: str) -> RequestError:
        sentence = f"body: found no {self._encoding} data ({reason}), which its content-encoding"
        return RequestError("invalid_request", f"{sentence} says it is; send it whole", "body")
