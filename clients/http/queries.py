"""The verbs `compare` and `trials` over HTTP, for the plain and the asyncio client.

client.trials({"edits": [...]}, model="copy")                    the bundle's own trials
client.trials(trials=Path("mine.safetensors").read_bytes())      trials that you bring
client.compare("ROMEO:", [{"edits": [...]}, ...], top=5)
"""

from abc import ABC, abstractmethod
from typing import TypeVar, Unpack

from clients.http import calls
from clients.http.calls import Call
from clients.options import Ablation, CompareOptions, TrialsOptions, Uploaded
from clients.query_results import CompareResult, TrialsResult

Answer = TypeVar("Answer")


class Queries(ABC):
    """What `HttpClient` asks about ablations of tasks and of distributions."""

    def compare(
        self, prompt: str, ablations: list[Ablation], **options: Unpack[CompareOptions]
    ) -> CompareResult:
        """What comes next after a prompt, without and with each of the ablations."""
        return self._ask(calls.compare(prompt, ablations, options))

    def trials(
        self,
        ablation: Ablation | None = None,
        trials: Uploaded | None = None,
        **options: Unpack[TrialsOptions],
    ) -> TrialsResult:
        """How well a model of a task does on trials, left out: the bundle's own."""
        return self._ask(calls.trials(ablation, trials, options))

    @abstractmethod
    def _ask(self, call: Call[Answer]) -> Answer:
        """The answer of one question."""


class AsyncQueries(ABC):
    """`Queries` for asyncio."""

    async def compare(
        self, prompt: str, ablations: list[Ablation], **options: Unpack[CompareOptions]
    ) -> CompareResult:
        """What comes next after a prompt, without and with each of the ablations."""
        return await self._ask(calls.compare(prompt, ablations, options))

    async def trials(
        self,
        ablation: Ablation | None = None,
        trials: Uploaded | None = None,
        **options: Unpack[TrialsOptions],
    ) -> TrialsResult:
        """How well a model of a task does on trials, left out: the bundle's own."""
        return await self._ask(calls.trials(ablation, trials, options))

    @abstractmethod
    async def _ask(self, call: Call[Answer]) -> Answer:
        """The answer of one question."""
