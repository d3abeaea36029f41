"""The report of a run: RUN/report.html, one page that opens offline and holds no script.

Written anew at every checkpoint, from the config, metrics.jsonl and the model. Names and samples
hold any characters, so all are escaped, and those without a glyph are shown by their code.
"""

import os
import shlex
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from train.report.figures import (
    PARTS,
    Records,
    curves,
    points_of,
    read_records,
    say_score,
    score_names,
    spectra,
    states,
)
from train.report.plots import plain
from train.run import Run
from train.run_folder import MARK, REPORT, REPORT_PART

STYLE = Path(__file__).with_suffix(".css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MOST_SAMPLES = 40


def write_report(run: Run) -> Path:
    """Write the page, whole or not at all; where it is."""
    path, part = run.folder / REPORT, run.folder / REPORT_PART
    part.write_text(make_page(run, read_records(run.metrics_path)), encoding="utf-8")
    os.replace(part, path)
    return path


def make_page(run: Run, records: Records) -> str:
    """The page as HTML."""
    title = escape(f"{run.config['family']} learns {run.task.name}")
    sections = (
        _header(run, title),
        _section("Scores", _scores(run, records)),
        _plots("Training", curves(run, records)),
        _plots("States", states(records)),
        _plots("Weights", spectra(run)),
        _section("Samples", _samples(records)),
        _section("Next", _commands(run)),
        _section("Settings", _settings(run)),
    )
    return (
        f'{MARK}<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<title>{title}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n"
        f"<body>\n{''.join(sections)}</body>\n</html>\n"
    )


def visible(text: str) -> str:
    """A text as HTML that shows every character of it."""
    return "".join(escape(c) if _has_glyph(c) else _code(c) for c in text)


def _has_glyph(character: str) -> bool:
    category = unicodedata.category(character)
    return character in "\n\t" or category == "Zs" or category[0] not in "CZ"


def _code(character: str) -> str:
    return f'<span class="dim">\\u{ord(character):04x}</span>'


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>\n{content}\n" if content else ""


def _plots(title: str, figures: Iterable[str]) -> str:
    found = "\n".join(figure for figure in figures if figure)
    return _section(title, f'<div class="plots">\n{found}\n</div>' if found else "")


def _header(run: Run, title: str) -> str:
    done, total, source = run.iteration, run.settings.iterations, run.task.source
    items = f", {source.size:,} items" if source.size else ""
    facts = (
        f"data: {visible(source.name)}{items}",
        f"{run.model.num_parameters():,} parameters",
        f"seed {run.settings.seed}",
        f"iteration {done:,} of {total:,}",
        f"written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )
    return (
        f'<header>\n<p class="dim">Report of a run</p>\n<h1>{title}</h1>\n'
        f'<p class="dim">{" · ".join(facts)}</p>\n'
        f'<progress max="{total}" value="{done}" aria-label="iterations done"></progress>\n'
        "</header>\n"
    )


def _scores(run: Run, records: Records) -> str:
    names = score_names(run, records)
    if not names:
        return '<p class="dim">Nothing is measured yet.</p>'
    cards = [
        f"<p><b>{plain(points[-1][1])}</b>{told} {escape(say_score(names[0]))}</p>"
        for part, told in reversed(PARTS.items())
        if (points := points_of(records, part + names[0]))
    ]
    columns = ("training", "validation", "best validation", "test")
    head = "".join(f'<th scope="col" class="number">{column}</th>' for column in columns)
    rows = "\n".join(_score_row(run, records, name) for name in names)
    better = f"the latest of each; {escape(say_score(names[0]))}: {run.task.better} is better"
    return (
        f'<div class="scores">{"".join(cards)}</div>\n<div class="scroll"><table>\n'
        f'<caption class="dim">{better}</caption>\n'
        f'<thead><tr><th scope="col">score</th>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n'
        "</table></div>"
    )


def _score_row(run: Run, records: Records, name: str) -> str:
    training, valid, test = (points_of(records, part + name) for part in PARTS)
    finite = [point for point in valid if abs(point[1]) < float("inf")]
    higher = run.task.better == "higher" and name != "loss"
    best = (max if higher else min)(finite, key=lambda point: point[1], default=None)
    cells = [plain(points[-1][1]) if points else "–" for points in (training, valid, test)]
    cells.insert(2, f"{plain(best[1])} at {plain(best[0])}" if best else "–")
    written = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f'<tr><th scope="row">{escape(say_score(name))}</th>{written}</tr>'


def _samples(records: Records) -> str:
    found = [(r["iteration"], r["sample"]) for r in records if isinstance(r.get("sample"), str)]
    if not found:
        return ""
    (last, text), older = found[-1], found[-2 : -MOST_SAMPLES - 1 : -1]
    pieces = [f'<p class="dim">iteration {last:,}</p>\n<pre>\n{visible(text)}</pre>']
    pieces += [
        f"<details><summary>iteration {at:,}</summary>\n<pre>\n{visible(text)}</pre></details>"
        for at, text in older
    ]
    return "\n".join(pieces)


def _commands(run: Run) -> str:
    name = run.folder.resolve().name
    place, bundle = shlex.quote(str(run.folder)), shlex.quote(f"bundles/{name}")
    exports = (run.settings.task, run.settings.symbols) == ("text", "characters")
    lines = [f"torsor export {place} --out {bundle}", f"torsor serve {bundle}"] if exports else []
    if not run.finished:
        lines.insert(0, f"torsor train {run.config['family']} --out {place} --resume")
    return f"<pre>\n{visible(chr(10).join(lines))}</pre>" if lines else ""


def _settings(run: Run) -> str:
    groups: dict[str, dict[str, Any]] = {
        "sizes": run.config["config"],
        "task": run.config["task"],
        "training": run.config["training"],
    }
    return "\n".join(
        f'<p class="dim">{title}</p>\n<dl>{"".join(_fact(*item) for item in group.items())}</dl>'
        for title, group in groups.items()
        if group
    )


def _fact(name: str, value: object) -> str:
    told = plain(value) if isinstance(value, float) else str(value)
    return f"<div><dt>{escape(name.replace('_', ' '))}</dt><dd>{visible(told)}</dd></div>"
