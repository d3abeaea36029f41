"""Results of the other calls, as plain frozen values; HTTP and gRPC give equal ones.

Text is measured in characters. `ablation` quotes what was done, as the server says it: a dict with
`name`, `hash`, `edits` and `removed`, one entry an edit with its `target`, `op`, `mass` and
`warnings`, for op `schur` its spectrum too.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

Json = Any
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model that the server holds."""

    id: str
    family: str
    config: dict[str, Json]  # sizes of the family
    num_parameters: int
    vocabulary_size: int  # 0 of models of a task
    device: str  # "cpu" or "cuda"
    provider: str  # of the runtime, the one really in use
    kernels: str
    targets: tuple[str, ...]  # what edits may name
    training: dict[str, Json]  # provenance: dataset, iterations, seed, test_bpc, ...
    task: dict[str, Json] | None = None  # what goes in and what is owed; None: text

    @property
    def test_bpc(self) -> float | None:
        """Bits per character on the test split, where the training measured it."""
        return self._test("bpc")

    @property
    def headline(self) -> tuple[str, float | None]:
        """The score that a table shows, and what it is on the test part if that was measured."""
        name = "bpc" if self.task is None else str(self.task["headline"])
        return name, self._test(name)

    def _test(self, name: str) -> float | None:
        value = self.training.get(f"test_{name}")
        return None if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """The ordered real Schur form T of a square target, split at `alpha`."""

    alpha: float
    n_R: int
    n_C: int
    rho: float  # spectral radius
    eigenvalues: tuple[complex, ...]  # in row order, by non-increasing modulus
    block_sizes: tuple[int, ...]  # 1: real eigenvalue, 2: complex pair
    masses: dict[str, float]  # ||N_x||_F / ||T||_F of RR, C→R, CC
    backward_error: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A weight, or a slice of it, that edits may name."""

    name: str
    weight: str
    shape: tuple[int, ...]
    ops: tuple[str, ...]
    meaning: str
    norm: float  # Frobenius
    spectrum: Spectrum | None  # square targets only


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetry:
    """What edits of op "symmetry" may name: it moves weights, and not the function."""

    name: str
    group: str
    size: int
    meaning: str
    weights: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """What can be ablated in a model."""

    model: str
    targets: tuple[Target, ...]
    symmetries: tuple[Symmetry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Characters read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int = 0  # of the prompt, known to the server's cache of states


@dataclass(frozen=True, slots=True, kw_only=True)
class Character:
    """One character of a text, where `logprobs` was asked for; natural logarithms."""

    text: str
    logprob: float | None  # None for the first character of an echo
    top_logprobs: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a stream says at its end."""

    model: str
    usage: Usage
    ablation: dict[str, Json] | None = None
    first_difference: int | None = None  # where paired texts part; None if they don't


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some more text of one choice, or of one branch of a pair; how it is cut depends on timing."""

    text: str = ""
    index: int = 0  # which of the n choices
    branch: str = ""  # "baseline" or "ablated" in a pair
    characters: tuple[Character, ...] = ()
    finish_reason: str | None = None  # "stop" or "length", with the last text
    stop: str | None = None  # the stop string that ended it
    seed: int | None = None  # at least once a stream
    state: str | None = None  # with the choice's last text, with save_state=True
    summary: Summary | None = None  # in the stream's last chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One whole text."""

    index: int
    text: str
    finish_reason: str | None
    seed: int | None
    stop: str | None
    characters: tuple[Character, ...]
    state: str | None = None  # with save_state=True: go on from here with state=...


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """All choices of one prompt."""

    model: str
    choices: tuple[Choice, ...]  # by index
    usage: Usage
    ablation: dict[str, Json] | None

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One text of a pair."""

    text: str
    finish_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The plain and the ablated model's text, under the same random numbers."""

    model: str
    seed: int | None
    baseline: Branch
    ablated: Branch
    first_difference: int | None  # character at which the texts part
    usage: Usage
    ablation: dict[str, Json] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well one model predicts a text."""

    bpc: float
    logprobs: tuple[float, ...]  # natural logarithms, with detail=True only


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """The plain model's score, and with an ablation the ablated one's beside it."""

    model: str
    num_characters: int
    baseline: Score
    ablated: Score | None
    delta_bpc: float | None  # ablated - baseline
    mean_kl: float | None  # KL(baseline || ablated), bits
    kl: tuple[float, ...]  # per character, with detail=True only
    ablation: dict[str, Json] | None


def join_completion(chunks: Iterable[Chunk]) -> Completion:
    """The completion that a stream's chunks make up; ValueError where its end is missing."""
    chunks = list(chunks)
    summary = _summary(chunks)
    choices = [_choice(index, chunks) for index in sorted({chunk.index for chunk in chunks})]
    return Completion(
        model=summary.model, choices=tuple(choices), usage=summary.usage, ablation=summary.ablation
    )


def join_pair(chunks: Iterable[Chunk]) -> Pair:
    """The pair that a stream's chunks make up; ValueError where its end is missing."""
    chunks = list(chunks)
    summary = _summary(chunks)
    return Pair(
        model=summary.model,
        seed=_last(chunk.seed for chunk in chunks),
        baseline=_branch("baseline", chunks),
        ablated=_branch("ablated", chunks),
        first_difference=summary.first_difference,
        usage=summary.usage,
        ablation=summary.ablation,
    )


def to_json(result: Any) -> str:
    """A result, or a tuple of results, as JSON text; a complex number is [re, im]."""
    page = [asdict(item) for item in result] if isinstance(result, tuple) else asdict(result)
    return json.dumps(page, ensure_ascii=False, default=lambda value: [value.real, value.imag])


def _summary(chunks: list[Chunk]) -> Summary:
    summary = _last(chunk.summary for chunk in chunks)
    if summary is None:
        raise ValueError("found no summary in these chunks, expected a whole stream: read it all")
    return summary


def _choice(index: int, chunks: list[Chunk]) -> Choice:
    own = [chunk for chunk in chunks if chunk.index == index]
    return Choice(
        index=index,
        text="".join(chunk.text for chunk in own),
        finish_reason=_last(chunk.finish_reason for chunk in own),
        seed=_last(chunk.seed for chunk in own),
        stop=_last(chunk.stop for chunk in own),
        characters=tuple(character for chunk in own for character in chunk.characters),
        state=_last(chunk.state for chunk in own),
    )


def _branch(name: str, chunks: list[Chunk]) -> Branch:
    own = [chunk for chunk in chunks if chunk.branch == name]
    finish_reason = _last(chunk.finish_reason for chunk in own)
    return Branch(text="".join(chunk.text for chunk in own), finish_reason=finish_reason)


def _last(values: Iterable[Value | None]) -> Value | None:
    return next((value for value in reversed(list(values)) if value is not None), None)
