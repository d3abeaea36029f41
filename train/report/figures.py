"""The figures of a report: what was measured over iterations, and the spectra of the weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train.model import Weights
from train.report.diagnosis import eigen_angles
from train.report.plots import (
    Series,
    angle_plot,
    band_plot,
    line_plot,
    plain,
    plane_plot,
    suits_log,
)
from train.run import Run
from train.schedule import cosine, one_cycle

ABBREVIATIONS = ("bpc", "fvu", "mse")
PARTS = {"": "training", "valid_": "validation", "test_": "test"}
UNITS = {
    "bpc": "bits per character",
    "accuracy": "share of right answers",
    "fvu": "share of variance unexplained",
}
OTHERS = {  # recorded number: title, label, log axis
    "gradient_norm": ("Gradient norm", "norm before clipping", True),
    "characters_per_s": ("Speed", "characters per second", False),
    "trials_per_s": ("Speed", "trials per second", False),
}
RATE_POINTS = 200
FEW = 40  # points that are marked on their curve

MOST_SPECTRA, MOST_ROWS = 12, 512
WORK = MOST_ROWS**3  # Σ n³ of spectra at a checkpoint; at the end of a run four times that
ORTHOGONAL = 1e-3  # largest entry of PᵀP - I of matrices in a group

Records = list[dict[str, Any]]  # lines of metrics.jsonl
Figures = Iterator[str]  # "" where there is nothing to draw


def read_records(path: Path) -> Records:
    """The measurements of a run, those that can be read."""
    records = Records()
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # half written
        if isinstance(record, dict) and isinstance(record.get("iteration"), int):
            records.append(record)
    return records


def points_of(records: Records, key: str) -> list[tuple[float, float]]:
    """(iteration, value) of all records with this number."""
    return [(float(r["iteration"]), float(r[key])) for r in records if _is_number(r.get(key))]


def say_score(name: str) -> str:
    """`bpc` as `BPC`, `replay_accuracy` as `replay accuracy`."""
    words = name.replace("_", " ")
    return words.upper() if words in ABBREVIATIONS else words


def score_names(run: Run, records: Records) -> list[str]:
    """The scores that were measured, the task's headline first, then the loss."""
    keys, headline = _numbers(records), run.task.headline
    found = {key.removeprefix(p) for p in ("valid_", "test_") for key in keys if key.startswith(p)}
    found |= {"loss", headline} & keys
    return sorted(found, key=lambda name: (name != headline, name != "loss", name))


def curves(run: Run, records: Records) -> Figures:
    """Scores, gradient norm, rate, speed, and whatever else was measured."""
    names = score_names(run, records)
    for name in names:
        yield _score_curve(run, records, name)
    yield _rate_curve(run)
    scored = {part + name for name in names for part in PARTS}
    for key in sorted(_numbers(records) - scored - {"iteration", *STATES, *NORMS}, key=_place):
        title, label, log = OTHERS.get(key, (_title(key), say_score(key), False))
        yield line_plot(title, label, [_series(records, key, title)], log)


STATES = {  # recorded number: title, label, log axis
    "orthogonality_error": ("Orthogonality error of the states", "max |HᵀH − I|", True),
    "state_rms": ("Size of the states", "root mean square", False),
}
NORMS = {"generator_norm_mean": "mean", "generator_norm_max": "largest"}


def states(records: Records) -> Figures:
    """How far states are from their group, and how far steps move them; else their size."""
    on_group = bool(points_of(records, "orthogonality_error"))
    key = "orthogonality_error" if on_group else "state_rms"
    title, label, log = STATES[key]
    yield line_plot(title, label, [_series(records, key, title)], log)
    rows = [(r["iteration"], r["step_angles"]) for r in records if _is_quantiles(r)]
    drawn = [_series(records, key, told) for key, told in NORMS.items()]
    log = suits_log(y for series in drawn for _, y in series.points)
    yield line_plot("Generator norms", "|S| / √2 of the tangents taken (rad)", drawn, log)
    yield band_plot("Angles by which a step turns the states", "eigen-angle (rad)", rows)


