"""What the clients of soak.py do: each deed asks for something and checks what comes.

A deed raises if an answer is not as expected; giving up is not an error.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import httpx
from numpy.random import Generator

from serve.wire import torsor_pb2 as pb
from serve.wire import torsor_pb2_grpc as rpc

MODEL = "osm-rnn-shakespeare"
PROMPT = "ROMEO: What light through yonder window breaks?\n"
SEEDS = 40  # so that each comes again
MAX_WRITTEN = 400
NUM_ABLATIONS = 80  # more than a server keeps sessions for

Json = dict[str, Any]
Deed = Callable[["Tester", Generator], Awaitable[None]]


class Unexpected(Exception):
    """An answer that is not as it should be."""


def ablations() -> Iterator[Json]:
    """Ablations that differ."""
    for i in range(NUM_ABLATIONS):
        edit = {"target": "mixing", "op": "schur", "alpha": 0.5 + i / 200, "zero": ["CC"]}
        yield {"edits": [edit]}


def some_ablation(generator: Generator) -> Json:
    """One of them."""
    return list(ablations())[int(generator.integers(NUM_ABLATIONS))]


def expect(what: str, found: object, expected: object) -> None:
    """`Unexpected` where they differ."""
    if found != expected:
        raise Unexpected(f"{what}: found {found!r:.200}, expected {expected!r:.200}")


class Tester:
    """Clients of one server, and the texts that seeds have given so far."""

    def __init__(self, web: httpx.AsyncClient, grpc_address: str) -> None:
        self.web, self._channel = web, grpc.aio.insecure_channel(grpc_address)
        self.stub: Any = rpc.TorsorStub(self._channel)  # type: ignore[no-untyped-call]
        self._texts: dict[str, str] = {}

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()

    def body(self, generator: Generator) -> Json:
        """A request that comes again."""
        seed = int(generator.integers(SEEDS))
        length = 1 + seed * 97 % MAX_WRITTEN
        return {"model": MODEL, "prompt": PROMPT[:seed], "max_tokens": length, "seed": seed}

    def same_text(self, body: Json, text: str) -> None:
        """The text that this request gave before, whatever ran beside it."""
        expect("length", len(text), body["max_tokens"])
        key = json.dumps([body["seed"], body.get("ablation")])
        expect(f"text of {key}", text, self._texts.setdefault(key, text))

    async def post(self, path: str, body: Json, status: int = 200) -> Json:
        """The page that a POST answers."""
        answer = await self.web.post(path, json=body)
        expect(f"{path} {str(body)[:100]}: status", answer.status_code, status)
        page: Json = answer.json()
        return page

    async def whole(self, generator: Generator, ablation: Json | None = None) -> None:
        """A text at once."""
        body = self.body(generator) | ({"ablation": ablation} if ablation else {})
        page = await self.post("/v1/completions", body)
        self.same_text(body, page["choices"][0]["text"])

    async def events(self, path: str, body: Json) -> AsyncIterator[Json]:
        """The events of a stream to its [DONE]."""
        async with self.web.stream("POST", path, json={**body, "stream": True}) as answer:
            expect("status", answer.status_code, 200)
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    yield json.loads(line[6:])
        raise Unexpected("the stream ended without [DONE]")


async def stream(tester: Tester, generator: Generator) -> None:
    body = tester.body(generator)
    pieces = [e["choices"][0]["text"] async for e in tester.events("/v1/completions", body)]
    tester.same_text(body, "".join(pieces))


async def whole(tester: Tester, generator: Generator) -> None:
    await tester.whole(generator)


async def ablated(tester: Tester, generator: Generator) -> None:
    await tester.whole(generator, some_ablation(generator))


async def pair(tester: Tester, generator: Generator) -> None:
    body = tester.body(generator) | {"ablation": some_ablation(generator)}
    texts = {"baseline": "", "ablated": ""}
    async for event in tester.events("/v1/ablations/generate", body):
        if "branch" in event:
            texts[event["branch"]] += event["text"]
    tester.same_text({**body, "ablation": None}, texts["baseline"])
    tester.same_text(body, texts["ablated"])


async def score(tester: Tester, generator: Generator) -> None:
    body = {"text": PROMPT * int(generator.integers(1, 40)), "ablation": some_ablation(generator)}
    page = await tester.post("/v1/ablations/score", {"model": MODEL, **body})
    expect("characters", page["num_characters"], len(str(body["text"])))


async def bad(tester: Tester, generator: Generator) -> None:
    cases: list[tuple[str, Json, int]] = [
        ("/v1/completions", {"max_tokens": -1}, 400),
        ("/v1/completions", {"prompt": "€"}, 400),
        ("/v1/completions", {"no_such_field": 1}, 400),
        ("/v1/completions", {"model": "no-such-model"}, 404),
        ("/v1/completions", {"ablation": {"edits": [{"target": "x", "op": "zero"}]}}, 400),
        ("/v1/ablations/score", {"text": ""}, 400),
        ("/v1/nothing", {}, 404),
    ]
    path, body, status = cases[int(generator.integers(len(cases)))]
    page = await tester.post(path, body, status)
    expect("an error object", "error" in page, True)


async def leave_early(tester: Tester, generator: Generator) -> None:
    """Hang up at a random moment: before the slot, in the prompt, or in the text."""
    length = int(generator.choice([10, 20_000]))
    body = {"prompt": PROMPT * length if length > 10 else "", "max_tokens": 5_000, "stream": True}
    write_timeout = float(generator.choice([0.001, 0.01, 0.1, 0.5]))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(write_timeout):
            await tester.web.post("/v1/completions", json={"model": MODEL, **body})


async def leave_in_text(tester: Tester, generator: Generator) -> None:
    """Read some events, then hang up."""
    left = int(generator.integers(1, 8))
    body = {"model": MODEL, "max_tokens": 20_000, "n": int(generator.integers(1, 4))}
    events = tester.events("/v1/completions", body)
    async with contextlib.aclosing(events):  # type: ignore[type-var]
        async for _ in events:
            left -= 1
            if not left:
                return


async def grpc_stream(tester: Tester, generator: Generator) -> None:
    body = tester.body(generator)
    call = tester.stub.Generate(pb.GenerateRequest(**body))
    tester.same_text(body, "".join([chunk.text async for chunk in call]))


async def grpc_leave(tester: Tester, generator: Generator) -> None:
    call = tester.stub.Generate(pb.GenerateRequest(model=MODEL, max_tokens=20_000))
    left = int(generator.integers(0, 8))
    async for _ in call:
        if not left:
            break
        left -= 1
    call.cancel()


async def grpc_bad(tester: Tester, generator: Generator) -> None:
    del generator
    try:
        async for _ in tester.stub.Generate(pb.GenerateRequest(max_tokens=-1)):
            raise Unexpected("gRPC: found text, expected INVALID_ARGUMENT")
    except grpc.aio.AioRpcError as error:
        expect("gRPC status", error.code(), grpc.StatusCode.INVALID_ARGUMENT)


DEEDS: dict[str, Deed] = {
    deed.__name__: deed
    for deed in (
        *(stream, whole, ablated, pair, score, bad, leave_early, leave_in_text),
        *(grpc_stream, grpc_leave, grpc_bad),
    )
}
