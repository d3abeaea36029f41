"""A bar of one line on stderr; none where stderr is no terminal."""

import sys
import time

WIDTH = 30


class Progress:
    """How far something is, of a known number of parts."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._since = name, max(total, 1), time.monotonic()
        self._shown = sys.stderr.isatty()
        self._began: int | None = None  # parts that were done when we came

    def show(self, done: int, note: str = "") -> None:
        """Draw the bar anew."""
        if not self._shown:
            return
        if self._began is None:
            self._began = done
        filled = WIDTH * done // self._total
        bar = "█" * filled + "·" * (WIDTH - filled)
        line = f"{self._name} {bar} {done}/{self._total}{self._rest(done)}{note}"
        print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the bar as it is, and its line."""
        if self._shown and self._began is not None:
            print(file=sys.stderr, flush=True)

    def _rest(self, done: int) -> str:
        new = done - (self._began or 0)
        if not new or done >= self._total:
            return ""
        seconds = (time.monotonic() - self._since) / new * (self._total - done)
        return f", {seconds / 60:.0f} min left" if seconds > 90 else f", {seconds:.0f} s left"
