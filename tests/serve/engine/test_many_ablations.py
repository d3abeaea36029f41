"""Many ablations at once: whose turn it is, who gives way, and what is kept."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from edited_models import TANH, run, write
from engine_streams import alone, collect, finish, stream, wait_until_running
from prometheus_client import REGISTRY

from serve.ablation.ablation import Ablation, ablation_hash
from serve.ablation.parse import parse_ablation
from serve.engine.engine import Engine
from serve.engine.limits import EngineLimits
from serve.engine.scheduling import ABLATED_A_TICK, BACKGROUND_EVERY
from serve.engine.stream import Life, Stream
from serve.models import Models
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.settings import SHIPPED
from serve.wire.errors import RequestError

HUNDRED = range(100)


def edits(index: int) -> dict[str, Any]:
    """One of a hundred ablations of the tanh model, each with another hash, all quickly made."""
    return {"edits": [{"target": target, "op": op} for target, op in ABLATIONS[index]]}


def every_order() -> Iterator[tuple[tuple[str, str], ...]]:
    """Up to three edits of one weight, with one of each of two others between them, or not."""
    for length, first in itertools.product((1, 2, 3), (0, 1)):
        own = [("recurrent", ("zero", "identity")[(first + i) % 2]) for i in range(length)]
        for places in itertools.product((None, *range(length + 1)), repeat=2):
            found = list(own)
            for target, place in zip(("input", "readout"), places, strict=True):
                if place is not None:
                    found.insert(place, (target, "zero"))
            yield tuple(found)


ABLATIONS = list(dict.fromkeys(every_order()))


@pytest.fixture
def bundle() -> Bundle:
    return Bundle(SHIPPED / TANH, Device("cpu", 1))


@pytest.fixture
def engine(bundle: Bundle) -> Engine:
    """An engine whose ticks the test calls itself."""
    return Engine([bundle], EngineLimits(state_cache_bytes=0))


def ablation(bundle: Bundle, index: int) -> Ablation:
    return parse_ablation(edits(index), bundle.manifest)


def ablated(bundle: Bundle, index: int, **options: Any) -> Stream:
    session = bundle.variant(ablation(bundle, index)).session
    return stream(bundle, session=session, **{"max_tokens": 30, "seed": index} | options)


def ticks_until(engine: Engine, found: Stream) -> int:
    count = 0
    while found.life is not Life.FINISHED:
        assert engine.tick() and count < 10_000
        count += 1
    return count


# --- turns ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plain_stream_needs_no_more_ticks_beside_a_hundred_ablations(
    engine: Engine, bundle: Bundle
) -> None:
    engine.submit([plain := stream(bundle, max_tokens=400)])
    expected = ticks_until(engine, plain), collect(plain)
    texts = [alone(engine, ablated(bundle, i)) for i in HUNDRED]
    others, plain = [ablated(bundle, i) for i in HUNDRED], stream(bundle, max_tokens=400)
    engine.submit([*others, plain])
    assert (ticks_until(engine, plain), collect(plain)) == expected
    assert not all(other.life is Life.FINISHED for other in others)
    finish(engine, others)
    assert [collect(other) for other in others] == texts


def test_ablations_take_turns_and_nobody_is_passed(engine: Engine, bundle: Bundle) -> None:
    num = 4 * ABLATED_A_TICK + 1
    streams = [ablated(bundle, i, max_tokens=2_000) for i in range(num)]
    engine.submit(streams)
    last = dict.fromkeys(range(num), 0)
    for tick in range(1, 40):
        before = [s.position for s in streams]
        engine.tick()
        advanced = [i for i in range(num) if streams[i].position > before[i]]
        assert len(advanced) == ABLATED_A_TICK
        last |= dict.fromkeys(advanced, tick)
        assert all(tick - since <= num // ABLATED_A_TICK for since in last.values())
    engine.cancel(streams)
    engine.tick()


def test_who_rests_and_comes_back_stands_at_the_end(
    engine: Engine, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers that pause and go on all the time don't push the others back."""
    monkeypatch.setattr("serve.engine.engine.MAX_UNREAD", 1)
    streams = [ablated(bundle, i, prompt="", max_tokens=2_000) for i in range(12)]
    engine.submit(streams)
    for _ in range(10):
        for found in streams[:8]:
            found.collect()
        engine.tick()
    assert all(found.position for found in streams)
    engine.cancel(streams)
    engine.tick()


