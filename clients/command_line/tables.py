"""Tables: results as text for a terminal."""

from collections.abc import Iterable, Sequence

from clients.query_results import CompareResult, TrialsResult, label
from clients.results import ModelInfo, Pair, ScoreResult, Structure, Target
from serve.wire.codec import Json
from serve.wire.query_responses import Bounds

NOTHING = "-"
LARGE = 1e4  # from which on decimals say nothing

COUPLINGS = ("RR", "C→R", "CC")  # parts of a Schur form

Row = tuple[str, ...]


def models(held: Iterable[ModelInfo]) -> str:
    """One line a model."""
    rows: list[Row] = [
        ("MODEL", "FAMILY", "PARAMETERS", "TASK", "SIZES", "TEST SCORE", "DEVICE", "KERNELS")
    ]
    rows += [
        (
            model.id,
            model.family,
            f"{model.num_parameters:,}",
            *_task_cells(model),
            f"{model.device} ({model.provider})",
            model.kernels,
        )
        for model in held
    ]
    return align(rows)


def structure(page: Structure) -> str:
    """One line a target; R and C split at the alpha that the server answers."""
    rows: list[Row] = [
        ("TARGET", "SHAPE", "OPS", "NORM", "RADIUS", "n_R", "n_C", "RR", "C→R", "CC")
    ]
    rows += [_target_row(target) for target in page.targets]
    notes: list[Row] = [(s.name, f"symmetry: {s.meaning}") for s in page.symmetries]
    for target in page.targets:
        warnings = target.spectrum.warnings if target.spectrum else ()
        notes += [(target.name, note) for note in (target.meaning, *warnings)]
    return f"{page.model}\n\n{align(rows)}\n\n{align(notes)}"


def score(result: ScoreResult) -> str:
    """BPC, and with an ablation what it changed and what was removed."""
    rows = [
        ("model", result.model),
        ("characters", f"{result.num_characters:,}"),
        ("BPC", number(result.baseline.bpc, ".4f")),
    ]
    if result.ablated is not None:
        rows += [
            ("ablated BPC", number(result.ablated.bpc, ".4f")),
            ("ΔBPC", number(result.delta_bpc, "+.4f")),
            ("mean KL", f"{number(result.mean_kl, '.4f')} bits"),
        ]
    return align(rows + changes(result.ablation))


def pair(texts: Pair) -> str:
    """Both texts under headings, where they part and what was removed."""
    apart = texts.first_difference
    where = "none, the texts are equal" if apart is None else f"character {apart}"
    rows: list[Row] = [
        ("model", texts.model),
        ("seed", str(texts.seed)),
        ("first difference", where),
    ]
    rows += changes(texts.ablation)
    return (
        f"== baseline ==\n{texts.baseline.text}\n\n"
        f"== ablated ==\n{texts.ablated.text}\n\n{align(rows)}"
    )


def changes(ablation: Json) -> list[Row]:
    """A row an edit: what it did, "removed" or "moved", and its line of `removed`."""
    edits = (ablation or {}).get("edits", [])
    verbs = ["moved" if edit["op"] == "symmetry" else "removed" for edit in edits]
    return list(zip(verbs, removed(ablation), strict=True))


def removed(ablation: Json) -> list[str]:
    """One line an edit: what it removed, as a share of its target's Frobenius norm."""
    lines = []
    page = ablation or {}
    removed = page.get("removed", [])
    for asked, edit in zip(page.get("edits", []), removed, strict=True):
        warnings = "".join(f"; {warning}" for warning in edit.get("warnings", []))
        done = f"{edit['target']} {edit['op']}{_settings(asked)}"
        lines.append(f"{done}: mass {number(edit['mass'], '.4f')}{warnings}")
    return lines


def _settings(edit: Json) -> str:
    """What an edit says beside target and op, in brackets: (alpha 0.9, zero C→R CC)."""
    said = [f"{key} {_setting(edit[key])}" for key in edit if key not in ("target", "op")]
    return f" ({', '.join(sorted(said))})" if said else ""


def _setting(value: Json) -> str:
    if isinstance(value, dict):  # the edit that a control is like
        return f"{value.get('target', '')} {value['op']}{_settings(value)}".strip()
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _task_cells(model: ModelInfo) -> Row:
    task, (name, score) = model.task, model.headline
    said = {"bpc": "BPC"}.get(name, name.replace("_", " "))
    shown = NOTHING if score is None else f"{said} {score:.3f}"
    if task is None:
        return "text", f"{model.vocabulary_size} characters", shown
    return task["name"], f"{task['input_size']} → {task['output_size']}", shown


def _target_row(target: Target) -> Row:
    shape = "×".join(map(str, target.shape))
    row = (target.name, shape, ",".join(target.ops), number(target.norm, ".4f"))
    if target.spectrum is None:
        return (*row, *[NOTHING] * 6)
    spectrum = target.spectrum
    masses = [number(spectrum.masses[part], ".4f") for part in COUPLINGS]
    return (*row, number(spectrum.rho, ".4f"), str(spectrum.n_R), str(spectrum.n_C), *masses)


def number(value: float | None, form: str) -> str:
    """A number in a format of so many decimals; None is `-`, a large one has an exponent."""
    if value is None:
        return NOTHING
    text = format(value, form) if abs(value) < LARGE else format(value, form.replace("f", "g"))
    if float(text) == 0:  # what rounds to 0 has no sign of its own
        text = format(0.0, form)
    return text


def align(rows: Sequence[Row]) -> str:
    """Lines whose columns stand under each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


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
    rows += [_score_row(result, name) for name in sorted(result.baseline)]
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
