"""The load of bench_serving.py: many streams at once from a process of its own, for any peer.

    python tests/bench/load.py PEER PORT --streams 64 --characters 1000

Bare sockets, and nothing is parsed while the clock runs: what arrives is kept with its time. After
the last byte all is parsed and every character counted. Prints one JSON object.
"""

import argparse
import asyncio
import functools
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import grpc
import numpy as np
import uvloop
from numpy.typing import NDArray

from serve.wire import torsor_pb2 as pb

GENERATE = "/torsor.v1.Torsor/Generate"
PATHS = {"torsor": "/v1/completions", "fastapi": "/generate"}
PATHS |= {"litserve": "/predict", "bentoml": "/generate"}
ALL_OPEN = "all streams are open"  # told on stderr, once
END = b"\r\n\r\n"
PERCENTILES = (50, 95, 99)


@dataclass(slots=True)
class Arrivals:
    """What one stream has brought, and when."""

    sent_at: float = 0.0
    first_at: float = 0.0  # first event
    times: list[float] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Load:
    """What a run of many streams has shown; seconds and characters."""

    streams: int
    characters: int
    wall_s: float
    cpu_s: float  # of this process
    first_s: tuple[float, ...]  # percentiles 50, 95, 99
    gap_s: tuple[float, ...]  # the same, between what arrives on one stream
    characters_per_event: float
    newcomer_first_s: tuple[float, ...]  # of single requests while all these streams run

    @property
    def rate(self) -> float:
        """Characters per second of all streams together."""
        return self.characters / self.wall_s


class HttpStream(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(
        self, request: bytes, loop: asyncio.AbstractEventLoop, opened: Callable[[], None]
    ) -> None:
        self.arrivals, self.ended = Arrivals(), loop.create_future()
        self._request, self._opened = request, opened

    def connection_made(self, transport: Any) -> None:
        """Ask."""
        self.arrivals.sent_at = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Keep it, with its time."""
        now, arrivals = time.perf_counter(), self.arrivals
        if not arrivals.first_at and b"data: " in data:
            arrivals.first_at = now
        if not arrivals.parts:
            self._opened()
        arrivals.times.append(now)
        arrivals.parts.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        """The server closes after the last byte."""
        del error
        if not self.ended.done():
            self.ended.set_result(None)


def main() -> int:
    """Run the streams, and print what they have shown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=[*PATHS, "grpc"])
    parser.add_argument("port", type=int)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--characters", type=int, required=True)
    parser.add_argument("--newcomers", type=int, default=0, help="HTTP requests of a character")
    parser.add_argument("--model", default="osm-rnn-shakespeare")
    options = parser.parse_args()
    print(json.dumps(asdict(uvloop.run(run(options)))))
    return 0


async def run(options: argparse.Namespace) -> Load:
    """All streams from start to end; `ValueError` if one brings fewer characters than asked for."""
    asks = [body_of(options.model, options.characters, i) for i in range(options.streams)]
    is_grpc = options.peer == "grpc"
    kind, parse = (grpc_streams, grpc_texts) if is_grpc else (http_streams, sse_texts)
    newcomers = [body_of(options.model, 1, -1 - i) for i in range(options.newcomers)]
    gc.disable()
    cpu, started = time.process_time(), time.perf_counter()
    found, late = await kind(options.peer, options.port, asks, newcomers)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    gc.enable()
    texts = [parse(arrivals.parts) for arrivals in found]
    for events in texts:
        if (count := sum(map(len, events))) != options.characters:
            raise ValueError(f"{options.peer}: found {count} characters, not {options.characters}")
    return summarise(found, texts, late, wall, cpu)


def body_of(model: str, characters: int, index: int) -> dict[str, Any]:
    """One request; seeds differ."""
    body = {"model": model, "prompt": "", "max_tokens": characters, "stream": True}
    return {**body, "seed": index % 2**31}


