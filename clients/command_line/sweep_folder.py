"""The folder that `torsor sweep` writes: which sweeps it has started, and what came of them.

    sweeps.json    by name: id on the server, what was asked (a hash), state
    NAME.jsonl     one point a line, as the server has it
    NAME.csv       its numbers as a table
    NAME.svg       deltas, and the range of the controls beside

Every file is written whole or not at all. The files of a sweep are there when its state is.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clients.files import make_folder, write_whole
from clients.plots.svg import Bar, Chart, bar_chart
from clients.sweep_results import (
    ENDED,
    Sweep,
    SweepPoint,
    SweepPoints,
)
from serve.wire.codec import JsonObject, from_json, to_json
from serve.wire.query_responses import csv_columns, csv_line, csv_text, point_json

MEMORY = "sweeps.json"


class SweepFolder:
    """`ValueError` where it holds something else, `OSError` where it can't be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        make_folder(path, "--out")
        self._known = self._read()

    def known(self, name: str) -> tuple[str, str] | None:
        """Id and digest of a sweep that has been started."""
        entry = self._known.get(name)
        return None if entry is None else (entry["id"], entry["digest"])

    def remember(self, name: str, sweep: Sweep, digest: str) -> None:
        """A sweep has been started."""
        self._known[name] = {"id": sweep.id, "digest": digest, "sweep": None}
        self._write()

    def forget(self, name: str) -> None:
        """A sweep is to be started anew."""
        if self._known.pop(name, None) is not None:
            self._write()

    def names(self) -> list[str]:
        """The sweeps that have been started and whose end isn't known here."""
        return [name for name, entry in self._known.items() if entry["sweep"] is None]

    def ended(self, name: str) -> tuple[Sweep, SweepPoints] | None:
        """A sweep that has ended, from the files."""
        page = self._known.get(name, {}).get("sweep")
        if page is None:
            return None
        path = self._file(name, "jsonl")
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            points = (from_json(SweepPoint, json.loads(line)) for line in lines)
            return from_json(Sweep, page), SweepPoints(points)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: can't be read ({error}), expected the points of a sweep that has ended; "
                "start it anew with --again"
            ) from None

    def finish(self, name: str, sweep: Sweep, points: SweepPoints) -> None:
        """Write the files of a sweep that has ended."""
        pages = [point_json(point) for point in points]
        lines = [json.dumps(page, separators=(",", ":")) + "\n" for page in pages]
        write_whole(self._file(name, "jsonl"), "".join(lines))
        rows = [csv_text([*csv_columns(sweep.query)])]
        rows += [csv_line(sweep.query, page) for page in pages]
        write_whole(self._file(name, "csv"), "".join(rows))
        write_whole(self._file(name, "svg"), bar_chart(*chart_of(name, sweep, points)))
        self._known[name]["sweep"] = to_json(sweep)
        self._write()

    def _file(self, name: str, kind: str) -> Path:
        return self.path / f"{name}.{kind}"

    def _read(self) -> dict[str, Any]:
        path = self.path / MEMORY
        if not path.exists():
            return {}
        try:
            page = json.loads(path.read_text(encoding="utf-8"))["sweeps"]
            for entry in page.values():
                if set(entry) != {"id", "digest", "sweep"}:
                    raise ValueError(f"found the keys {', '.join(entry)}")
                sweep = entry["sweep"] and from_json(Sweep, entry["sweep"])
                if sweep is not None and sweep.state not in ENDED:
                    raise ValueError("found a sweep that has not ended among those that have")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: can't be read ({error!r}), expected what torsor sweep wrote there; "
                "choose another --out"
            ) from None
        found: dict[str, Any] = page
        return found

    def _write(self) -> None:
        text = json.dumps({"sweeps": self._known}, indent=2, ensure_ascii=False)
        write_whole(self.path / MEMORY, text + "\n")


def chart_of(name: str, sweep: Sweep, points: Sequence[SweepPoint]) -> Chart:
    """What the plot of a sweep shows: title, axis, bars."""
    return f"{name}: {sweep.model}", f"Δ {sweep.headline}", [_bar(point) for point in points]


def summary_page(name: str, sweep: Sweep, points: SweepPoints) -> JsonObject:
    """A sweep for --json."""
    shown = to_json(replace(sweep, deleted=None))
    return {"name": name, **shown, "points": [point_json(point) for point in points]}


def _bar(point: SweepPoint) -> Bar:
    deltas = [c.delta for c in point.controls if c.delta is not None]
    return Bar(
        name=point.name,
        value=point.delta,
        low=min(deltas, default=None),
        high=max(deltas, default=None),
        mean=point.controls_mean,
    )
