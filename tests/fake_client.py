"""A client that answers from memory, for the command line."""

from collections.abc import Iterator
from typing import Any, Self

from clients.results import (
    Character,
    Choice,
    Chunk,
    Completion,
    ModelInfo,
    Score,
    ScoreResult,
    Spectrum,
    Structure,
    Summary,
    Target,
    Usage,
)

USAGE = Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3)
EDITS = {"edits": [{"target": "recurrent", "op": "zero"}]}
REMOVED = [{"target": "recurrent", "op": "zero", "mass": 1, "warnings": ["all of it"]}]
ABLATION = {"name": "", "hash": "00", **EDITS, "removed": REMOVED}
SPECTRUM = Spectrum(
    alpha=0.9,
    n_R=1,
    n_C=0,
    rho=1.5,
    eigenvalues=(1.5 + 0j,),
    block_sizes=(1,),
    masses={"RR": 0.0, "C→R": 0.25, "CC": 0.0},
    backward_error=0.0,
    warnings=(),
)


class FakeClient:
    """Answers one thing and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, dict[str, Any]]] = []
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _ask(self, *given: Any, **options: Any) -> None:
        self.asked.append((given, {k: v for k, v in options.items() if v is not None}))

    def models(self) -> tuple[ModelInfo, ...]:
        model = ModelInfo(
            id="osm",
            family="osm-rnn",
            config={"d": 16},
            num_parameters=77_000,
            vocabulary_size=65,
            device="cpu",
            provider="CPUExecutionProvider",
            kernels="standard operators",
            targets=("recurrent",),
            training={"test_bpc": 2.125},
        )
        return (model,)

    def structure(self, model: str | None) -> Structure:
        self._ask(model)
        page: dict[str, Any] = {"weight": "w", "ops": ("zero",), "meaning": "m", "norm": 1.0}
        square = Target(name="recurrent", shape=(1, 1), spectrum=SPECTRUM, **page)
        flat = Target(name="readout", shape=(1, 65), spectrum=None, **page)
        return Structure(model="osm", targets=(square, flat))

    def generate(self, prompt: str, **options: Any) -> Iterator[Chunk]:
        self._ask(prompt, **options)
        yield Chunk(text="ROMEO:\n", seed=7)
        yield Chunk(text="é")
        if self.error:
            raise self.error
        ablation = ABLATION if options["ablation"] else None
        yield Chunk(summary=Summary(model="osm", usage=USAGE, ablation=ablation))

    def complete(self, prompt: str, **options: Any) -> Completion:
        self._ask(prompt, **options)
        letter = Character(text="é", logprob=-1.0)
        choice = Choice(
            index=0, text="é", finish_reason="length", seed=7, stop=None, characters=(letter,)
        )
        return Completion(model="osm", choices=(choice,), usage=USAGE, ablation=None)

    def generate_pair(self, prompt: str, ablation: Any, **options: Any) -> Iterator[Chunk]:
        self._ask(prompt, ablation, **options)
        yield Chunk(branch="baseline", text="ab", finish_reason="length", seed=7)
        yield Chunk(branch="ablated", text="ax", finish_reason="length", seed=7)
        summary = Summary(model="osm", usage=USAGE, ablation=ABLATION, first_difference=1)
        yield Chunk(summary=summary)

    def score(self, text: str, ablation: Any, **options: Any) -> ScoreResult:
        self._ask(text, ablation, **options)
        return ScoreResult(
            model="osm",
            num_characters=len(text),
            baseline=Score(bpc=2.0, logprobs=()),
            ablated=Score(bpc=2.5, logprobs=()) if ablation else None,
            delta_bpc=0.5 if ablation else None,
            mean_kl=0.25 if ablation else None,
            kl=(),
            ablation=ABLATION if ablation else None,
        )