async def http_streams(
    peer: str, port: int, bodies: list[dict[str, Any]], newcomers: list[dict[str, Any]]
) -> tuple[list[Arrivals], list[Arrivals]]:
    """Every body on its own connection, all at once; newcomers one by one once all are open."""
    loop, missing, all_open = asyncio.get_running_loop(), len(bodies), asyncio.Event()

    def opened() -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            all_open.set()
            print(ALL_OPEN, file=sys.stderr, flush=True)

    async def one(body: dict[str, Any], opened: Callable[[], None] = lambda: None) -> Arrivals:
        make = functools.partial(HttpStream, http_request(PATHS[peer], body), loop, opened)
        _, protocol = await loop.create_connection(make, "127.0.0.1", port)
        await protocol.ended
        return protocol.arrivals

    streams = asyncio.gather(*[one(body, opened) for body in bodies])
    await all_open.wait()
    late = list[Arrivals]()
    for body in newcomers:
        if streams.done():
            break
        late.append(await one(body))
    return await streams, late


def http_request(path: str, body: dict[str, Any]) -> bytes:
    """A POST, after whose answer the server closes."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def grpc_streams(
    peer: str, port: int, bodies: list[dict[str, Any]], newcomers: list[dict[str, Any]]
) -> tuple[list[Arrivals], list[Arrivals]]:
    """Every body as a call of one channel, all at once; answers stay bytes for now."""
    del peer, newcomers
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        generate: Any = channel.unary_stream(GENERATE)

        async def one(body: dict[str, Any]) -> Arrivals:
            asked = {key: value for key, value in body.items() if key != "stream"}
            arrivals = Arrivals(sent_at=time.perf_counter())
            async for message in generate(pb.GenerateRequest(**asked).SerializeToString()):
                arrivals.times.append(time.perf_counter())
                arrivals.parts.append(message)
            arrivals.first_at = arrivals.times[0]
            return arrivals

        return await asyncio.gather(*map(one, bodies)), []


def sse_texts(parts: list[bytes]) -> list[str]:
    """The texts of an answer's events; `ValueError` if it isn't a whole stream."""
    answer = b"".join(parts)
    head, _, body = answer.partition(END)
    if not head.startswith(b"HTTP/1.1 200"):
        raise ValueError(f"found {answer[:300]!r}, expected status 200")
    if b"transfer-encoding: chunked" in head.lower():
        body = b"".join(chunks_of(body))
    pages = [event[6:] for event in body.split(b"\n\n") if event.startswith(b"data: ")]
    return [text_of(json.loads(page)) for page in pages if page != b"[DONE]"]


def text_of(page: Any) -> str:
    """The text of one event: OpenAI's shape, or {"text": ...}."""
    if "error" in page:
        raise ValueError(f"found {page}")
    found: str = page["choices"][0]["text"] if "choices" in page else page["text"]
    return found


def chunks_of(body: bytes) -> list[bytes]:
    """The chunks of HTTP's chunked encoding."""
    chunks, place = list[bytes](), 0
    while True:
        line = body.index(b"\r\n", place)
        if (size := int(body[place:line], 16)) == 0:
            return chunks
        chunks.append(body[line + 2 : line + 2 + size])
        place = line + 4 + size


def grpc_texts(messages: list[bytes]) -> list[str]:
    """The texts of a call's messages."""
    return [pb.GenerateChunk.FromString(message).text for message in messages]


def summarise(
    found: list[Arrivals], texts: list[list[str]], late: list[Arrivals], wall: float, cpu: float
) -> Load:
    """The run in numbers."""
    first = np.array([a.first_at - a.sent_at for a in found])
    gaps = np.array([later - sooner for a in found for sooner, later in pairwise(a.times)] or [0.0])
    characters = sum(len(text) for events in texts for text in events)
    events = sum(bool(text) for events in texts for text in events)
    return Load(
        streams=len(found),
        characters=characters,
        wall_s=wall,
        cpu_s=cpu,
        first_s=percentiles(first),
        gap_s=percentiles(gaps),
        characters_per_event=characters / events,
        newcomer_first_s=percentiles(np.array([a.first_at - a.sent_at for a in late] or [0.0])),
    )


def percentiles(values: NDArray[np.float64]) -> tuple[float, ...]:
    """The 50th, 95th and 99th."""
    return tuple(float(value) for value in np.percentile(values, PERCENTILES))


if __name__ == "__main__":
    sys.exit(main())
