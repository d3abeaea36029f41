"""The query `compare`: the next character, of the plain model and of several ablations.

    entropy = -Σ_v p(v) log2 p(v)          KL = Σ_v p(v) log2(p(v) / q(v)),  p baseline, q ablated
    total variation = ½ Σ_v |p(v) - q(v)|

Every model reads the prompt as a stream like all others and writes one character, whose logits are
what is compared; temperature and sampling play no part in them.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.engine.follow import Following
from serve.engine.sampling import SamplingSettings, log_softmax
from serve.engine.stream import Stream
from serve.engine.wakeup import Wakeup
from serve.gateway.request_log import note_streams
from serve.models import Models
from serve.offload import offload_if_large
from serve.queries.generate import weights_of
from serve.queries.prompts import report_unknown
from serve.queries.score import kl_bits
from serve.runtime.bundle import AblatedModel, Bundle
from serve.runtime.vocabulary import Vocabulary
from serve.wire.codec import JsonObject
from serve.wire.errors import RequestError
from serve.wire.queries import CompareRequest
from serve.wire.query_responses import Compared, Comparison, Distribution, Probability

Array = NDArray[Any]
SHORT = 1000  # probabilities that are named at once


async def compare(models: Models, request: CompareRequest) -> Comparison:
    """A comparison; `RequestError`s, which name the ablation that they are about."""
    bundle = models.text_bundle(request.model)
    vocabulary = models.vocabularies[bundle.name]
    unknown = request.unknown or models.unknown
    forced, counts = vocabulary.encode_counted(request.prompt, "prompt", unknown)
    variants = [bundle.plain]
    for place, ablation in enumerate(request.ablations):
        try:
            variants.append(await models.variant(bundle, ablation))
        except RequestError as error:
            raise _renamed(error, place) from None
    wakeup = Wakeup()
    streams = [_open(bundle, variant, forced, wakeup) for variant in variants]
    following = Following(models.engine, streams, wakeup)
    reports = [variant.report for variant in variants[1:] if variant.report is not None]
    note_streams(streams, {"hash": ",".join(report["hash"] for report in reports)})
    logits = await _read_logits(following)
    arguments = (logits, reports, vocabulary, request.top)
    size = request.top * len(logits)
    baseline, ablations = await offload_if_large(size, _distributions, *arguments, small=SHORT)
    return Comparison(
        model=bundle.name,
        num_characters=len(forced),
        baseline=baseline,
        ablations=ablations,
        unknown=report_unknown(unknown, [counts]),
    )


def _distributions(
    logits: list[Array], reports: list[JsonObject], vocabulary: Vocabulary, count: int
) -> tuple[Distribution, tuple[Compared, ...]]:
    baseline, *others = logits
    top = _best(baseline, count)
    compared = (
        Compared(
            ablation=report,
            **_distribution(row, vocabulary, count),
            **_difference(baseline, row),
            probabilities=tuple(np.exp(log_softmax(row))[top].tolist()),
        )
        for report, row in zip(reports, others, strict=True)
    )
    return Distribution(**_distribution(baseline, vocabulary, count)), tuple(compared)


def _open(bundle: Bundle, variant: AblatedModel, forced: Array, wakeup: Wakeup) -> Stream:
    return Stream(
        bundle,
        variant.session,
        forced,
        max_tokens=1,
        seed=0,
        settings=SamplingSettings(temperature=0.0),
        deliver_logits=True,
        weights=weights_of(bundle, variant),
        wake=wakeup.ring,
    )


async def _read_logits(following: Following) -> list[Array]:
    """The logits (V) that each stream's character was drawn from."""
    found = dict[int, Array]()
    with following:
        while not following.is_done:
            await following.wait()
            for place, arrived in following.collect():
                for delivery in arrived:
                    assert delivery.logits is not None
                    found[place] = delivery.logits[-1]
                if following.done[place]:
                    _check(following.streams[place], place)
    return [found[place] for place in range(len(following.streams))]


def _check(stream: Stream, place: int) -> None:
    error = stream.error
    if error is None:
        return
    if place == 0:
        raise error
    message = f"ablations[{place - 1}]: {error.message}"
    raise RequestError(error.code, message, error.field, error.retry_after_s)


def _renamed(error: RequestError, place: int) -> RequestError:
    """The error of one of several ablations."""
    if error.field is None or not error.field.startswith("ablation"):
        return error
    field, number = error.field.removeprefix("ablation"), f"ablations[{place}]"
    message = number + error.message.removeprefix("ablation")
    return RequestError(error.code, message, number + field, error.retry_after_s)


def _distribution(logits: Array, vocabulary: Vocabulary, count: int) -> JsonObject:
    logs = log_softmax(logits)
    entropy = -float((np.exp(logs) * logs).sum()) / math.log(2.0)
    return {
        "entropy_bits": max(0.0, entropy),  # rounding can fall below zero
        "top": tuple(
            Probability(
                character=vocabulary.names[place],
                probability=math.exp(logs[place]),
                logprob=float(logs[place]),
            )
            for place in _best(logits, count)
        ),
    }


def _difference(p_logits: Array, q_logits: Array) -> JsonObject:
    p, q = np.exp(log_softmax(p_logits)), np.exp(log_softmax(q_logits))
    return {
        "kl_bits": float(kl_bits(p_logits[None], q_logits[None])[0]),
        "total_variation": float(np.abs(p - q).sum() / 2),
    }


def _best(logits: Array, count: int) -> Array:
    """The most probable characters; of equal ones the lowest index comes first."""
    return np.argsort(-logits, kind="stable")[:count]
