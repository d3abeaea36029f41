"""The answers of `trials` and `compare` as text for a terminal."""

from clients.command_line.tables import NOTHING, Row, align, changes, number
from clients.query_results import Bounds, CompareResult, TrialsResult, label

SAID = {"fvu": "FVU", "mse": "MSE", "loss": "loss"}
SHOWN = 3  # characters of a distribution in a line


def trials(result: TrialsResult) -> str:
    """A line a score, with the ends of its interval; what was removed; and doubts."""
    counted = f"{result.counted:,.0f} counted"
    size = f"{result.num_trials:,} of {result.num_steps:,} steps, {counted}"
    notes: list[Row] = [("model", result.model), ("trials", size)]
    rows: list[Row] = [("SCORE", "BASELINE")]
    if result.ablated is not None:
        rows = [("SCORE", "BASELINE", "ABLATED", "CHANGE", "CHANGE / MASS")]
    rows += [_score_row(result, name) for name in result.baseline]
    if result.intervals is not None:
        percent, count = f"{result.intervals.level:.0%}", f"{result.intervals.resamples:,}"
        notes.append(("intervals", f"{percent}, {count} resamples of the trials"))
    if result.s_delta_t is not None:
        ends = result.intervals.s_delta_t if result.intervals else None
        notes.append(("S_ΔT", _cell(result.s_delta_t, ends, "+.4f")))
    if result.mass is not None:
        notes.append(("mass", number(result.mass, ".4f")))
    notes += changes(result.ablation)
    notes += [("warning", line) for line in result.warnings]
    return f"{align(rows)}\n\n{align(notes)}"


def compare(result: CompareResult) -> str:
    """A line an ablation, the baseline first; what each removed."""
    names = [repr(entry.character) for entry in result.baseline.top]
    heads = tuple(f"p({name})" for name in names)
    rows: list[Row] = [("ABLATION", "ENTROPY", "KL", "TV", "NEXT", *heads)]
    for entry in result.rows():
        own = entry["ablation"]
        values = [
            number(entry[key], ".4f") for key in ("entropy_bits", "kl_bits", "total_variation")
        ]
        rows.append((str(own), *values))
    found = [result.baseline, *result.ablations]
    shares = [[e.probability for e in result.baseline.top]]
    shares += [list(compared.probabilities) for compared in result.ablations]
    for place, (distribution, row) in enumerate(zip(found, shares, strict=True), 1):
        likely = " ".join(repr(e.character) for e in distribution.top[:SHOWN])
        rows[place] = (*rows[place], likely, *(f"{share:.4f}" for share in row))
    notes = [("model", result.model), ("prompt", f"{result.num_characters:,} characters")]
    for compared in result.ablations:
        name = label(compared.ablation)
        notes += [(verb, f"{name}: {line}") for verb, line in changes(compared.ablation)]
    return f"{align(rows)}\n\n{align(notes)}"


def _score_row(result: TrialsResult, name: str) -> Row:
    ends, said = result.intervals, SAID.get(name, name.replace("_", " "))
    first = _cell(result.baseline[name], _ends(ends.baseline if ends else None, name), ".4f")
    if result.ablated is None or result.delta is None:
        return said, first
    change = f"delta_{name}"
    second = _cell(result.ablated[name], _ends(ends.ablated if ends else None, name), ".4f")
    third = _cell(result.delta[change], _ends(ends.delta if ends else None, change), "+.4f")
    return said, first, second, third, number((result.per_mass or {}).get(change), "+.4f")


def _ends(bounds: Bounds | None, name: str) -> tuple[float, float] | None:
    return (bounds or {}).get(name)


def _cell(value: float | None, ends: tuple[float, float] | None, form: str) -> str:
    if value is None:
        return NOTHING
    interval = f" [{number(ends[0], form)}, {number(ends[1], form)}]" if ends else ""
    return number(value, form) + interval
