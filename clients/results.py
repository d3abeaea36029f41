"""Results of the other calls, as plain frozen values; HTTP and gRPC give equal ones.

Most are what the server answers, as serve/wire declares it: `Structure`, `Target`, `Spectrum`,
`Symmetry`, `Usage`, `Branch`, `Pair`, `Score`, `ScoreResult`. Text is measured in characters.
`ablation` quotes what was done, as the server says it: a dict with `name`, `hash`, `edits` and
`removed`, one entry an edit with its `target`, `op`, `mass` and `warnings`, for op `schur` its
spectrum too.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from serve.wire.codec import JsonObject
from serve.wire.query_responses import Score as Score
from serve.wire.query_responses import ScoreResult as ScoreResult
from serve.wire.responses import Branch as Branch
from serve.wire.responses import Model
from serve.wire.responses import Pair as Pair
from serve.wire.responses import Spectrum as Spectrum
from serve.wire.responses import Structure as Structure
from serve.wire.responses import Symmetry as Symmetry
from serve.wire.responses import Target as Target
from serve.wire.responses import Usage as Usage

Value = TypeVar("Value")


class ModelInfo(Model):
    """A model that the server holds."""

    __slots__ = ()

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
class Character:
    """One character of a text, where `logprobs` was asked for; natural logarithms."""

    text: str
    logprob: float | None  # None for the first character of an echo
    top_logprobs: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The end of a stream: model, usage, ablation."""

    model: str
    usage: Usage
    ablation: JsonObject | None = None
    first_difference: int | None = None  # where paired texts part; None if they don't


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """More text of one choice, or of one branch of a pair; how it is cut depends on timing."""

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
    ablation: JsonObject | None

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text


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
    summary, seed = _summary(chunks), _last(chunk.seed for chunk in chunks)
    if seed is None or summary.ablation is None:
        raise ValueError("found no seed or no ablation in these chunks, expected those of a pair")
    return Pair(
        model=summary.model,
        seed=seed,
        ablation=summary.ablation,
        first_difference=summary.first_difference,
        usage=summary.usage,
        baseline=_branch("baseline", chunks),
        ablated=_branch("ablated", chunks),
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
