"""The query `trials`: a task model's scores on trials, and what an ablation changes.

    measured = await measure(host, bundle, variant.session, trials)     once a model
    found = contrast(task, baseline, ablated, mass, resamples, seed)    serve/queries/intervals.py

Trials run beside the engine, in a thread of their own and one query after the other. A query that
nobody waits for any more ends before its next run of the graph.
"""

import base64
import binascii
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve import metrics
from serve.ablation.apply import divisor_of
from serve.gateway.request_log import note_query
from serve.manifest.page import TaskSpec
from serve.manifest.values import BundleError
from serve.models import Models
from serve.queries.intervals import (
    RIGHT,
    Measured,
    are_signs,
    centre_of,
    contrast,
    sum_trials,
    weight_of,
)
from serve.queries.trial_data import read_json_trials, read_safetensors_trials
from serve.runtime.bundle import Bundle
from serve.runtime.session import Session
from serve.runtime.trials import BATCH, Trials, run_pieces
from serve.wire.codec import shallow
from serve.wire.errors import RequestError, invalid, shutting_down
from serve.wire.queries import TrialsRequest
from serve.wire.query_responses import TrialScores

Array = NDArray[Any]
Arrays = dict[str, Array]


class _Abandoned(Exception):
    """The caller of these trials has left."""


async def answer_trials(
    models: Models, request: TrialsRequest, content: bytes | None = None
) -> TrialScores:
    """The scores; `content`: a safetensors file of trials, as bytes. `RequestError`s."""
    bundle = task_bundle(models, request.model)
    trials = await _asked_trials(models, bundle, request, content)
    variant = await models.variant(bundle, request.ablation)
    note_query(bundle.name, variant.report)
    baseline = await measure(models, bundle, bundle.plain.session, trials)
    ablated = None
    if request.ablation is not None:
        ablated = await measure(models, bundle, variant.session, trials)
    numbers = (divisor_of(variant.report), request.resamples, request.seed)
    found = await models.trials.run(contrast, task_of(bundle), baseline, ablated, *numbers)
    mass = None if variant.report is None else variant.report["mass"]
    return TrialScores(**shallow(found), model=bundle.name, mass=mass, ablation=variant.report)


async def measure(models: Models, bundle: Bundle, session: Session, trials: Trials) -> Measured:
    """Sums of a session's scores on trials, each from the initial state.

    The plain model's on the bundle's own trials are kept. Raises `RequestError` where too many
    wait, or where it takes longer than any request may.
    """
    if not models.engine.accepting:
        raise shutting_down()
    gone, until = threading.Event(), time.monotonic() + models.engine.limits.total_timeout_s

    def run(feeds: Arrays) -> Arrays:
        if gone.is_set():
            raise _Abandoned
        if models.trials.closed:
            raise RequestError("unavailable", "the server has stopped; try another one")
        if time.monotonic() > until:
            limit = f"{models.engine.limits.total_timeout_s} s (total_timeout_s)"
            raise RequestError("timeout", f"trials: not done after {limit}; bring fewer of them")
        return session.run(feeds)

    def work() -> Measured:
        own = session is bundle.plain.session and trials is own_trials(bundle)
        if own and bundle in models.baselines:
            found: Measured = models.baselines[bundle]
            return found
        measured = _measure(bundle, run, session.initial, trials)
        metrics.count_trials(bundle.name, len(measured.table))
        if own:
            models.baselines[bundle] = measured
        return measured

    try:
        return await models.trials.run(work)
    finally:
        gone.set()


def task_bundle(models: Models, model: str | None) -> Bundle:
    """The bundle of a model of a task, the first one for None; `RequestError` for any other."""
    tasks = [name for name, bundle in models.bundles.items() if bundle.manifest.task is not None]
    bundle = models.bundle(model if model is not None else next(iter(tasks), None))
    if bundle.manifest.task is None:
        expected = f"a model of a task: {', '.join(tasks) or 'none of them is served here'}"
        found = f"found {bundle.name!r}, a model of text"
        raise invalid("model", f"{found}, expected {expected}; GET /v1/models says what each is")
    return bundle


def task_of(bundle: Bundle) -> TaskSpec:
    """The task of a bundle that has one."""
    assert bundle.manifest.task is not None
    return bundle.manifest.task


def own_trials(bundle: Bundle) -> Trials:
    """The trials that travel in the bundle; read at the first call, so call it off the event loop.

    `RequestError` where the file isn't as the manifest says.
    """
    try:
        found: Trials = bundle.trials
    except BundleError as error:
        raise RequestError("model_error", str(error)) from None
    return found


async def _asked_trials(
    models: Models, bundle: Bundle, request: TrialsRequest, content: bytes | None
) -> Trials:
    task = task_of(bundle)
    if request.trials is not None:
        return await models.trials.run(read_json_trials, task, request.trials)
    if content is not None:
        return await models.trials.run(read_safetensors_trials, task, content, "trials")
    if request.safetensors is not None:
        return await models.trials.run(_decode, task, request.safetensors)
    return await models.trials.run(own_trials, bundle)


def _decode(task: TaskSpec, text: str) -> Trials:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid("safetensors", f"found no base64 ({error}), expected a file in it") from None
    return read_safetensors_trials(task, content, "safetensors")


def _measure(
    bundle: Bundle, run: Callable[[Arrays], Arrays], initial: Arrays, trials: Trials
) -> Measured:
    task, num_trials = task_of(bundle), trials.mask.shape[1]
    weight = weight_of(task, trials)
    centre = centre_of(task, trials, weight)
    rows, num_strays = list[Array](), 0
    for start in range(0, num_trials, BATCH):
        part = slice(start, start + BATCH)
        some = Trials(*(array[:, part] for array in trials))
        table, finite = _sum_batch(bundle, run, initial, some, weight[:, part], centre)
        rows.append(table)
        num_strays += int((~finite).sum())
    table, signs = np.concatenate(rows), are_signs(task, trials, weight)
    if task.targets == "vectors" and not signs:
        table[:, RIGHT] = np.nan  # a sign is right or wrong only where the target has one
    return Measured(
        table=table,
        num_steps=len(trials.inputs),
        num_strays=num_strays,
        signs=signs,
    )


def _sum_batch(
    bundle: Bundle,
    run: Callable[[Arrays], Arrays],
    initial: Arrays,
    trials: Trials,
    weight: Array,
    centre: Array,
) -> tuple[Array, Array]:
    """Rows of the table (B, C), and which trials had finite outputs only (B).

    Outputs are summed as they come: of long trials with many classes they would not fit.
    """
    task, mask = task_of(bundle), trials.mask.astype(np.float64)
    total, finite = np.float64(0.0), np.ones(mask.shape[1], bool)
    with np.errstate(invalid="ignore", over="ignore"):
        for position, outputs in run_pieces(run, bundle.manifest, initial, trials.inputs):
            steps = slice(position, position + len(outputs))
            counts = mask[steps, :, None]
            finite &= (np.isfinite(outputs) | (counts == 0)).all(axis=(0, 2))
            if task.pooled:
                total = total + (np.where(counts > 0, outputs, 0) * counts).sum(0, keepdims=True)
            else:
                some = (outputs, trials.targets[steps], weight[steps], centre)
                total = total + sum_trials(task, *some)
        if task.pooled:
            answers = total / mask.sum(axis=0)[:, None]
            total = sum_trials(task, answers, trials.targets, weight, centre)
    return np.asarray(total), finite
