"""Clients that leave, in every phase of a stream and on every wire: slots come free at once."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import httpx
import pytest
from asking import ASK, gauge, streams, text_of, wait_until

from serve.settings import SHIPPED
from serve.wire import torsor_pb2 as pb
from serve.wire import torsor_pb2_grpc as rpc

TANH = "tanh-rnn-shakespeare"
LONG = ASK | {"max_tokens": 400_000}
PHASES: dict[str, dict[str, Any]] = {
    "queued": {"prompt": "Hear me!", "max_tokens": 50},
    "prefilling": {"prompt": "Hear me speak. " * 60_000, "max_tokens": 50},
    "decoding": {"prompt": "Hear me!", "max_tokens": 400_000},
}
WIRES = ("http stream", "http whole", "grpc", "grpc deadline")


@pytest.fixture(scope="module")
def narrow(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with two slots."""
    arguments = (str(SHIPPED / TANH), "--max-streams", "2", "--state-cache-mb", "0")
    with start_server(tmp_path_factory.mktemp("narrow"), *arguments) as found:
        yield found


class Neighbour:
    """A long stream over HTTP that is read all the time."""

    def __init__(self, server: Any, seed: int) -> None:
        self.text, self._left = "", threading.Event()
        self._ask = (server.url + "/v1/completions", LONG | {"seed": seed, "stream": True})
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def read(self, count: int) -> str:
        """Its first characters, awaited."""
        wait_until(lambda: len(self.text) >= count)
        return self.text[:count]

    def leave(self) -> None:
        self._left.set()
        self._thread.join(30)

    def _read(self) -> None:
        url, body = self._ask
        with httpx.stream("POST", url, json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                if self._left.is_set():
                    return
                if line.startswith("data: "):
                    self.text += json.loads(line[6:])["choices"][0]["text"]


@contextmanager
def neighbours(server: Any, count: int) -> Iterator[list[Neighbour]]:
    found = [Neighbour(server, seed) for seed in range(count)]
    try:
        wait_until(lambda: streams(server) == (count, 0))
        yield found
    finally:
        for neighbour in found:
            neighbour.leave()
        wait_until(lambda: streams(server) == (0, 0))


async def ask(server: Any, wire: str, body: dict[str, Any]) -> None:
    if wire.startswith("http"):
        body = body | {"stream": wire == "http stream"}
        async with httpx.AsyncClient(timeout=60) as client:
            await client.post(server.url + "/v1/completions", json=body)
        return
    timeout = 1.5 if wire == "grpc deadline" else None
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:
        stub: Any = rpc.TorsorStub(channel)  # type: ignore[no-untyped-call]  # generated
        async for _ in stub.Generate(pb.GenerateRequest(**body), timeout=timeout):
            pass


async def leave(server: Any, wire: str, body: dict[str, Any], there: Any) -> None:
    """Ask, and go away once the stream is there; or be cut off by the deadline."""
    task = asyncio.create_task(ask(server, wire, body))
    await asyncio.to_thread(wait_until, there)
    if wire == "grpc deadline":
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await task
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("wire", WIRES)
def test_who_leaves_frees_the_slot_and_disturbs_nobody(narrow: Any, wire: str, phase: str) -> None:
    count = 2 if phase == "queued" else 1
    whole = httpx.post(
        narrow.url + "/v1/completions", json=LONG | {"seed": 0, "max_tokens": 3_000}, timeout=60
    )
    with neighbours(narrow, count) as others:
        cancelled = gauge(narrow, "torsor_streams_total")
        given = gauge(narrow, "torsor_prompt_characters_total")
        there = (2, 1) if phase == "queued" else (2, 0)
        asyncio.run(leave(narrow, wire, PHASES[phase], lambda: streams(narrow) == there))
        wait_until(lambda: streams(narrow) == (count, 0), within_s=2.0)
        assert gauge(narrow, "torsor_streams_total") == cancelled + 1
        taken = gauge(narrow, "torsor_prompt_characters_total") - given
        length = len(PHASES[phase]["prompt"])
        if phase == "decoding":
            assert taken == length
        else:  # what nobody waits for is not run
            assert taken == 0 if phase == "queued" else 0 < taken < length
        assert others[0].read(3_000) == text_of(whole.json())
