"""Plots as inline SVG: lines, bands, points in the complex plane, histograms.

A plot is a `<figure>` with axes, a legend, and its title and content in words. Colours are classes
c0, c1, ... that the page's style sheet defines. Numbers that aren't finite, and on a log axis those
that aren't positive, leave a gap.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple, TypeVar

WIDTH, HEIGHT, PLANE_HEIGHT = 440, 250, 330
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 26, 40
MOST = 500  # points of a curve; the rest is left out evenly
COLOURS = 4
LARGEST = 1e100  # that is drawn
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
QUARTERS = ("0", "π/4", "π/2", "3π/4", "π")

Point = tuple[float, float]
T = TypeVar("T")


class Series(NamedTuple):
    """Points (x, y) by rising x, drawn as a line, or as marks where they are few."""

    name: str
    points: list[Point]
    marks: bool = False


class Scale(NamedTuple):
    """An axis: values from low to high, drawn from start to end."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value is drawn."""
        low, high = (math.log(x) if self.log else x for x in (self.low, self.high))
        share = ((math.log(value) if self.log else value) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Round values on the axis, with their names."""
        if self.log and self.high / self.low >= 10.0:
            return [(x, plain(x)) for x in _log_ticks(self.low, self.high)]
        step = _round_step((self.high - self.low) / 4.5)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        named = [(i * step, _signed(f"{i * step:,.{digits}f}")) for i in range(first, last + 1)]
        far = self.high - self.low < 1e-3 * max(abs(self.low), abs(self.high))  # from 0
        return named if digits <= 4 or far else [(x, plain(x)) for x, _ in named]


def plain(value: float) -> str:
    """A number with up to four digits that count: 1,200, 0.0153, 3.2×10⁻⁷."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    size = abs(value)
    if size >= 1e15 or 0.0 < size < 1e-4:
        mantissa, exponent = f"{value:.2e}".split("e")
        factor = _signed(f"{float(mantissa):g}")
        power = f"10{str(int(exponent)).translate(SUPERSCRIPTS)}"
        return power if factor == "1" else f"{factor}×{power}"
    return _signed(f"{value:,.0f}" if size >= 1000.0 else f"{value:.4g}")


def _signed(number: str) -> str:
    return number.replace("-", "−")


def line_plot(title: str, label: str, series: Sequence[Series], log: bool = False) -> str:
    """Curves over iterations; nothing if there is no number to draw."""
    drawn = [s._replace(points=thin(s.points)) for s in series]
    values = [y for s in drawn for _, y in s.points if _fits(y, log)]
    if not values:
        return ""
    x, y = _x_scale(x for s in drawn for x, _ in s.points), _y_scale(values, log)
    body = [_axes(x, y, "iteration", label)]
    body += [_curve(s, x, y, i % COLOURS) for i, s in enumerate(drawn)]
    kinds = ["dot" if s.marks and len(s.points) == 1 else "line" for s in drawn]
    legend = [(f"{kinds[i]} c{i % COLOURS}", s.name) for i, s in enumerate(drawn)]
    told = "; ".join(_describe(s) for s in drawn)
    return _figure(title, f"{label}: {told}", "".join(body), legend if len(drawn) > 1 else [])


def band_plot(
    title: str, label: str, rows: Sequence[tuple[float, Sequence[float]]], log: bool = False
) -> str:
    """Five quantiles over iterations: minimum to maximum, quartiles, median."""
    drawn = [(x, q) for x, q in thin(rows) if len(q) == 5 and all(_fits(y, log) for y in q)]
    if not drawn:
        return ""
    x, y = _x_scale(x for x, _ in drawn), _y_scale([y for _, q in drawn for y in q], log)

    def path(index: int) -> list[str]:
        return [f"{x.place(at):.1f},{y.place(q[index]):.1f}" for at, q in drawn]

    body = _axes(x, y, "iteration", label)
    for name, low, high in (("wide", 0, 4), ("narrow", 1, 3)):
        body += f'<polygon class="band {name}" points="{" ".join(path(low) + path(high)[::-1])}"/>'
    median = Series("median", [(at, q[2]) for at, q in drawn], len(drawn) == 1)
    body += _curve(median, x, y, 0)
    legend = [("line c0", "median"), ("area narrow", "quartiles"), ("area wide", "all")]
    return _figure(title, f"{label}: {_describe(median)}", body, legend)


def plane_plot(title: str, note: str, values: Sequence[complex]) -> str:
    """Points in the complex plane, with the unit circle."""
    found = [z for z in values if abs(z) < LARGEST]
    if not found:
        return ""
    radius = 1.08 * max(1.0, *(abs(z) for z in found))
    bottom, aspect = PLANE_HEIGHT - BOTTOM, (WIDTH - LEFT - RIGHT) / (PLANE_HEIGHT - TOP - BOTTOM)
    x = Scale(-radius * aspect, radius * aspect, LEFT, WIDTH - RIGHT)
    y = Scale(-radius, radius, bottom, TOP)
    ring, across = x.place(1.0) - x.place(0.0), f"{x.place(0.0):.1f}"
    dots = "".join(f"M{x.place(z.real):.1f},{y.place(z.imag):.1f}h0" for z in found)
    body = (
        _axes(x, y, "real part", "imaginary part")
        + f'<circle class="ring" cx="{across}" cy="{y.place(0.0):.1f}" r="{ring:.1f}"/>'
        + f'<path class="dots" d="{dots}"/>'
    )
    legend = [("dot c0", "eigenvalue"), ("line ring", "unit circle")]
    told = f"{len(found)} eigenvalues; {note}"
    return _figure(title, told, body, legend, note, PLANE_HEIGHT)


def angle_plot(title: str, note: str, angles: Sequence[float], bins: int = 32) -> str:
    """How often angles (rad) in [0, π] occur."""
    found = [angle for angle in angles if math.isfinite(angle)]
    if not found:
        return ""
    counts = [0] * bins
    for angle in found:
        counts[min(int(angle / math.pi * bins), bins - 1)] += 1
    x = Scale(0.0, math.pi, LEFT, WIDTH - RIGHT)
    y = Scale(0.0, 1.05 * max(counts), HEIGHT - BOTTOM, TOP)
    named = [(i * math.pi / 4, name) for i, name in enumerate(QUARTERS)]
    body = _axes(x, y, "eigen-angle (rad)", "eigenvalues", named)
    for i, count in enumerate(counts):
        left, right = x.place(i * math.pi / bins), x.place((i + 1) * math.pi / bins)
        top = y.place(count)
        body += (
            f'<rect class="bar" x="{left + 0.5:.1f}" y="{top:.1f}" width="{right - left - 1:.1f}" '
            f'height="{y.start - top:.1f}"/>'
        )
    return _figure(title, f"{len(found)} eigen-angles; {note}", body, [], note)


def thin(points: Sequence[T]) -> list[T]:
    """At most `MOST` of the points, evenly, the first and the last among them."""
    stride = math.ceil((len(points) - 1) / (MOST - 1)) or 1
    kept = list(points[:-1:stride])
    return kept + list(points[-1:])


def suits_log(values: Iterable[float]) -> bool:
    """Whether values span so much that only a log axis shows them."""
    found = [value for value in values if math.isfinite(value)]
    return bool(found) and min(found) > 0.0 and max(found) / min(found) > 30.0


def _fits(value: float, log: bool) -> bool:
    return abs(value) < LARGEST and (value > 1.0 / LARGEST or not log)  # false for NaN


def _x_scale(found: Iterable[float]) -> Scale:
    return Scale(0.0, max(1.0, *found, 1.0), LEFT, WIDTH - RIGHT)


def _y_scale(values: list[float], log: bool) -> Scale:
    low, high = min(values), max(values)
    if log:
        factor = (high / low) ** 0.04 if high > 1.01 * low else 2.0
        low, high = low / factor, high * factor
    else:
        size = max(abs(low), abs(high))
        pad = 0.04 * (high - low) if high - low > 1e-9 * size else 0.1 * size or 1.0
        low, high = low - pad, high + pad
    return Scale(low, high, HEIGHT - BOTTOM, TOP, log)


def _round_step(rough: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= 0.999 * rough)


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, math.ceil((last - first) / 7))
    multiples = (1, 2, 5) if last - first <= 2 else (1,)
    found = [m * 10.0**e for e in range(first, last + 1, stride) for m in multiples]
    return [x for x in found if low <= x <= high]


