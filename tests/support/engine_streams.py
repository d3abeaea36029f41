"""Streams of the engine: made, driven tick by tick, and collected."""

import time
from typing import Any

from serve.engine.engine import Engine
from serve.engine.stream import Life, Stream
from serve.runtime.bundle import Bundle
from serve.runtime.vocabulary import Vocabulary

NAMES = ("osm-rnn-shakespeare", "tanh-rnn-shakespeare")


PROMPT = "First Citizen:\nBefore we proceed"


def stream(bundle: Bundle, prompt: str = PROMPT, **options: Any) -> Stream:
    forced = Vocabulary(bundle.manifest.vocabulary).encode(prompt, "prompt", "error")
    options = {"max_tokens": 50, "seed": 7} | options
    return Stream(bundle, options.pop("session", bundle.plain.session), forced, **options)


def finish(engine: Engine, streams: list[Stream]) -> None:
    for _ in range(10_000):
        if all(s.life is Life.FINISHED for s in streams):
            return
        engine.tick()
    raise AssertionError("the streams did not end")


def collect(found: Stream) -> tuple[list[int], list[float]]:
    arrived, finished = found.collect()
    assert finished
    characters = [c for delivery in arrived for c in delivery.characters]
    return characters, [p for delivery in arrived for p in delivery.logprobs]


def alone(engine: Engine, found: Stream) -> tuple[list[int], list[float]]:
    engine.submit([found])
    finish(engine, [found])
    return collect(found)


def wait_until_running(found: Stream) -> None:
    deadline = time.monotonic() + 20
    while found.life is Life.WAITING:
        assert time.monotonic() < deadline
        time.sleep(0.001)
