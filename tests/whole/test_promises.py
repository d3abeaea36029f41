"""What the streaming service promises and no other file holds: bits, text, limits, bursts."""

import asyncio
import copy
import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from asking import ASK, MODELS, OSM, complete, events, streams, text_of, wait_until

from clients.grpc_client import GrpcClient
from serve.engine.engine import Engine
from serve.engine.stream import Stream
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.runtime.vocabulary import Vocabulary
from serve.settings import SHIPPED
from serve.wire import torsor_pb2 as pb
from serve.wire import torsor_pb2_grpc as rpc

# --- reproducible ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_runs_of_any_length_and_any_batch_write_the_same_bits(
    for_device: Callable[[Path], Path], device: Device, model: str
) -> None:
    whole = Bundle(for_device(SHIPPED / model), device)
    forced = Vocabulary(whole.manifest.vocabulary).encode(ASK["prompt"], "prompt", "error")
    found = set()
    for K, num_others in ((1, 0), (3, 2), (7, 30), (16, 0), (16, 9)):
        bundle, graph = copy.copy(whole), whole.manifest.graph
        graph = dataclasses.replace(graph, max_steps=K)
        bundle.manifest = dataclasses.replace(whole.manifest, graph=graph)
        engine, session = Engine([bundle]), bundle.plain.session
        streams = [
            Stream(bundle, session, forced[: 1 + i % 7], max_tokens=40 + i, seed=i)
            for i in range(num_others)
        ]
        stream = Stream(bundle, session, forced, max_tokens=100, seed=7)
        engine.submit([*streams, stream])
        while engine.tick():
            pass
        arrived, finished = stream.collect()
        assert finished
        characters = tuple(c for delivery in arrived for c in delivery.characters)
        found.add((characters, tuple(p for delivery in arrived for p in delivery.logprobs)))
    assert len(found) == 1


async def _come_and_go(server: Any, until: asyncio.Event, number: int) -> None:
    """Ask for random texts, and leave every other one early."""
    rng = random.Random(number)
    async with httpx.AsyncClient(timeout=60) as client:
        while not until.is_set():
            body = {
                "model": rng.choice(MODELS),
                "prompt": "KING RICHARD"[: rng.randrange(12)],
                "max_tokens": rng.randrange(1, 2_000),
                "temperature": rng.random(),
                "stream": rng.random() < 0.5,
            }
            asked = asyncio.ensure_future(client.post(server.url + "/v1/completions", json=body))
            await asyncio.wait([asked], timeout=rng.random() * 0.2)
            if rng.random() < 0.5:
                asked.cancel()
            await asyncio.wait([asked])


@pytest.mark.parametrize("model", MODELS)
def test_log_probabilities_keep_their_bits_while_others_come_and_go(
    server: Any, model: str
) -> None:
    ask = {"model": model, "logprobs": 2, "max_tokens": 300}
    expected = complete(server, **ask)["choices"]

    async def among_others() -> list[Any]:
        until = asyncio.Event()
        others = [asyncio.create_task(_come_and_go(server, until, i)) for i in range(16)]
        found = [(await asyncio.to_thread(complete, server, **ask))["choices"] for _ in range(3)]
        parts = await asyncio.to_thread(events, server, ask)
        until.set()
        await asyncio.gather(*others)
        logprobs = [part["choices"][0]["logprobs"] for part in parts]
        joined = {key: [v for part in logprobs for v in part[key]] for key in logprobs[0]}
        return [*found, [expected[0] | {"logprobs": joined}]]

    assert asyncio.run(among_others()) == [expected] * 4


# --- text -----------------------------------------------------------------------------------------


def test_of_overlapping_stop_strings_the_first_that_is_complete_counts(server: Any) -> None:
    whole = text_of(complete(server))
    stops = [whole[38:48], whole[40:46], whole[39:46], whole[60:63], "&&"]
    end = min(whole.index(stop) + len(stop) for stop in stops[:-1])
    named = max((s for s in stops if whole[:end].endswith(s)), key=len)
    expected = (whole[: end - len(named)], "stop", named)
    choice = complete(server, stop=stops)["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_string"]) == expected
    last = [event["choices"][0] for event in events(server, {"stop": stops})]
    streamed = "".join(choice["text"] for choice in last)
    assert (streamed, last[-1]["finish_reason"], last[-1]["stop_string"]) == expected
    with GrpcClient(server.grpc_address) as client:
        options = {key: value for key, value in ASK.items() if key != "prompt"}
        found = client.complete(ASK["prompt"], stop=stops, **options).choices[0]
    assert (found.text, found.finish_reason) == expected[:2]


@pytest.mark.parametrize("echo", [False, True])
def test_a_stop_string_that_begins_in_the_prompt_is_none(server: Any, echo: bool) -> None:
    prompt, written = ASK["prompt"], text_of(complete(server))
    stop = prompt[-3:] + written[:3]
    expected = prompt * echo + written
    assert stop not in written and text_of(complete(server, stop=stop, echo=echo)) == expected


def test_log_probabilities_are_of_the_raw_distribution_and_finite(server: Any) -> None:
    forbidden = {str(i): -100 for i in range(20, 40)}
    options = {"temperature": 0.3, "top_k": 4, "top_p": 0.9, "logit_bias": forbidden}
    choice = complete(server, logprobs=20, **options)["choices"][0]
    shown = choice["logprobs"]
    text = ASK["prompt"] + choice["text"]
    scored = complete(server, prompt=text, max_tokens=0, echo=True, logprobs=20)["choices"][0]
    start = len(ASK["prompt"])
    for key in ("token_logprobs", "top_logprobs"):
        assert shown[key] == scored["logprobs"][key][start:]
    assert all(np.isfinite(p) and p <= 0 for p in shown["token_logprobs"])
    assert all(np.isfinite(p) for top in shown["top_logprobs"] for p in top.values())


