"""Results as text for a terminal."""

from collections.abc import Iterable, Sequence

from clients.results import Json, ModelInfo, Pair, ScoreResult, Structure, Target

NOTHING = "-"
LARGE = 1e4  # from which on decimals say nothing

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
    masses = [number(mass, ".4f") for mass in spectrum.masses.values()]
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
