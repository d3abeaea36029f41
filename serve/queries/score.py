"""Bits per character of a given text, for the plain model and under an ablation beside it.

    BPC = -(1/N) Σ log2 p(x_i | x_<i)       ΔBPC = BPC ablated - BPC baseline
    KL_i = Σ_v p_i(v) log2(p_i(v) / q_i(v)),  p baseline, q ablated

Both streams take the text at the same time; logits are compared as they come and dropped, so a long
text needs no more memory than a short one.
"""

import asyncio
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.engine.follow import Following
from serve.engine.sampling import log_softmax
from serve.engine.stream import Delivery, Stream, split_delivery
from serve.engine.wakeup import Wakeup
from serve.gateway.request_log import note_streams
from serve.models import Models
from serve.queries.prompts import report_unknown
from serve.wire.errors import invalid
from serve.wire.query_responses import Score, ScoreResult
from serve.wire.requests import ScoreRequest

Array = NDArray[Any]


@dataclass(slots=True)
class Tally:
    """The log-probabilities of one stream so far."""

    stream: Stream
    logprobs: list[float] = field(default_factory=list)  # nats
    waiting: list[Delivery] = field(default_factory=list)  # not yet compared
    bpc: float = math.nan  # bits per character, once all has been read

    def read(self, arrived: list[Delivery]) -> None:
        """Take in what has arrived."""
        for delivery in arrived:
            self.logprobs += delivery.logprobs
        self.waiting += arrived


async def score(models: Models, request: ScoreRequest) -> ScoreResult:
    """Score a text; with an ablation, the plain model and the ablated one. `RequestError`s."""
    bundle = models.text_bundle(request.model)
    vocabulary = models.vocabularies[bundle.name]
    unknown = request.unknown or models.unknown
    forced, counts = vocabulary.encode_counted(request.text, "text", unknown)
    if not len(forced):
        raise invalid("text", "found no character of the model's vocabulary, expected some")
    variant = await models.variant(bundle, request.ablation)
    wakeup, paired = Wakeup(), request.ablation is not None
    tallies = [
        Tally(
            Stream(
                bundle,
                source.session,
                forced,
                max_tokens=0,
                seed=0,
                deliver_forced=True,
                deliver_logits=paired,
                wake=wakeup.ring,
            )
        )
        for source in ([bundle.plain, variant] if paired else [bundle.plain])
    ]
    streams = [tally.stream for tally in tallies]
    following = Following(models.engine, streams, wakeup)
    note_streams(streams, variant.report)
    divergences = await _read_all(following, tallies)
    for tally in tallies:
        tally.bpc = bits_per_character(tally.logprobs)
        await asyncio.sleep(0)  # a sum can be long
    found = _answer(request, bundle.name, tallies, divergences, variant.report)
    return replace(found, unknown=report_unknown(unknown, [counts]))


def bits_per_character(logprobs: list[float]) -> float:
    """Bits per character of log-probabilities in nats."""
    return -math.fsum(logprobs) / len(logprobs) / math.log(2.0)


async def _read_all(following: Following, tallies: list[Tally]) -> list[float]:
    divergences: list[float] = []
    with following:
        while not following.is_done:
            await following.wait()
            for place, arrived in following.collect():
                tallies[place].read(arrived)
                following.raise_error(place)
            if len(tallies) == 2:
                divergences += compare(*tallies)
            for tally in tallies if len(tallies) == 1 else []:
                tally.waiting.clear()
            await asyncio.sleep(0)
    return divergences


def compare(baseline: Tally, ablated: Tally) -> list[float]:
    """KL in bits of the characters that both have, which are then dropped."""
    found: list[float] = []
    while baseline.waiting and ablated.waiting:
        count = min(len(t.waiting[0].characters) for t in (baseline, ablated))
        p, q = (_take(tally, count) for tally in (baseline, ablated))
        found += kl_bits(p, q).tolist()
    return found


def kl_bits(p_logits: Array, q_logits: Array) -> Array:
    """KL(p || q) in bits over the last axis of logits: (N, V), (N, V) -> (N)."""
    log_p, log_q = log_softmax(p_logits), log_softmax(q_logits)
    divergence: Array = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1) / math.log(2.0)
    return np.maximum(divergence, 0.0)  # rounding can fall below zero


def _take(tally: Tally, count: int) -> Array:
    now, later = split_delivery(tally.waiting.pop(0), count)
    if later.characters:
        tally.waiting.insert(0, later)
    assert now.logits is not None
    return now.logits


def _answer(
    request: ScoreRequest,
    model: str,
    tallies: list[Tally],
    divergences: list[float],
    report: dict[str, Any] | None,
) -> ScoreResult:
    def score_of(tally: Tally) -> Score:
        return Score(bpc=tally.bpc, logprobs=tuple(tally.logprobs) if request.detail else ())

    baseline, ablated = tallies[0], tallies[-1] if len(tallies) == 2 else None
    return ScoreResult(
        model=model,
        num_characters=len(baseline.logprobs),
        baseline=score_of(baseline),
        ablated=score_of(ablated) if ablated else None,
        delta_bpc=ablated.bpc - baseline.bpc if ablated else None,
        mean_kl=math.fsum(divergences) / len(divergences) if divergences else None,
        kl=tuple(divergences) if ablated and request.detail else None,
        ablation=report,
    )