def test_few_ablations_all_advance_in_every_tick(engine: Engine, bundle: Bundle) -> None:
    streams = [ablated(bundle, i, max_tokens=500) for i in range(ABLATED_A_TICK)]
    streams += [stream(bundle, max_tokens=500), ablated(bundle, 0, max_tokens=500, seed=99)]
    engine.submit(streams)
    for tick in range(1, 11):
        engine.tick()
        assert {s.position for s in streams} == {16 * tick}
    engine.cancel(streams)
    engine.tick()


# --- background -----------------------------------------------------------------------------------


def test_a_background_stream_gives_way_and_still_goes_on(engine: Engine, bundle: Bundle) -> None:
    expected = alone(engine, stream(bundle, max_tokens=300, seed=5))
    live = stream(bundle, max_tokens=3 * 16 * BACKGROUND_EVERY)
    sweep = [stream(bundle, max_tokens=300, seed=5, background=True)]
    sweep.append(ablated(bundle, 3, max_tokens=300, background=True))
    engine.submit([live, *sweep])
    for tick in range(1, 3 * BACKGROUND_EVERY + 1):
        engine.tick()
        assert live.position == 16 * tick
        assert sum(s.position for s in sweep) == 16 * (tick // BACKGROUND_EVERY)
    assert all(s.position for s in sweep)  # in turn
    finish(engine, [live])
    before = [s.position for s in sweep]
    engine.tick()
    assert [s.position for s in sweep] == [position + 16 for position in before]
    finish(engine, sweep)
    assert collect(sweep[0]) == expected


def test_background_streams_neither_fill_the_queue_nor_take_the_slots(bundle: Bundle) -> None:
    limits = EngineLimits(max_streams=2, max_waiting=2, max_background=3, max_queued_background=5)
    engine = Engine([bundle], limits)
    sweep = [stream(bundle, background=True, seed=i) for i in range(8)]
    engine.submit(sweep[:5])
    with pytest.raises(RequestError, match="max_queued_background") as caught:
        engine.submit(sweep[5:])
    assert caught.value.code == "queue_full"
    engine.tick()
    assert [s.life is Life.RUNNING for s in sweep[:5]] == [True] * 3 + [False] * 2
    engine.submit(sweep[5:])
    live = [stream(bundle, seed=i) for i in range(2)]
    engine.submit(live)
    assert (engine.num_waiting, engine.num_background) == (2, 8)
    engine.tick()
    assert all(s.life is Life.RUNNING for s in live)
    finish(engine, [*live, *sweep])
    assert [collect(s) for s in sweep[:2]] == [collect(s) for s in live]


def test_a_background_stream_takes_no_slot_while_a_live_one_waits(bundle: Bundle) -> None:
    engine = Engine([bundle], EngineLimits(max_streams=1))
    live = [stream(bundle, seed=i) for i in range(3)]
    sweep = stream(bundle, background=True)
    engine.submit([sweep, *live])
    for _ in range(1_000):
        if live[2].life is not Life.WAITING:
            break
        assert sweep.life is Life.WAITING
        engine.tick()
    finish(engine, [*live, sweep])
    assert len(collect(sweep)[0]) == 50


def test_a_background_stream_has_no_limit_of_time(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.engine.engine.LOOK_S", 0.0)
    limits = EngineLimits(queue_timeout_s=0.0, first_timeout_s=0.0, total_timeout_s=0.0)
    engine = Engine([bundle], limits)
    found = stream(bundle, prompt="A" * 500, background=True)
    found.created -= 10_000
    engine.submit([found])
    finish(engine, [found])
    assert found.finish_reason == "length" and len(collect(found)[0]) == 50


def test_draining_cancels_background_streams_and_lets_the_others_finish(bundle: Bundle) -> None:
    engine = Engine([bundle])
    engine.start()
    live = stream(bundle, max_tokens=900)
    sweep = [stream(bundle, max_tokens=900_000, background=True, seed=i) for i in range(12)]
    engine.submit([live, *sweep])
    wait_until_running(sweep[0])
    engine.drain(grace_s=30)
    assert live.finish_reason == "length"
    assert {s.finish_reason for s in sweep} == {"cancelled"}
    assert engine.num_running == engine.num_background == 0


def test_background_streams_of_a_retired_bundle_end_as_they_began(
    engine: Engine, bundle: Bundle
) -> None:
    expected = alone(engine, stream(bundle, max_tokens=100))
    found = stream(bundle, max_tokens=100, background=True)
    engine.submit([found])
    engine.tick()
    engine.retire(bundle)
    finish(engine, [found])
    assert collect(found) == expected
    engine.tick()
    assert not engine._tables and not engine._background


# --- what is kept ---------------------------------------------------------------------------------


def test_ablated_sessions_stay_within_their_bytes_and_a_dropped_one_still_ends_its_stream(
    engine: Engine, bundle: Bundle
) -> None:
    expected = alone(engine, ablated(bundle, 0, max_tokens=200))
    bundle.forget()
    assert len(bundle.sessions) == bundle.sessions.num_bytes == 0
    found = ablated(bundle, 0, max_tokens=200)
    bundle.sessions.max_bytes = bundle.sessions.num_bytes * 7 // 2
    engine.submit([found])
    engine.tick()
    for i in range(1, 20):
        bundle.variant(ablation(bundle, i))
        assert 0 < bundle.sessions.num_bytes <= bundle.sessions.max_bytes
    assert len(bundle.sessions) == 3
    assert bundle.known(ablation(bundle, 0)) is None
    assert bundle.known(ablation(bundle, 19)) is not None
    finish(engine, [found])
    assert collect(found) == expected


def test_what_is_too_large_to_keep_is_made_and_given_all_the_same(bundle: Bundle) -> None:
    bundle.sessions.max_bytes = 0
    one, other = (bundle.variant(ablation(bundle, 1)) for _ in range(2))
    assert one.session is not other.session and one.report == other.report
    assert len(bundle.sessions) == bundle.sessions.num_bytes == 0 and bundle.num_made == 2


def resident_bytes() -> int:
    found: int = psutil.Process().memory_info().rss
    return found


@pytest.mark.slow
def test_a_hundred_ablations_once_more_take_no_more_memory(bundle: Bundle) -> None:
    engine = Engine([bundle], EngineLimits(state_cache_bytes=0))
    bundle.sessions.max_bytes = 10 << 20
    after = []
    for _ in range(2):
        streams = [ablated(bundle, i, max_tokens=5) for i in HUNDRED]
        engine.submit(streams)
        finish(engine, streams)
        del streams
        after.append(resident_bytes())
    assert bundle.num_made == 2 * len(HUNDRED) and 0 < len(bundle.sessions) < 10
    assert after[1] < after[0] + (48 << 20)  # a hundred sessions take twice that


@pytest.mark.slow
def test_a_hundred_ablations_asked_for_at_once_are_all_answered() -> None:
    async def work(host: Models) -> None:
        plain = await write(host, max_tokens=300)
        expected = [await write(host, ablation=edits(i)) for i in HUNDRED]
        host.sessions.forget(lambda key: True)
        made = host.bundles[TANH].num_made
        texts = [write(host, ablation=edits(i)) for i in HUNDRED for _ in range(2)]
        found = await asyncio.gather(*texts, write(host, max_tokens=300))
        assert found == [text for text in expected for _ in range(2)] + [plain]
        kept, num_bytes = len(host.sessions), host.sessions.num_bytes
        assert host.bundles[TANH].num_made - made == len(HUNDRED) >= kept > 50
        value = REGISTRY.get_sample_value
        assert value("torsor_ablation_sessions") == kept
        assert value("torsor_ablation_sessions_bytes") == num_bytes <= host.sessions.max_bytes
        host.unload(TANH)
        assert value("torsor_ablation_sessions") == value("torsor_ablation_sessions_bytes") == 0

    run(work, TANH)


def test_hashes_of_these_ablations_differ(bundle: Bundle) -> None:
    assert len({ablation_hash(ablation(bundle, i)) for i in HUNDRED}) == len(HUNDRED)


def test_the_estimate_grows_with_what_is_edited(bundle: Bundle) -> None:
    sizes = []
    both = next(i for i in HUNDRED if {t for t, _ in ABLATIONS[i]} == {"recurrent", "input"})
    for index in (0, both):
        before = bundle.sessions.num_bytes
        bundle.variant(ablation(bundle, index))
        sizes.append(bundle.sessions.num_bytes - before)
    total = sum(np.asarray(w).nbytes for w in bundle.weights.values())
    assert sizes[1] - sizes[0] >= bundle.weights["input"].nbytes
    assert sizes[0] > 2 * total + bundle.weights["recurrent"].nbytes
