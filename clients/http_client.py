"""Ask a server over HTTP.

    with HttpClient() as client:
        for chunk in client.generate("ROMEO:", max_tokens=200, seed=1):
            print(chunk.text, end="", flush=True)

- `HttpClient`, `AsyncHttpClient` and `GrpcClient` have the same verbs and give equal results.
- Options are those of clients/options.py; one that doesn't exist is a `TypeError`.
- Every verb may raise the errors of clients/errors.py.
- A stream starts when its first chunk is asked for. Closing it early (`close`, `aclose`, or leaving
  the loop over a sync one) ends it on the server too.
- `api_key` goes with every request; `ca` is a file of certificates to trust instead of the usual.
- On this machine no proxy is used, whatever the environment says.
"""

import ssl
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self, TypeVar, Unpack

import httpx

from clients.credentials import bearer, read_ca
from clients.errors import ConnectionFailed, StreamBroken
from clients.http import calls
from clients.http.calls import Call, StreamCall
from clients.http.events import EventStream
from clients.http.queries import AsyncQueries, Queries
from clients.http.sweeps import AsyncHttpSweeps, HttpSweeps
from clients.options import Ablation, GenerateOptions, PairOptions, ScoreOptions
from clients.results import Chunk, Completion, ModelInfo, ScoreResult, Structure

DEFAULT_URL = "http://127.0.0.1:3000"
CONNECT_TIMEOUT_S = 5.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")

Answer = TypeVar("Answer")


class HttpClient(Queries):
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
        self._http = httpx.Client(**_settings(url, max_silence_s, api_key, ca))
        self.sweeps = HttpSweeps(self._ask, self._stream)

    def models(self) -> tuple[ModelInfo, ...]:
        """The models that the server holds."""
        return self._ask(calls.models())

    def structure(self, model: str | None = None) -> Structure:
        """What can be ablated in a model, left out: in the first."""
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


class AsyncHttpClient(AsyncQueries):
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
        self._http = httpx.AsyncClient(**_settings(url, max_silence_s, api_key, ca))
        self.sweeps = AsyncHttpSweeps(self._ask, self._stream)

    async def models(self) -> tuple[ModelInfo, ...]:
        """The models that the server holds."""
        return await self._ask(calls.models())

    async def structure(self, model: str | None = None) -> Structure:
        """What can be ablated in a model, left out: in the first."""
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


def _settings(
    url: str, max_silence_s: float | None, api_key: str | None, ca: str | None
) -> dict[str, Any]:
    try:
        host = httpx.URL(url).host if url.startswith(("http://", "https://")) else ""
    except httpx.InvalidURL:
        host = ""
    if not host:
        raise ValueError(f"url: found {url!r}, expected http://HOST:PORT")
    return {
        "base_url": url,
        "headers": {"Content-Type": "application/json", **bearer(api_key)},
        "timeout": httpx.Timeout(max_silence_s, connect=CONNECT_TIMEOUT_S),
        "trust_env": host not in LOOPBACK,
        # To read the certificates takes 0.1 s, and plain http never looks at them
        "verify": url.startswith("https://") if ca is None else _trusting(ca),
    }


def _trusting(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=read_ca(ca).decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        raise ValueError(f"ca: found no certificates in {ca}, expected them as PEM") from None


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
    except httpx.HTTPError as error:
        raise StreamBroken(url, str(error) or type(error).__name__) from error
