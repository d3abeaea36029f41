"""Scores of trials from sums a trial, and how far another draw of trials would move them.

A score is a function of sums over trials, so a resample of the trials, with replacement, is a
weighted sum of rows; nothing is run again. Baseline and ablated model are resampled alike, so the
interval of their difference is a paired one.

    loss = Σ loss / Σ weight               accuracy = Σ right / Σ weight
    fvu  = Σ missed / (Σ squares - ‖Σ targets‖² / Σ weight),  targets less one centre

The mean target is that of each resample. An interval is of the percentile bootstrap, at 95 %.

Letters: N trials, R resamples, C columns of a table, K steps, B batch, Y output size.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.engine.sampling import log_softmax
from serve.manifest.page import TaskSpec
from serve.runtime.trials import Trials
from serve.wire.query_responses import Bounds, Contrast, Intervals, Scores

Array = NDArray[Any]
Named = dict[str, Array]
LEVEL = 0.95
BLOCK = 1 << 20  # counts that are held at once
WEIGHT, MISSED, RIGHT, SQUARES, FIRST_TARGET = range(5)  # columns; one a component of targets
NEGLIGIBLE = 1e-12  # of the squares: what rounding leaves where targets never change
SIGN_SCORES = ("accuracy", "replay_accuracy")  # of vectors: the share of components of right sign


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """Sums of a model's scores on trials: a row each."""

    table: Array  # (N, C)
    num_steps: int
    num_strays: int  # trials with an output, where it counts, that isn't finite
    signs: bool  # whether all targets that count are vectors of -1 and 1


def score_names(task: TaskSpec) -> tuple[str, ...]:
    """The scores of a task, named as its training names them."""
    if task.targets == "classes":
        return ("loss", "accuracy")
    own = (task.headline,) if task.headline in (*SIGN_SCORES, "mse") else ()
    return ("loss", "fvu", *own)


def scores(task: TaskSpec, totals: Array) -> Named:
    """The scores of sums over trials: (..., C) -> each (...)."""
    weight, missed = totals[..., WEIGHT], totals[..., MISSED]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if task.targets == "classes":
            return {"loss": missed / weight, "accuracy": totals[..., RIGHT] / weight}
        squares, targets = totals[..., SQUARES], totals[..., FIRST_TARGET:]
        variation = squares - (targets**2).sum(axis=-1) / weight
        variation = np.where(variation > NEGLIGIBLE * squares, variation, 0.0)
        loss = missed / weight / targets.shape[-1]
        own = loss if task.headline == "mse" else totals[..., RIGHT] / weight
        found = {"loss": loss, "fvu": missed / variation}
        return found | dict.fromkeys(score_names(task)[2:], own)


def contrast(
    task: TaskSpec,
    baseline: Measured,
    ablated: Measured | None,
    mass: float | None,
    resamples: int,
    seed: int,
) -> Contrast:
    """Scores, what the ablation changed, and intervals.

    `mass`: what the deltas are divided by; None: by nothing. Numbers that aren't finite become
    None, and `warnings` say why. Takes seconds for many resamples: call it off the event loop.
    """
    models = {"baseline": baseline} | ({} if ablated is None else {"ablated": ablated})
    points = {name: scores(task, m.table.sum(axis=0)) for name, m in models.items()}
    change = _change(points, mass)
    drawn = _resampled(task, models, mass, resamples, seed) if resamples else None
    found = Contrast(
        num_trials=len(baseline.table),
        num_steps=baseline.num_steps,
        counted=float(baseline.table[:, WEIGHT].sum()),
        baseline=_numbers(points["baseline"]),
        ablated=None if ablated is None else _numbers(points["ablated"]),
        delta=None if ablated is None else _numbers(change["delta"]),
        s_delta_t=_number(change["per_mass"].get("delta_fvu", math.nan)),
        per_mass=_numbers(change["per_mass"]) if change["per_mass"] else None,
        intervals=None if drawn is None else _intervals(drawn, resamples, seed),
        warnings=(),
    )
    return replace(found, warnings=tuple(_warnings(task, models, mass, found)))