def test_a_long_answer_is_whole(server: Any) -> None:
    """48 choices with 20 alternatives a character: made in slices, and as every one alone."""
    ask = {"max_tokens": 150, "n": 48, "logprobs": 20}
    page = complete(server, **ask)
    assert page["usage"]["completion_tokens"] == 48 * 150
    for choice in (page["choices"][0], page["choices"][29]):
        alone = complete(server, **ask | {"n": 1, "seed": choice["seed"]})["choices"][0]
        assert alone | {"index": choice["index"]} == choice
    parts = events(server, ask)
    for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        found: list[list[Any]] = [[] for _ in range(48)]
        for part in parts:
            choice = part["choices"][0]
            found[choice["index"]] += choice["logprobs"][key]
        assert found == [choice["logprobs"][key] for choice in page["choices"]]


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "token ids"])
def test_a_very_long_prompt_holds_up_nobody(server: Any, form: str) -> None:
    """While it is read, health and short requests are answered, on both wires."""
    text = "Hear me speak! " * 66_000
    vocabulary = Vocabulary(tuple(json.loads(manifest_text(OSM))["vocabulary"]))
    ids = vocabulary.encode(text, "prompt", "error").tolist()
    body = {"model": OSM, "prompt": text if form == "text" else ids, "max_tokens": 1}
    short = text_of(complete(server, model=OSM))

    async def check() -> None:
        async with httpx.AsyncClient(timeout=120) as client:
            url = server.url + "/v1/completions"
            long = asyncio.create_task(client.post(url, json=body))
            await asyncio.to_thread(wait_until, lambda: streams(server)[0] == 1)
            for _ in range(5):
                for path in ("/livez", "/readyz"):
                    assert (await client.get(server.url + path)).status_code == 200
                answer = await client.post(url, json=ASK | {"model": OSM})
                assert text_of(answer.json()) == short
                assert (await ask_grpc(server, ASK | {"model": OSM})) == short
                assert not long.done()
            assert streams(server) == (1, 0)
            long.cancel()
            await asyncio.wait([long])

    asyncio.run(check())
    wait_until(lambda: streams(server) == (0, 0))


def manifest_text(model: str) -> str:
    return (SHIPPED / model / "manifest.json").read_text()


async def ask_grpc(server: Any, body: dict[str, Any], channel: Any = None) -> str:
    async with channel or grpc.aio.insecure_channel(server.grpc_address) as opened:
        stub: Any = rpc.TorsorStub(opened)  # type: ignore[no-untyped-call]  # generated
        return "".join([c.text async for c in stub.Generate(pb.GenerateRequest(**body))])


# --- bursts ---------------------------------------------------------------------------------------


def kinds(model: str) -> list[dict[str, Any]]:
    return [
        ASK | {"model": model, "prompt": ASK["prompt"][: i + 1], "seed": i, "max_tokens": 12 + i}
        for i in range(6)
    ]


def resident_bytes(server: Any) -> int:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return sum(child.memory_info().rss for child in children)


@pytest.mark.slow
@pytest.mark.parametrize(("wire", "count"), [("http", 256), ("grpc", 1_000)])
def test_a_burst_of_streams_is_answered_as_each_alone(server: Any, wire: str, count: int) -> None:
    asked = [body for model in MODELS for body in kinds(model)]
    expected = [text_of(complete(server, **body)) for body in asked]

    async def burst_http() -> list[str]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:

            async def text(body: dict[str, Any]) -> str:
                answer = await client.post(server.url + "/v1/completions", json=body)
                lines = [line[6:] for line in answer.text.splitlines() if line]
                assert lines.pop() == "[DONE]"
                return "".join(json.loads(line)["choices"][0]["text"] for line in lines)

            bodies = (asked[i % len(asked)] | {"stream": True} for i in range(count))
            return await asyncio.gather(*map(text, bodies))

    async def burst_grpc() -> list[str]:
        async with grpc.aio.insecure_channel(server.grpc_address) as channel:
            stub: Any = rpc.TorsorStub(channel)  # type: ignore[no-untyped-call]  # generated

            async def text(body: dict[str, Any]) -> str:
                return "".join([c.text async for c in stub.Generate(pb.GenerateRequest(**body))])

            return await asyncio.gather(*(text(asked[i % len(asked)]) for i in range(count)))

    burst = burst_http if wire == "http" else burst_grpc
    for round in range(2):
        found = asyncio.run(burst())
        assert found == [expected[i % len(asked)] for i in range(count)]
        wait_until(lambda: streams(server) == (0, 0))
        if round == 0:
            before = resident_bytes(server)
    assert resident_bytes(server) < before + (32 << 20)  # the second burst finds room in the first


@pytest.mark.parametrize(
    ("prompt", "field"), [("a\ud800", "prompt"), (["b", "\udfffc"], "prompt[1]")]
)
def test_half_a_surrogate_pair_is_refused_by_name(server: Any, prompt: Any, field: str) -> None:
    body = json.dumps({"prompt": prompt, "unknown": "replace"})  # JSON can carry one, as \ud800
    answer = httpx.post(server.url + "/v1/completions", content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == field and "surrogate" in error["message"]
