"""The cache of states: equal bits with and without it, a bound that holds, only whole states."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from clients.grpc_client import GrpcClient
from clients.http_client import HttpClient
from serve.engine.engine import Engine
from serve.engine.limits import EngineLimits
from serve.engine.prefix_cache import CUTS, EVERY, UP_TO, PrefixCache, Prefixes
from serve.engine.stream import Life, Stream
from serve.runtime.bundle import Bundle, load_bundles
from serve.runtime.device import Device
from serve.settings import SHIPPED

NAMES = ("osm-rnn-shakespeare", "tanh-rnn-shakespeare")


@pytest.fixture(scope="module")
def bundles(for_device: Callable[[Path], Path], device: Device) -> dict[str, Bundle]:
    folders = [for_device(SHIPPED / name) for name in NAMES]
    return load_bundles(folders, device.kind, device.num_threads)


def write(engine: Engine, found: Stream) -> tuple[list[int], list[float], int]:
    engine.submit([found])
    num_ticks = 0
    while found.life is not Life.FINISHED:
        engine.tick()
        num_ticks += 1
    assert found.error is None
    arrived = found.collect()[0]
    characters = [c for delivery in arrived for c in delivery.characters]
    return characters, [p for delivery in arrived for p in delivery.logprobs], num_ticks


def stream(bundle: Bundle, forced: Any, **options: Any) -> Stream:
    given: dict[str, Any] = {"max_tokens": 40, "seed": 7, "weights": "w/"} | options
    return Stream(bundle, bundle.plain.session, np.asarray(forced, np.int64), **given)


def prompt(length: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 60, length)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 200, 1000])
def test_a_known_beginning_saves_ticks_and_changes_no_bit(
    bundles: dict[str, Bundle], name: str, length: int
) -> None:
    engine = Engine(bundles.values())
    forced = prompt(length)
    *first, slow = write(engine, stream(bundles[name], forced))
    again = stream(bundles[name], forced)
    *second, fast = write(engine, again)
    assert first == second
    assert again.num_reused == length // 16 * 16
    assert slow - fast == again.num_reused // 16


def test_prompts_share_what_they_begin_with(bundles: dict[str, Bundle]) -> None:
    bundle, shared = bundles[NAMES[0]], prompt(3 * EVERY + 5)
    tails = [prompt(50, seed) for seed in (1, 2)]
    alone = [
        write(Engine(bundles.values()), stream(bundle, np.concatenate([shared, tail])))[:2]
        for tail in tails
    ]
    engine = Engine(bundles.values())
    streams = [stream(bundle, np.concatenate([shared, tail])) for tail in tails]
    assert [write(engine, found)[:2] for found in streams] == alone
    assert [found.num_reused for found in streams] == [0, 3 * EVERY]


def test_other_weights_and_echoes_and_openings_share_nothing(bundles: dict[str, Bundle]) -> None:
    bundle, forced, engine = bundles[NAMES[1]], prompt(64), Engine(bundles.values())
    write(engine, stream(bundle, forced))
    others = [
        stream(bundle, forced, weights="v/"),
        stream(bundle, forced, deliver_forced=True),
        stream(bundle, forced, weights=""),
    ]
    for other in others:
        write(engine, other)
        assert other.num_reused == 0


def test_a_sick_streams_state_is_not_kept(bundles: dict[str, Bundle]) -> None:
    bundle, engine = bundles[NAMES[0]], Engine(bundles.values())
    sick = stream(bundle, prompt(100))
    engine.submit([sick])
    engine.tick()
    for table in engine._tables[bundle].slots._tables.values():
        table[sick.slot] = np.nan
    while sick.life is not Life.FINISHED:
        engine.tick()
    assert sick.error is not None and len(engine.cache) == 0


def test_no_cache_keeps_nothing(bundles: dict[str, Bundle]) -> None:
    engine = Engine(bundles.values(), EngineLimits(state_cache_bytes=0))
    for _ in range(2):
        found = stream(bundles[NAMES[0]], prompt(100))
        write(engine, found)
        assert found.num_reused == 0
    assert len(engine.cache) == 0


def put(cache: PrefixCache, weights: str, forced: Any, length: int) -> None:
    rows = {"h": np.full(100, length, np.float32)}
    cache.put(weights, length, Prefixes(forced).digest(length), rows)


def test_the_least_recently_used_goes_first_and_the_bound_holds() -> None:
    cache, forced = PrefixCache(2500), prompt(1000)
    for length in (16, 32, 48):
        put(cache, "w/", forced, length)
    assert len(cache) == 3 and cache.num_bytes <= 2500
    assert cache.find("w/", forced[:20]) is not None  # 16 was used last
    put(cache, "w/", forced, 64)
    assert cache.num_bytes <= 2500
    assert cache.find("w/", forced[:47]) is not None and cache.find("w/", forced[:15]) is None
    found = cache.find("w/", forced)
    assert found is not None and found[0] == 64 and found[1]["h"][0] == 64
    assert cache.find("w/", forced[:47])[0] == 16  # type: ignore[index]  # 32 is gone


def test_what_differs_anywhere_before_is_another_beginning() -> None:
    cache, forced = PrefixCache(10_000), prompt(100)
    put(cache, "w/", forced, 64)
    for place in (0, 31, 63):
        other = forced.copy()
        other[place] += 1
        assert cache.find("w/", other) is None
    other = forced.copy()
    other[64] += 1
    assert cache.find("w/", other) is not None


def test_a_model_that_goes_takes_its_states_along() -> None:
    cache, forced = PrefixCache(10_000), prompt(100)
    for weights in ("a/", "a/hash", "b/"):
        put(cache, weights, forced, 16)
    cache.forget("a/")
    assert len(cache) == 1 and cache.find("b/", forced) is not None
    assert cache.find("a/", forced) is None and cache.num_bytes < 1000


def test_a_long_prompt_keeps_few_states() -> None:
    cache = PrefixCache(1 << 30)
    wanted = [p for p in range(16, 100_001, 16) if cache.wants(p, 100_000, 16)]
    assert len(wanted) == UP_TO // EVERY + 1 and 100_000 * (1 - 1 / CUTS) < wanted[-1] <= 100_000


def test_lengths_to_look_up_stay_few_whatever_prompts_are_sent() -> None:
    cache, cut = PrefixCache(1 << 30), 16

    def last(length: int) -> int:
        ends = range(length // cut * cut, 0, -cut)
        return next(position for position in ends if cache.wants(position, length, cut))

    lengths = {last(length) for length in range(cut, 1_000_001, 97)}
    assert len(lengths) < 1_000
    assert all(
        length - last(length) < max(cut, length / CUTS) for length in range(5_000, 90_000, 997)
    )


def test_usage_says_what_was_reused_over_http_and_grpc(server: Any) -> None:
    text = "Hear me speak, ye citizens, before ye proceed any further. " * 5
    with HttpClient(server.url) as http, GrpcClient(server.grpc_address) as grpc:
        first = http.complete(text, max_tokens=20, seed=1, model=NAMES[0])
        again = [c.complete(text, max_tokens=20, seed=1, model=NAMES[0]) for c in (http, grpc)]
        for found in again:
            assert found.text == first.text
            assert found.usage.prompt_tokens == len(text)
            assert found.usage.cached_tokens == len(text) // 16 * 16
        counts = httpx.get(server.url + "/metrics").text
        for name in ("queries_total", "hits_total", "characters_total", "bytes"):
            count = re.search(
                rf"^torsor_state_cache_{name}(?:{{.*}})? (\S+)$", counts, re.MULTILINE
            )
            assert count is not None and float(count[1]) > 0, name
        ablated = {"edits": [{"target": "mixing", "op": "identity"}]}
        other = http.complete(text, max_tokens=20, seed=1, model=NAMES[0], ablation=ablated)
        assert other.usage.cached_tokens == 0
