"""The plot of `clients/plots/svg.py` as a PNG, drawn by matplotlib where it is installed."""

from collections.abc import Callable, Sequence
from importlib import import_module
from io import BytesIO

from clients.plots.svg import Bar

Painter = Callable[[str, str, Sequence[Bar]], bytes]


def painter() -> Painter:
    """What draws a title, an axis and its bars; ValueError where there is no matplotlib."""
    try:
        figures = import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise ValueError(
            "--png: found no matplotlib, expected it beside torsor: pip install matplotlib; "
            "the SVG is written without it"
        ) from None

    def draw(title: str, axis: str, bars: Sequence[Bar]) -> bytes:
        figure = figures.Figure(figsize=(9, 1.2 + 0.25 * len(bars)), layout="constrained")
        axes = figure.subplots()
        axes.barh(range(len(bars)), [bar.value or 0.0 for bar in bars])
        for place, bar in enumerate(bars):
            if bar.low is not None and bar.high is not None:
                axes.plot([bar.low, bar.high], [place, place], "k|-")
        axes.set_yticks(range(len(bars)), [_plain(bar.name) for bar in bars])
        axes.invert_yaxis()
        axes.set(title=_plain(title), xlabel=_plain(axis))
        file = BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()

    return draw


def _plain(text: str) -> str:
    # matplotlib reads formulas between dollars
    return text.replace("$", r"\$")
