"""Ask a server over HTTP.

    with HttpClient() as client:
        for chunk in client.generate("ROMEO:", max_tokens=200, seed=1):
            print(chunk.text, end="", flush=True)
        client.compare("ROMEO:", [{"edits": [...]}, ...], top=5)
        client.trials({"edits": [...]}, model="copy")                  the bundle's own trials
        client.trials(trials=Path("mine.safetensors").read_bytes())    trials that you bring

- `HttpClient`, `AsyncHttpClient` and `GrpcClient` have the same verbs and give equal results.
- Options are those of clients/options.py; one that doesn't exist is a `TypeError`.
- Every verb may raise the errors of clients/errors.py.
- A stream starts when its first chunk is asked for. Closing it early (`close`, `aclose`, or leaving
  the loop over a sync one) ends it on the server too.
- `api_key` goes with every request; `ca` is a file of certificates to trust instead of the usual.
- On this machine no proxy is used, whatever the environment says.
"""

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self, TypeVar, Unpack

import httpx

from clients.errors import ConnectionFailed, StreamBroken
from clients.http import calls
from clients.http.calls import Call, StreamCall
from clients.http.connection import connection_settings
from clients.http.events import EventStream
from clients.http.sweeps import AsyncHttpSweeps, HttpSweeps
from clients.options import (
    Ablation,
    CompareOptions,
    GenerateOptions,
    PairOptions,
    ScoreOptions,
    TrialsOptions,
    Uploaded,
)
from clients.query_results import CompareResult, TrialsResult
from clients.results import Chunk, Completion, ModelInfo, ScoreResult, Structure
from clients.tls import SPEAKS_TLS, speaks_tls

DEFAULT_URL = "http://127.0.0.1:3000"

Answer = TypeVar("Answer")


class HttpClient:
    """`max_silence_s`: the longest wait for the next byte; None leaves limits to the server.

    ValueError for a `url` that is not one.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        max_silence_s: float | None = None,
        api_key: str | None = None,
        ca: str | None = None,
    ) -> None:
        self.url = url
        self._http = httpx.Client(**connection_settings(url, max_silence_s, api_key, ca))
        self.sweeps = HttpSweeps(self._ask, self._stream)

    def models(self) -> tuple[ModelInfo, ...]:
        """The models that the server holds."""
        return self._ask(calls.models())

    def structure(self, model: str | None = None) -> Structure:
        """The targets and symmetries of a model, left out: of the first."""
        return self._ask(calls.structure(model or calls.first_model(self.models())))

    def generate(
        self, prompt: str, **options: Unpack[GenerateOptions]
    ) -> Generator[Chunk, None, None]:
        """The text as it is written; the last chunk holds the summary."""
        return self._stream(calls.generate(prompt, options))

    def complete(self, prompt: str, **options: Unpack[GenerateOptions]) -> Completion:
        """All choices, when they are whole."""
        return self._ask(calls.complete(prompt, options))

    def generate_pair(
        self, prompt: str, ablation: Ablation, **options: Unpack[PairOptions]
    ) -> Generator[Chunk, None, None]:
        """Chunks of the branches `baseline` and `ablated`, under the same random numbers."""
        return self._stream(calls.generate_pair(prompt, ablation, options))

    def score(
        self, text: str, ablation: Ablation | None = None, **options: Unpack[ScoreOptions]
    ) -> ScoreResult:
        """Bits per character of `text`, and with an ablation what it changes."""
        return self._ask(calls.score(text, ablation, options))

    def compare(
        self, prompt: str, ablations: list[Ablation], **options: Unpack[CompareOptions]
    ) -> CompareResult:
        """Distributions of the next character, without and with each of the ablations."""
        return self._ask(calls.compare(prompt, ablations, options))

    def trials(
        self,
        ablation: Ablation | None = None,
        trials: Uploaded | None = None,
        **options: Unpack[TrialsOptions],
    ) -> TrialsResult:
        """Scores of a task model on trials, left out: the bundle's own."""
        return self._ask(calls.trials(ablation, trials, options))

    def load(self, folder: str) -> ModelInfo:
        """Serve the bundle in a folder of the server's machine; the key must be one that manages.

        A model of the same name is replaced; its running streams end as they began.
        """
        return self._ask(calls.load(folder))

    def reload(self, model: str) -> ModelInfo:
        """Read a served model's folder again."""
        return self._ask(calls.reload(model))

    def unload(self, model: str) -> None:
        """Serve a model no more."""
        self._ask(calls.unload(model))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, call: Call[Answer]) -> Answer:
        with _translated(self.url):
            response = self._http.request(call.method, call.path, content=call.content)
        return _answer(call, self.url, response)

    def _stream(self, call: StreamCall) -> Generator[Any, None, None]:
        events = EventStream(self.url, call.read)
        with (
            _translated(self.url),
            self._http.stream(call.method, call.path, content=call.content) as response,
        ):
            if not response.is_success:
                response.read()
                _refuse(self.url, response)
            for piece in response.iter_bytes():
                yield from events.feed(piece)
        events.end()