def resample_counts(num_trials: int, resamples: int, seed: int) -> Iterator[Array]:
    """Counts of each trial in each resample, in blocks of some rows of (R, N)."""
    generator, step = np.random.default_rng(seed), max(1, BLOCK // num_trials)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        places = generator.integers(num_trials, size=(rows, num_trials))
        places += np.arange(rows)[:, None] * num_trials
        counts = np.bincount(places.ravel(), minlength=rows * num_trials)
        yield counts.reshape(rows, num_trials).astype(np.float64)


def sum_trials(task: TaskSpec, outputs: Array, targets: Array, weight: Array, centre: Array) -> Any:
    """Rows of a table (B, C): outputs (K, B, Y), targets (K, B) or (K, B, Y), weight (K, B).

    `centre` (Y) is taken from targets that are vectors, lest their squares drown their variation.
    """
    kept = weight[..., None]
    outputs = np.where(kept > 0, outputs, 0).astype(np.float64)
    if task.targets == "classes":
        missed = -np.take_along_axis(log_softmax(outputs), targets[..., None], axis=-1)[..., 0]
        right = outputs.argmax(axis=-1) == targets
        columns = [missed, right & np.isfinite(missed), np.zeros_like(weight)]
        return np.stack([c.sum(axis=0) for c in (weight, *(c * weight for c in columns))], axis=-1)
    targets = targets.astype(np.float64)
    missed = ((outputs - targets) ** 2).sum(axis=-1)
    right = (np.sign(outputs) == targets).mean(axis=-1)
    targets = targets - centre
    columns = [missed, right, (targets**2).sum(axis=-1)]
    sums = [c.sum(axis=0) for c in (weight, *(c * weight for c in columns))]
    return np.concatenate([np.stack(sums, axis=-1), (targets * kept).sum(axis=0)], axis=-1)


def weight_of(task: TaskSpec, trials: Trials) -> Array:
    """The weight of each target: (T, N), or pooled (1, N)."""
    mask = trials.mask.astype(np.float64)
    return np.ones((1, mask.shape[1])) if task.pooled else mask


def centre_of(task: TaskSpec, trials: Trials, weight: Array) -> Array:
    """The mean target (Y) of targets that are vectors; of classes empty."""
    if task.targets == "classes":
        return np.empty(0)
    total: Array = np.einsum("tn,tny->y", weight, trials.targets.astype(np.float64))
    centre: Array = total / weight.sum()
    return centre


def are_signs(task: TaskSpec, trials: Trials, weight: Array) -> bool:
    """Whether all targets that count are vectors of -1 and 1."""
    if task.targets == "classes":
        return False
    return bool((np.abs(trials.targets[weight > 0]) == 1).all())


def _change(points: dict[str, Named], mass: float | None) -> dict[str, Named]:
    """Ablated - baseline; and that over the mass."""
    if "ablated" not in points:
        return {"delta": {}, "per_mass": {}}
    before, after = points["baseline"], points["ablated"]
    with np.errstate(invalid="ignore", over="ignore"):
        delta = {f"delta_{name}": after[name] - before[name] for name in before}
        per_mass = {name: value / mass for name, value in delta.items()} if mass else {}
    return {"delta": delta, "per_mass": per_mass}


def _resampled(
    task: TaskSpec, models: dict[str, Measured], mass: float | None, resamples: int, seed: int
) -> dict[str, Named]:
    """The scores of all resamples: each (R)."""
    found: dict[str, list[Named]] = {name: [] for name in models}
    for counts in resample_counts(len(models["baseline"].table), resamples, seed):
        for name, measured in models.items():
            with np.errstate(invalid="ignore", over="ignore"):
                found[name].append(scores(task, counts @ measured.table))
    joined = {
        name: {key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}
        for name, blocks in found.items()
    }
    return joined | _change(joined, mass)


def _intervals(drawn: dict[str, Named], resamples: int, seed: int) -> Intervals:
    def bounds(part: str) -> Bounds | None:
        return {name: _interval(values) for name, values in drawn.get(part, {}).items()} or None

    fvu = drawn["per_mass"].get("delta_fvu")
    return Intervals(
        level=LEVEL,
        resamples=resamples,
        seed=seed,
        baseline=bounds("baseline"),
        ablated=bounds("ablated"),
        delta=bounds("delta"),
        s_delta_t=None if fvu is None else _interval(fvu),
    )


def _interval(values: Array) -> tuple[float, float] | None:
    """The middle 95 % of the resamples; None where one of them is undefined."""
    if not np.isfinite(values).all():
        return None
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _warnings(
    task: TaskSpec, models: dict[str, Measured], mass: float | None, found: Contrast
) -> Iterator[str]:
    for name, measured in models.items():
        if measured.num_strays:
            strays = f"{measured.num_strays} of {len(measured.table)} trials"
            yield f"{name}: {strays} gave an output that is not finite; loss and fvu are undefined"
    signs = [name for name in score_names(task)[2:] if name in SIGN_SCORES]
    if signs and not models["baseline"].signs:
        yield f"{signs[0]}: found targets other than -1 and 1, expected only these; it is undefined"
    fvu = found.baseline.get("fvu", 0.0)
    if fvu is None and not models["baseline"].num_strays:
        counted = f"over what the mask counts ({found.counted:g})"
        why = "so there is no variance to explain; it is undefined"
        yield f"fvu: the targets never change {counted}, {why}"
    if "ablated" in models and not mass:
        yield "mass: none was removed, or no more than rounding error, so nothing is divided by it"
    unsure = {
        key
        for part in ("baseline", "ablated", "delta")
        for key, bounds in (getattr(found.intervals, part, None) or {}).items()
        if bounds is None and getattr(found, part)[key] is not None
    }
    if unsure:
        yield f"{', '.join(sorted(unsure))}: undefined in some resamples, so without an interval"


def _numbers(values: Named) -> Scores:
    return {name: _number(value) for name, value in values.items()}


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
