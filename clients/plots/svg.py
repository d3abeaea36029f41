"""A plot as an SVG file: a bar a point, and beside it the range of its controls.

Plain text that any browser opens, with nothing from elsewhere in it. Names are escaped, and what
XML can't hold is left out.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

LEFT, WIDTH, RIGHT, TOP, ROW, BOTTOM = 260, 560, 90, 46, 20, 46  # pixels
MAX_NAME = 38  # characters
STYLE = (
    "text{font:12px sans-serif;fill:#222}.t{font-size:15px}.n{text-anchor:end}"
    ".a{text-anchor:middle;fill:#666}.b{fill:#3b6ea8}.m{fill:#a83b3b}"
    ".c{stroke:#111;stroke-width:1.5}.g{stroke:#ddd}.z{stroke:#666}"
)
UNFIT = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a plot; `value` None: it failed."""

    name: str
    value: float | None
    low: float | None = None  # of the controls
    high: float | None = None
    mean: float | None = None


Chart = tuple[str, str, Sequence[Bar]]  # title, axis, bars


def bar_chart(title: str, axis: str, bars: Sequence[Bar]) -> str:
    """The whole file's text."""
    low, high = _range(bars)
    height = TOP + ROW * len(bars) + BOTTOM

    def x(value: float) -> float:
        return LEFT + WIDTH * (value - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + RIGHT}" '
        f'height="{height}" viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}" role="img">',
        f"<title>{fit(title)}</title><style>{STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text class="t" x="12" y="24">{fit(title)}</text>',
    ]
    bottom = TOP + ROW * len(bars)
    for tick in ticks(low, high):
        kind = "z" if tick == 0 else "g"
        at = f"{x(tick):.1f}"
        parts.append(f'<line class="{kind}" x1="{at}" x2="{at}" y1="{TOP - 6}" y2="{bottom + 4}"/>')
        parts.append(f'<text class="a" x="{at}" y="{bottom + 18}">{tick:.6g}</text>')
    parts.append(f'<text class="a" x="{LEFT + WIDTH / 2}" y="{bottom + 36}">{fit(axis)}</text>')
    for place, bar in enumerate(bars):
        parts.append(_row(bar, TOP + ROW * place, x))
    return "\n".join([*parts, "</svg>", ""])


def ticks(low: float, high: float) -> list[float]:
    """Some round numbers from low to high."""
    raw = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 12) + 0.0 for n in range(first, last + 1)]


def _row(bar: Bar, y: int, x: Callable[[float], float]) -> str:
    name = bar.name if len(bar.name) <= MAX_NAME else bar.name[: MAX_NAME - 1] + "…"
    middle, zero = y + ROW / 2, x(0.0)
    found = [f'<text class="n" x="{LEFT - 8}" y="{middle + 4}">{fit(name)}</text>']
    if bar.value is None:
        found.append(f'<text class="a" x="{zero + 24:.1f}" y="{middle + 4}">failed</text>')
        return "".join(found)
    start, width = min(zero, x(bar.value)), abs(x(bar.value) - zero)
    kind = "b" if bar.value >= 0 else "m"
    shape = f'x="{start:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 8}"'
    note = f"{bar.name}: {bar.value:.6g}"
    if bar.low is not None and bar.high is not None:
        note += f", controls {bar.low:.6g} to {bar.high:.6g}"
    found.append(f'<rect class="{kind}" {shape}><title>{fit(note)}</title></rect>')
    if bar.low is not None and bar.high is not None:
        level = y + ROW - 3
        ends = f'x1="{x(bar.low):.1f}" x2="{x(bar.high):.1f}"'
        found.append(f'<line class="c" {ends} y1="{level}" y2="{level}"/>')
    if bar.mean is not None:
        at = f"{x(bar.mean):.1f}"
        found.append(f'<line class="c" x1="{at}" x2="{at}" y1="{y + ROW - 7}" y2="{y + ROW}"/>')
    return "".join(found)


def _range(bars: Sequence[Bar]) -> tuple[float, float]:
    numbers = [n for bar in bars for n in (bar.value, bar.low, bar.high) if n is not None]
    low, high = min([0.0, *numbers]), max([0.0, *numbers])
    if low == high:
        high = low + 1.0
    pad = (high - low) * 0.03
    return (low - pad if low < 0 else low), high + pad


def fit(text: str) -> str:
    """A text as it may stand in XML."""
    return escape(UNFIT.sub("", text))