@torch.no_grad()
def spectra(run: Run) -> Figures:
    """Eigenvalues of square weights, eigen-angles of stacks of orthogonal ones, largest first."""
    left, count = WORK * (4 if run.finished else 1), 0
    weights = {name: w.detach().float().cpu() for name, w in run.model.weights().items()}
    found = list(_planes(weights)) + [item for item in weights.items() if _is_square(item[1])]
    for name, weight in sorted(found, key=lambda item: -item[1].shape[-1]):
        left -= weight.numel() * weight.shape[-1] if weight.ndim > 1 else 0
        if left >= 0 and count < MOST_SPECTRA and (figure := _spectrum(name, weight)):
            count += 1
            yield figure


def _score_curve(run: Run, records: Records, name: str) -> str:
    in_nats = name == "loss" and run.task.name == "text"
    label = "nats per character" if in_nats else UNITS.get(name, say_score(name))
    found = [_series(records, part + name, told) for part, told in PARTS.items()]
    drawn = [series for series in found if series.points]
    log = suits_log(y for series in drawn for _, y in series.points)
    return line_plot(_title(name), label, drawn, log)


def _title(name: str) -> str:
    words = say_score(name)
    return words[:1].upper() + words[1:]


def _series(records: Records, key: str, name: str) -> Series:
    points = points_of(records, key)
    return Series(name, points, len(points) <= FEW)


def _rate_curve(run: Run) -> str:
    cycle, warm_up = (
        one_cycle if run.settings.schedule == "one-cycle" else cosine,
        run.settings.warm_up,
    )
    total, done = run.settings.iterations, run.iteration
    steps = [i / RATE_POINTS for i in range(RATE_POINTS + 1)]
    planned = [(share * total, cycle(share, warm_up)[0]) for share in steps]
    now = [(float(done), cycle(min(done, total - 1) / total, warm_up)[0])]
    title, label = "Learning rate", f"share of the peak, {plain(run.settings.learning_rate)}"
    return line_plot(title, label, [Series("planned", planned), Series("now", now, True)])


def _place(key: str) -> tuple[int, str]:
    order = list(OTHERS)
    return order.index(key) if key in order else len(order), key


def _numbers(records: Records) -> set[str]:
    return {key for record in records for key, value in record.items() if _is_number(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_quantiles(record: dict[str, Any]) -> bool:
    found = record.get("step_angles")
    return isinstance(found, list) and all(map(_is_number, found))


def _is_square(weight: Tensor) -> bool:
    if weight.ndim not in (2, 3) or not 1 < weight.shape[-1] == weight.shape[-2] <= MOST_ROWS:
        return False
    return weight.ndim == 2 or bool(_distance(weight) < ORTHOGONAL)


def _distance(P: Tensor) -> float:  # of (V, n, n) from the group
    return float((P.mT @ P - torch.eye(P.shape[-1])).abs().max())


def _planes(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """The eigenvalues γ exp(±iθ) of layers that turn and dampen planes: complex, (2p)."""
    for name, angle in weights.items():
        decay = weights.get(name.removesuffix("angle") + "decay")
        if name.endswith("angle") and decay is not None and decay.shape == angle.shape[:-1]:
            half = torch.polar(decay.unsqueeze(-1).expand_as(angle), angle).flatten()
            yield name.removesuffix(".angle"), torch.cat([half, half.conj()])


def _spectrum(name: str, weight: Tensor) -> str:
    if not weight.isfinite().all():  # of NaN the library for eigenvalues may crash
        return ""
    if weight.ndim == 3:
        V, n, _ = weight.shape
        note = f"{V} matrices, {n} × {n}"
        return angle_plot(name, note, eigen_angles(weight).flatten().tolist())
    values = torch.linalg.eigvals(weight) if weight.ndim == 2 else weight
    size = f"{len(values)} × {len(values)}, " if weight.ndim == 2 else ""
    radius = float(values.abs().max())
    return plane_plot(name, f"{size}spectral radius {plain(radius)}", values.tolist())