def _axes(
    x: Scale, y: Scale, x_label: str, y_label: str, x_ticks: list[tuple[float, str]] | None = None
) -> str:
    pieces = []
    for value, name in y.ticks():
        at = f"{y.place(value):.1f}"
        pieces.append(f'<path class="grid" d="M{x.start},{at}H{x.end}"/>')
        pieces.append(f'<text class="y" x="{x.start - 7}" y="{at}" dy=".33em">{name}</text>')
    for value, name in x_ticks or x.ticks():
        at = f"{x.place(value):.1f}"
        pieces.append(f'<path class="tick" d="M{at},{y.start}v4"/>')
        pieces.append(f'<text class="x" x="{at}" y="{y.start + 17}">{name}</text>')
    pieces.append(f'<path class="axis" d="M{x.start},{y.end}V{y.start}H{x.end}"/>')
    pieces.append(f'<text class="label" x="2" y="13">{escape(y_label)}</text>')
    pieces.append(f'<text class="label end" x="{x.end}" y="{y.start + 34}">{x_label}</text>')
    return "".join(pieces)


def _curve(series: Series, x: Scale, y: Scale, colour: int) -> str:
    def placed(point: Point) -> str:
        return f"{x.place(point[0]):.1f},{y.place(point[1]):.1f}"

    pieces = list[list[Point]]()
    for fits, piece in itertools.groupby(series.points, lambda point: _fits(point[1], y.log)):
        pieces += [list(piece)] if fits else []
    path = "".join("M" + "L".join(map(placed, piece)) for piece in pieces)
    lonely = [piece[0] for piece in pieces if len(piece) == 1]
    marked = [point for piece in pieces for point in piece] if series.marks else lonely
    marks = "".join(f"M{placed(point)}h0" for point in marked)
    line = f'<path class="curve c{colour}" d="{path}"/>'
    return line + (f'<path class="marks c{colour}" d="{marks}"/>' if marks else "")


def _describe(series: Series) -> str:
    found = [point for point in series.points if math.isfinite(point[1])]
    if not found:
        return f"{series.name}, no number"
    (start, first), (end, last) = found[0], found[-1]
    return f"{series.name}, {plain(first)} at {plain(start)} to {plain(last)} at {plain(end)}"


def _figure(
    title: str,
    told: str,
    body: str,
    legend: list[tuple[str, str]],
    note: str = "",
    height: int = HEIGHT,
) -> str:
    keys = "".join(f'<span><i class="{kind}"></i>{escape(name)}</span>' for kind, name in legend)
    caption = f"<strong>{escape(title)}</strong>" + (f" {escape(note)}" if note else "")
    keys = f'<span class="legend">{keys}</span>' if keys else ""
    return (
        f'<figure><figcaption>{caption}{keys}</figcaption><svg viewBox="0 0 {WIDTH} {height}" '
        f'role="img"><title>{escape(title)}</title><desc>{escape(told)}</desc>{body}</svg></figure>'
    )