class AsyncHttpClient:
    """`HttpClient` for asyncio; a stream that is left early is closed by its `aclose`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        max_silence_s: float | None = None,
        api_key: str | None = None,
        ca: str | None = None,
    ) -> None:
        self.url = url
        self._http = httpx.AsyncClient(**connection_settings(url, max_silence_s, api_key, ca))
        self.sweeps = AsyncHttpSweeps(self._ask, self._stream)

    async def models(self) -> tuple[ModelInfo, ...]:
        """The models that the server holds."""
        return await self._ask(calls.models())

    async def structure(self, model: str | None = None) -> Structure:
        """The targets and symmetries of a model, left out: of the first."""
        return await self._ask(calls.structure(model or calls.first_model(await self.models())))

    def generate(
        self, prompt: str, **options: Unpack[GenerateOptions]
    ) -> AsyncGenerator[Chunk, None]:
        """The text as it is written; the last chunk holds the summary."""
        return self._stream(calls.generate(prompt, options))

    async def complete(self, prompt: str, **options: Unpack[GenerateOptions]) -> Completion:
        """All choices, when they are whole."""
        return await self._ask(calls.complete(prompt, options))

    def generate_pair(
        self, prompt: str, ablation: Ablation, **options: Unpack[PairOptions]
    ) -> AsyncGenerator[Chunk, None]:
        """Chunks of the branches `baseline` and `ablated`, under the same random numbers."""
        return self._stream(calls.generate_pair(prompt, ablation, options))

    async def score(
        self, text: str, ablation: Ablation | None = None, **options: Unpack[ScoreOptions]
    ) -> ScoreResult:
        """Bits per character of `text`, and with an ablation what it changes."""
        return await self._ask(calls.score(text, ablation, options))

    async def compare(
        self, prompt: str, ablations: list[Ablation], **options: Unpack[CompareOptions]
    ) -> CompareResult:
        """Distributions of the next character, without and with each of the ablations."""
        return await self._ask(calls.compare(prompt, ablations, options))

    async def trials(
        self,
        ablation: Ablation | None = None,
        trials: Uploaded | None = None,
        **options: Unpack[TrialsOptions],
    ) -> TrialsResult:
        """Scores of a task model on trials, left out: the bundle's own."""
        return await self._ask(calls.trials(ablation, trials, options))

    async def load(self, folder: str) -> ModelInfo:
        """Serve the bundle in a folder of the server's machine; the key must be one that manages.

        A model of the same name is replaced; its running streams end as they began.
        """
        return await self._ask(calls.load(folder))

    async def reload(self, model: str) -> ModelInfo:
        """Read a served model's folder again."""
        return await self._ask(calls.reload(model))

    async def unload(self, model: str) -> None:
        """Serve a model no more."""
        await self._ask(calls.unload(model))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, call: Call[Answer]) -> Answer:
        with _translated(self.url):
            response = await self._http.request(call.method, call.path, content=call.content)
        return _answer(call, self.url, response)

    async def _stream(self, call: StreamCall) -> AsyncGenerator[Any, None]:
        events = EventStream(self.url, call.read)
        with _translated(self.url):
            async with self._http.stream(call.method, call.path, content=call.content) as response:
                if not response.is_success:
                    await response.aread()
                    _refuse(self.url, response)
                async for piece in response.aiter_bytes():
                    for chunk in events.feed(piece):
                        yield chunk
        events.end()


def _answer(call: Call[Answer], url: str, response: httpx.Response) -> Answer:
    if not response.is_success:
        _refuse(url, response)
    return calls.read_answer(call, url, response.content)


def _refuse(url: str, response: httpx.Response) -> NoReturn:
    raise calls.read_error(url, response.status_code, response.headers, response.content)


@contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
        raise ConnectionFailed(url, str(error) or "no answer in time") from error
    except httpx.RemoteProtocolError as error:
        if url.startswith("http://") and speaks_tls(url):
            raise ConnectionFailed(url, SPEAKS_TLS) from error
        raise StreamBroken(url, str(error)) from error
    except httpx.HTTPError as error:
        raise StreamBroken(url, str(error) or type(error).__name__) from error
