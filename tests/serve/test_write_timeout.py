"""Clients that don't read what they asked for, over real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import uvicorn

from serve.cancel import WriteTimeout
from serve.gateway.admission import Gateway, KeyLimits
from serve.gateway.keys import Key, hash_key
from serve.grpc_api.server import start_grpc_server
from serve.http_api.app import ROUTES
from serve.http_api.middleware import GatewayMiddleware
from serve.http_api.routes import Dispatcher, RouteTable
from serve.models import Models
from serve.wire import torsor_pb2 as pb
from serve.wire import torsor_pb2_grpc as rpc

TANH = "tanh-rnn-shakespeare"
KEY = "a key of a client that does not read"


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[int]:
    """The port of a server in this loop."""
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off", access_log=False)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = server.force_exit = True
    await running


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.02)


def ask_without_reading(port: int, body: dict[str, Any]) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {KEY}\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_who_reads_nothing_keeps_neither_slot_nor_place(host: Models, stream: bool) -> None:
    async def work() -> None:
        gate = KeyLimits([Key(name="one", sha256=hash_key(KEY), max_concurrent=1)])
        own = Dispatcher(RouteTable(ROUTES), lambda: host)
        app = GatewayMiddleware(own, Gateway(gate, write_timeout_s=0.4), own)
        body = {"prompt": "A", "max_tokens": 9_500, "logprobs": 20, "stream": stream}
        async with serving(app) as port:
            connections = []
            for _ in range(2):  # the second finds the place of the first free
                connections.append(await asyncio.to_thread(ask_without_reading, port, body))
                await until(lambda: gate._accounts[0].num_running == 1)
                await until(lambda: gate._accounts[0].num_running == 0)
                await until(lambda: host.engine.num_running == 0)
            for connection in connections:
                connection.close()

    asyncio.run(work())


def test_who_reads_nothing_over_grpc_keeps_neither_slot_nor_place(
    host: Models, free_tcp_port: int
) -> None:
    asked = pb.GenerateRequest(prompt="A", max_tokens=9_500, logprobs=20)
    metadata = (("authorization", f"Bearer {KEY}"),)

    async def work() -> None:
        gate = KeyLimits([Key(name="one", sha256=hash_key(KEY), max_concurrent=1)])
        address = f"127.0.0.1:{free_tcp_port}"
        server, _ = await start_grpc_server(host, address, Gateway(gate, write_timeout_s=0.4))
        narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)]
        with grpc.insecure_channel(address, options=narrow) as channel:
            stub: Any = rpc.TorsorStub(channel)  # type: ignore[no-untyped-call]  # generated
            for _ in range(2):
                answer = await asyncio.to_thread(stub.Generate, asked, metadata=metadata)
                await until(lambda: gate._accounts[0].num_running == 1)
                await until(lambda: gate._accounts[0].num_running == 0)
                await until(lambda: host.engine.num_running == 0)
                with pytest.raises(grpc.RpcError, match="left unread for 0.4 s"):
                    await asyncio.to_thread(list, answer)
        await server.stop(0)

    asyncio.run(work())


def test_only_a_write_that_waits_is_too_long() -> None:
    async def work() -> list[str]:
        told = []
        write_timeout = WriteTimeout(0.1)
        with write_timeout:
            await asyncio.sleep(0.3)  # no write: a client may wait for its answer
            for _ in range(4):
                write_timeout.begin()
                await asyncio.sleep(0.05)
                write_timeout.end()
            told.append("written")
            write_timeout.begin()
            await asyncio.sleep(60)
        told.append("left" if write_timeout.has_cancelled else "lost")
        await asyncio.sleep(0.2)  # nothing cancels what comes after
        return told

    assert asyncio.run(work()) == ["written", "left"]


def test_another_cancellation_passes() -> None:
    async def work() -> None:
        with WriteTimeout(60.0):
            await asyncio.sleep(60)

    async def outside() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(outside())
