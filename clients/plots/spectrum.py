"""The spectra of a model's square targets as an SVG file: a panel a target, the complex plane.

Each dot is an eigenvalue, in R or in C; circles are the unit circle, and alpha times the spectral
radius, where R ends. Below stand the masses of the couplings. Plain text that any browser opens.
"""

import math
from collections.abc import Iterable

from clients.plots.svg import fit
from clients.results import Spectrum, Structure, Target

PANEL, PAD, HEAD, FOOT, COLUMNS = 240, 20, 44, 40, 4  # pixels, but for the columns
CHARACTER, LARGE_CHARACTER = 6.8, 8.5  # pixels, the widths of letters on average at most
STYLE = (
    "text{font:12px sans-serif;fill:#222}.t{font-size:15px}.s{fill:#666;font-size:11px}"
    ".u{fill:none;stroke:#bbb}.l{fill:none;stroke:#999;stroke-dasharray:4 3}.x{stroke:#e4e4e4}"
    ".R{fill:#a83b3b}.C{fill:#3b6ea8}"
)


def spectrum_plot(page: Structure) -> str:
    """The whole file's text. ValueError where no target is square."""
    shown = [(target, target.spectrum) for target in page.targets if target.spectrum]
    if not shown:
        raise ValueError(f"--plot: found no square target in {page.model}, expected one")
    columns = min(COLUMNS, len(shown))
    title = f"{page.model}: eigenvalues, leading sector R and complement C"
    told = max(len(line) for target, spectrum in shown for line in _told(target, spectrum))
    room = max(PANEL, math.ceil(told * CHARACTER))  # of a panel and what stands below it
    wide = max(columns * (room + PAD), math.ceil(len(title) * LARGE_CHARACTER) + PAD)
    width = PAD + wide
    height = HEAD + -(-len(shown) // columns) * (PANEL + FOOT + PAD)
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">',
        f"<title>{fit(title)}</title><style>{STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text class="t" x="{PAD}" y="26">{fit(title)}</text>',
    ]
    for place, (target, spectrum) in enumerate(shown):
        row, column = divmod(place, columns)
        x, y = PAD + column * (room + PAD), HEAD + row * (PANEL + FOOT + PAD)
        head.append(f'<g transform="translate({x} {y})">{"".join(_panel(target, spectrum))}</g>')
    return "\n".join([*head, "</svg>", ""])


def _panel(target: Target, spectrum: Spectrum) -> Iterable[str]:
    reach, half = max(1.0, spectrum.rho) * 1.08, PANEL / 2

    def radius(value: float) -> str:
        return f"{half * value / reach:.2f}"

    yield f'<line class="x" x1="0" x2="{PANEL}" y1="{half}" y2="{half}"/>'
    yield f'<line class="x" x1="{half}" x2="{half}" y1="0" y2="{PANEL}"/>'
    for kind, size in (("u", 1.0), ("l", spectrum.alpha * spectrum.rho)):
        yield f'<circle class="{kind}" cx="{half}" cy="{half}" r="{radius(size)}"/>'
    for place, value in enumerate(spectrum.eigenvalues):
        cx, cy = half * (1 + value.real / reach), half * (1 - value.imag / reach)
        sector = "R" if place < spectrum.n_R else "C"
        told = f"{sector}: {value.real:.4g} {value.imag:+.4g}i, modulus {abs(value):.4g}"
        dot = f'<circle class="{sector}" cx="{cx:.2f}" cy="{cy:.2f}" r="2.6">'
        yield f"{dot}<title>{fit(told)}</title></circle>"
    sizes, masses = _told(target, spectrum)
    yield f'<text x="0" y="{PANEL + 14}">{fit(sizes)}</text>'
    yield f'<text class="s" x="0" y="{PANEL + 30}">{fit(masses)}</text>'


def _told(target: Target, spectrum: Spectrum) -> tuple[str, str]:
    """The lines below a panel."""
    masses = ", ".join(f"{part} {spectrum.masses[part]:.3g}" for part in ("RR", "C→R", "CC"))
    sizes = f"n_R {spectrum.n_R}, n_C {spectrum.n_C}, radius {spectrum.rho:.4g}"
    return f"{target.name}: {sizes}", f"mass of couplings: {masses}"
