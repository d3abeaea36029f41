"""From the wire's JSON to results. Of gRPC's messages only the chunks take another way.

Numbers in a protobuf Struct are doubles: whole ones become int again, over HTTP too, so that both
give equal results and print alike.
"""

from collections.abc import Mapping

from clients.results import (
    Character,
    Choice,
    Chunk,
    Completion,
    Json,
    ModelInfo,
    Score,
    ScoreResult,
    Spectrum,
    Structure,
    Summary,
    Symmetry,
    Target,
    Usage,
)

MAX_WHOLE = 2**53  # above it a double does not hold every integer


def plain(value: Json) -> Json:
    """Any JSON value with its whole numbers as int."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    whole = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_WHOLE
    return int(value) if whole else value


def read_model(page: Json) -> ModelInfo:
    """One entry of `GET /v1/models`."""
    return ModelInfo(
        id=page["id"],
        family=page["family"],
        config=plain(page["config"]),
        num_parameters=int(page["num_parameters"]),
        vocabulary_size=int(page["vocabulary_size"]),
        device=page["device"],
        provider=page["provider"],
        kernels=page["kernels"],
        targets=tuple(page["targets"]),
        training=plain(page["training"]),
        task=plain(page["task"]),
    )


def read_models(page: Json) -> tuple[ModelInfo, ...]:
    """`GET /v1/models`."""
    return tuple(read_model(item) for item in page["data"])


def read_structure(page: Json) -> Structure:
    """`GET /v1/models/{id}/structure`."""
    return Structure(
        model=page["model"],
        targets=tuple(map(_target, page["targets"])),
        symmetries=tuple(map(_symmetry, page.get("symmetries", ()))),
    )


def _symmetry(page: Json) -> Symmetry:
    return Symmetry(
        name=page["name"],
        group=page["group"],
        size=int(page["size"]),
        meaning=page["meaning"],
        weights=tuple(page["weights"]),
    )


def _target(page: Json) -> Target:
    return Target(
        name=page["name"],
        weight=page["weight"],
        shape=tuple(int(size) for size in page["shape"]),
        ops=tuple(page["ops"]),
        meaning=page["meaning"],
        norm=float(page["norm"]),
        spectrum=_spectrum(page) if "eigenvalues" in page else None,
    )


def _spectrum(page: Json) -> Spectrum:
    return Spectrum(
        alpha=float(page["alpha"]),
        n_R=int(page["n_R"]),
        n_C=int(page["n_C"]),
        rho=float(page["rho"]),
        eigenvalues=tuple(complex(re, im) for re, im in page["eigenvalues"]),
        block_sizes=tuple(int(size) for size in page["block_sizes"]),
        masses={name: float(page["masses"][name]) for name in ("RR", "C→R", "CC")},
        backward_error=float(page["backward_error"]),
        warnings=tuple(page["warnings"]),
    )


def read_completion(page: Json) -> Completion:
    """`POST /v1/completions`, not streaming."""
    choices = [
        Choice(
            index=choice["index"],
            text=choice["text"],
            finish_reason=choice["finish_reason"],
            seed=choice.get("seed"),
            stop=choice.get("stop_string"),
            characters=_characters(choice.get("logprobs")),
            state=choice.get("state"),
        )
        for choice in page["choices"]
    ]
    return Completion(
        model=page["model"],
        choices=tuple(sorted(choices, key=lambda choice: choice.index)),
        usage=read_usage(page["usage"]),
        ablation=plain(page.get("ablation")),
    )


class CompletionEvents:
    """The events of a streaming `POST /v1/completions` in, chunks out."""

    def __init__(self) -> None:
        self._ablation: Json = None  # need not stand in the event that ends the stream

    def read(self, event: Json) -> list[Chunk]:
        """The chunks of one event: one a choice, and one for the usage."""
        self._ablation = event.get("ablation") or self._ablation
        chunks = [self._chunk(choice) for choice in event["choices"]]
        if event.get("usage"):
            usage, ablation = read_usage(event["usage"]), plain(self._ablation)
            summary = Summary(model=event["model"], usage=usage, ablation=ablation)
            chunks.append(Chunk(summary=summary))
        return chunks

    @staticmethod
    def _chunk(choice: Json) -> Chunk:
        return Chunk(
            text=choice["text"],
            index=choice["index"],
            characters=_characters(choice.get("logprobs")),
            finish_reason=choice.get("finish_reason"),
            stop=choice.get("stop_string"),
            seed=choice.get("seed"),
            state=choice.get("state"),
        )


def read_pair_event(event: Json) -> list[Chunk]:
    """One event of a streaming `POST /v1/ablations/generate`."""
    if "summary" not in event:
        return [
            Chunk(
                text=event["text"],
                index=event.get("index", 0),
                branch=event["branch"],
                finish_reason=event.get("finish_reason"),
            )
        ]
    page = event["summary"]
    summary = Summary(
        model=page["model"],
        usage=read_usage(page["usage"]),
        ablation=plain(page["ablation"]),
        first_difference=page["first_difference"],
    )
    return [Chunk(seed=page["seed"], summary=summary)]


def read_score(page: Json) -> ScoreResult:
    """`POST /v1/ablations/score`."""
    ablated, kl = page.get("ablated"), page.get("kl")
    return ScoreResult(
        model=page["model"],
        num_characters=page["num_characters"],
        baseline=_score(page["baseline"]),
        ablated=None if ablated is None else _score(ablated),
        delta_bpc=page.get("delta_bpc"),
        mean_kl=page.get("mean_kl"),
        kl=tuple(kl or ()),
        ablation=plain(page.get("ablation")),
    )


def read_usage(page: Json) -> Usage:
    """The usage of any answer."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    cached = (page.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Usage(**{name: page[name] for name in names}, cached_tokens=cached)


def _score(page: Json) -> Score:
    return Score(bpc=page["bpc"], logprobs=tuple(page.get("logprobs") or ()))


def _characters(page: Json) -> tuple[Character, ...]:
    if page is None:
        return ()
    tokens = page["tokens"]
    tops = page.get("top_logprobs") or [None] * len(tokens)
    return tuple(
        Character(text=text, logprob=logprob, top_logprobs=top or {})
        for text, logprob, top in zip(tokens, page["token_logprobs"], tops, strict=True)
    )
