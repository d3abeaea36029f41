"""The engine on the bundles that ship, driven tick by tick and by its own thread."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_streams import NAMES, PROMPT, alone, collect, finish, stream, wait_until_running
from numpy.typing import NDArray

from serve.engine.engine import Engine
from serve.engine.limits import EngineLimits
from serve.engine.prefix_cache import PrefixCache
from serve.engine.runner import BatchRunner
from serve.engine.sampling import SamplingSettings
from serve.engine.stream import Life, Stream
from serve.runtime.bundle import Bundle, load_bundles
from serve.runtime.device import Device
from serve.runtime.session import Session
from serve.runtime.vocabulary import Vocabulary
from serve.settings import SHIPPED
from serve.wire.errors import RequestError


@pytest.fixture(scope="module")
def bundles(for_device: Callable[[Path], Path], device: Device) -> dict[str, Bundle]:
    folders = [for_device(SHIPPED / name) for name in NAMES]
    return load_bundles(folders, device.kind, device.num_threads)


@pytest.fixture(params=NAMES)
def bundle(request: pytest.FixtureRequest, bundles: dict[str, Bundle]) -> Bundle:
    found: Bundle = bundles[request.param]
    return found


@pytest.fixture
def engine(bundles: dict[str, Bundle]) -> Engine:
    """An engine whose ticks the test calls itself."""
    return Engine(bundles.values(), EngineLimits(max_streams=40, max_waiting=50))


@pytest.fixture
def running(bundles: dict[str, Bundle]) -> Iterator[Engine]:
    """An engine with its thread."""
    engine = Engine(bundles.values())
    engine.start()
    yield engine
    engine.stop()


def test_a_stream_writes_as_many_characters_as_it_was_asked_for(
    engine: Engine, bundle: Bundle
) -> None:
    characters, logprobs = alone(engine, stream(bundle, max_tokens=37))
    assert len(characters) == len(logprobs) == 37
    assert all(p <= 0 for p in logprobs)


def test_the_same_seed_gives_the_same_bits_alone_and_among_31_others(
    engine: Engine, bundle: Bundle
) -> None:
    expected = alone(engine, stream(bundle))
    rng, found = np.random.default_rng(0), stream(bundle)
    others = [
        stream(
            bundle,
            prompt=PROMPT[: int(rng.integers(0, 30))],
            max_tokens=int(rng.integers(1, 120)),
            seed=int(rng.integers(0, 1000)),
            settings=SamplingSettings(temperature=float(rng.random()), top_k=i % 5, top_p=0.9),
        )
        for i in range(31)
    ]
    engine.submit(others[:20])
    engine.tick()
    engine.submit([found, *others[20:]])
    engine.tick()
    engine.cancel(others[::3])
    finish(engine, [found, *others])
    assert collect(found) == expected


def test_another_seed_gives_another_text(engine: Engine, bundle: Bundle) -> None:
    assert alone(engine, stream(bundle, seed=1)) != alone(engine, stream(bundle, seed=2))


def test_the_prompt_is_scored_the_same_whether_it_was_given_or_written(
    engine: Engine, bundle: Bundle
) -> None:
    """What a stream wrote, forced on a fresh stream, has the same log-probabilities bit for bit."""
    characters, logprobs = alone(engine, stream(bundle, prompt="", max_tokens=150))
    text = Vocabulary(bundle.manifest.vocabulary).decode(characters)
    replay = stream(bundle, prompt=text, max_tokens=0, deliver_forced=True)
    assert alone(engine, replay) == (characters, logprobs)


def test_an_empty_prompt_and_no_characters_end_at_once(engine: Engine, bundle: Bundle) -> None:
    found = stream(bundle, prompt="", max_tokens=0)
    assert alone(engine, found) == ([], [])
    assert found.finish_reason == "length"


def test_a_long_prompt_does_not_starve_a_short_request(engine: Engine, bundle: Bundle) -> None:
    long, short = stream(bundle, prompt=PROMPT * 200), stream(bundle, prompt="A", max_tokens=1)
    engine.submit([long])
    engine.tick()
    engine.submit([short])
    engine.tick()
    assert short.life is Life.FINISHED
    assert long.life is Life.RUNNING and long.position < 100
    engine.cancel([long])
    finish(engine, [long])


@pytest.mark.parametrize("ticks", [0, 1, 3], ids=["queued", "prefilling", "decoding"])
def test_a_cancelled_stream_frees_its_slot_within_one_tick(
    engine: Engine, bundle: Bundle, ticks: int
) -> None:
    found = stream(bundle, max_tokens=10_000)
    engine.submit([found])
    for _ in range(ticks):
        engine.tick()
    slot = found.slot
    engine.cancel([found])
    engine.tick()
    assert found.life is Life.FINISHED and found.finish_reason == "cancelled"
    assert engine.num_running == engine.num_waiting == 0
    if slot >= 0:
        rows = engine._tables[bundle].slots.rows(slot)
        assert not any(value.any() for value in rows.values())


def test_a_state_that_is_not_finite_ends_its_own_stream_only(
    engine: Engine, bundle: Bundle
) -> None:
    expected = alone(engine, stream(bundle))
    sick, well = stream(bundle, max_tokens=500), stream(bundle)
    engine.submit([sick, well])
    engine.tick()
    for table in engine._tables[bundle].slots._tables.values():
        table[sick.slot] = np.nan
    finish(engine, [sick, well])
    assert sick.error is not None and sick.error.code == "model_error"
    assert collect(well) == expected
    assert alone(engine, stream(bundle)) == expected  # in the slot that the sick one had


class FailsAt:
    """A session whose values are no numbers from a character on, as a run of any length sees it."""

    def __init__(self, bundle: Bundle, position: int) -> None:
        self.initial, self._session, self._position = bundle.initial, bundle.plain.session, position

    def run(self, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        outputs = self._session.run(feeds)
        ends = feeds["position"] + feeds["num_steps"]  # (B)
        steps = np.arange(len(outputs["logprob"]))[:, None] + feeds["position"]  # (K, B)
        outputs["logprob"] = np.where(steps >= self._position, np.nan, outputs["logprob"])
        for name in self.initial:
            outputs[f"next.{name}"][ends > self._position] = np.nan
        return outputs


@pytest.mark.parametrize("position", [0, 40, 47, 48, 60])
def test_a_stream_that_leaves_the_numbers_writes_what_came_before(
    engine: Engine, bundle: Bundle, position: int
) -> None:
    characters, logprobs = alone(engine, stream(bundle))
    found = stream(bundle, session=FailsAt(bundle, position))
    known = max(0, position - len(PROMPT))
    assert alone(engine, found) == (characters[:known], logprobs[:known])
    assert found.error is not None and found.error.code == "model_error"


@pytest.mark.parametrize("saves", [False, True])
def test_a_stop_before_the_numbers_end_is_a_stop(
    engine: Engine, bundle: Bundle, saves: bool
) -> None:
    characters, _ = alone(engine, stream(bundle))
    stops = (tuple(characters[9:12]),)
    length = len(alone(engine, stream(bundle, stops=stops))[0])
    session = FailsAt(bundle, len(PROMPT) + length + 3)
    found = stream(bundle, session=session, stops=stops, saves=saves)
    written, _ = alone(engine, found)
    if saves:  # its state would be one of the run
        assert found.error is not None and found.saved is None
    else:
        assert found.finish_reason == "stop" and written == characters[:length]


def test_a_run_that_fails_ends_its_own_group_only(
    engine: Engine, bundles: dict[str, Bundle], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        initial: dict[str, NDArray[Any]] = {}

        def run(self, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            raise RuntimeError("no memory for /home/me/model.onnx")

    bundle = bundles[NAMES[0]]
    broken, well = stream(bundle, session=Broken()), stream(bundle)
    engine.submit([broken, well])
    finish(engine, [broken, well])
    assert broken.error is not None
    assert broken.error.message == "the run failed; the server's log says why"
    assert "no memory for /home/me/model.onnx" in caplog.text
    assert well.error is None and len(collect(well)[0]) == 50


def test_a_stream_starts_from_the_initial_state_of_its_session(bundle: Bundle) -> None:
    state = bundle.states[0]
    edited = {state.initial: np.full(state.shape, 0.25, np.float32)}
    session = Session(bundle.files, bundle.manifest, bundle.device, edited, initial=bundle.initial)
    moved, plain = stream(bundle, session=session), stream(bundle)
    table = BatchRunner(bundle, 2, PrefixCache(0))
    for one in (moved, plain):
        table.enter(one)
    for name, value in (plain.session.initial | session.initial).items():
        np.testing.assert_array_equal(table.slots.rows(moved.slot)[name], value)
    np.testing.assert_array_equal(
        table.slots.rows(plain.slot)[state.name], bundle.initial[state.name]
    )


def test_prompts_that_are_held_are_bounded_together(bundle: Bundle) -> None:
    engine = Engine([bundle], EngineLimits(max_streams=1, max_held_characters=100))
    long = "a" * 40
    first, second = stream(bundle, long), stream(bundle, long)
    engine.submit([first, second])
    engine.tick()  # one runs, one waits
    with pytest.raises(RequestError, match="found 80 characters .* and 40 more.*held_characters"):
        engine.submit([stream(bundle, long)])
    shared = Vocabulary(bundle.manifest.vocabulary).encode("a" * 20, "prompt", "error")
    plain = bundle.plain.session
    choices = [Stream(bundle, plain, shared, max_tokens=1, seed=i) for i in range(9)]
    engine.submit(choices)  # one prompt
    finish(engine, [first, second, *choices])
    engine.submit([stream(bundle, long)])


def test_a_full_queue_refuses_all_of_a_request_and_takes_others_later(
    engine: Engine, bundle: Bundle
) -> None:
    engine.submit([stream(bundle, max_tokens=1) for _ in range(49)])
    with pytest.raises(RequestError) as caught:
        engine.submit([stream(bundle), stream(bundle)])
    assert caught.value.code == "queue_full" and engine.num_waiting == 49
    while engine.tick():
        pass
    engine.submit([stream(bundle)])


def test_more_streams_than_slots_all_end(engine: Engine, bundle: Bundle) -> None:
    streams = [stream(bundle, max_tokens=20, seed=seed) for seed in range(50)]
    engine.submit(streams)
    engine.tick()
    assert engine.num_running == 40 and engine.num_waiting == 10
    finish(engine, streams)
    assert all(len(collect(found)[0]) == 20 for found in streams)


def test_a_stream_that_waits_too_long_ends_with_the_limits_name(
    bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.engine.engine.LOOK_S", 0.0)
    bundle = bundles[NAMES[1]]
    engine = Engine(bundles.values(), EngineLimits(max_streams=1, queue_timeout_s=0.0))
    first, second = stream(bundle, max_tokens=10_000), stream(bundle)
    engine.submit([first])
    first.created += 60  # not yet overdue
    engine.tick()
    engine.submit([second])
    engine.tick()
    assert second.error is not None and "queue_timeout_s" in second.error.message
    assert first.life is Life.RUNNING


def test_a_stream_that_runs_too_long_ends_with_the_limits_name(
    bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.engine.engine.LOOK_S", 0.0)
    bundle = bundles[NAMES[1]]
    engine = Engine(bundles.values(), EngineLimits(total_timeout_s=5.0))
    found = stream(bundle, max_tokens=10_000)
    engine.submit([found])
    engine.tick()
    found.created -= 10
    engine.tick()
    assert found.error is not None and "total_timeout_s" in found.error.message


def test_a_stream_whose_client_does_not_read_rests_until_it_does(
    engine: Engine, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(engine, stream(bundle, max_tokens=300))
    monkeypatch.setattr("serve.engine.engine.MAX_UNREAD", 64)
    slow, characters, logprobs = stream(bundle, max_tokens=300), list[int](), list[float]()
    engine.submit([slow])
    finished = False
    while not finished:
        while engine.tick():
            assert slow.num_unread < 64 + 16
        arrived, finished = slow.collect()
        assert arrived
        characters += [c for delivery in arrived for c in delivery.characters]
        logprobs += [p for delivery in arrived for p in delivery.logprobs]
    assert (characters, logprobs) == expected


def test_a_stream_that_nobody_reads_ends_with_the_limits_name(
    bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.engine.engine.LOOK_S", 0.0)
    monkeypatch.setattr("serve.engine.engine.MAX_UNREAD", 64)
    engine = Engine(bundles.values(), EngineLimits(unread_timeout_s=5.0))
    found = stream(bundles[NAMES[1]], max_tokens=300)
    engine.submit([found])
    while engine.tick():
        pass
    assert found.life is Life.RUNNING and found.resting_since
    found.resting_since -= 10
    engine.tick()
    assert found.error is not None and "unread_timeout_s" in found.error.message
    assert engine.num_running == 0


def test_an_engine_that_fails_ends_its_streams_and_says_so(
    running: Engine, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> bool:
        raise RuntimeError("a mistake of ours")

    found = stream(bundle, max_tokens=900)
    monkeypatch.setattr(running, "tick", fail)
    running.submit([found])
    deadline = time.monotonic() + 10
    while running.alive:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert running.failed and found.error is not None
    with pytest.raises(RequestError, match="failed"):
        running.submit([stream(bundle)])


def test_a_stop_string_ends_the_text_before_itself_and_is_named(
    engine: Engine, bundle: Bundle
) -> None:
    characters, logprobs = alone(engine, stream(bundle, max_tokens=200))
    stop = tuple(characters[90:93])
    end = next(i for i in range(200) if tuple(characters[i : i + 3]) == stop)
    found = stream(bundle, max_tokens=200, stops=[(64, 64, 64, 64), stop])
    assert alone(engine, found) == (characters[:end], logprobs[:end])
    assert found.finish_reason == "stop" and found.stop_index == 1
    assert found.num_written == end + 3


def test_a_stop_string_that_never_comes_takes_nothing_away(engine: Engine, bundle: Bundle) -> None:
    expected = alone(engine, stream(bundle, max_tokens=60))
    last = expected[0][-1]
    assert (
        alone(engine, stream(bundle, max_tokens=60, stops=[(last, last, last, last)])) == expected
    )


def test_an_echo_delivers_the_prompt_first(engine: Engine, bundle: Bundle) -> None:
    forced = Vocabulary(bundle.manifest.vocabulary).encode(PROMPT, "prompt", "error").tolist()
    plain, _ = alone(engine, stream(bundle))
    echoed, _ = alone(engine, stream(bundle, deliver_forced=True, stops=[tuple(forced[:3])]))
    assert echoed[: len(forced)] == forced  # a stop string in the prompt doesn't count
    assert echoed[len(forced) :][:20] == plain[:20]


def test_logits_arrive_with_their_characters(engine: Engine, bundle: Bundle) -> None:
    found = stream(bundle, max_tokens=40, deliver_logits=True, stops=[(0, 0, 0, 0, 0)])
    engine.submit([found])
    finish(engine, [found])
    for delivery in found.collect()[0]:
        assert delivery.logits is not None
        logits = delivery.logits.astype(np.float64)
        normalizer = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1))
        scores = logits - logits.max(-1, keepdims=True) - normalizer[:, None]
        taken = scores[np.arange(len(delivery.characters)), delivery.characters]
        np.testing.assert_allclose(taken, delivery.logprobs, atol=1e-5)


def test_the_thread_serves_and_drains(running: Engine, bundle: Bundle) -> None:
    found = stream(bundle, max_tokens=900)
    running.submit([found])
    wait_until_running(found)
    running.drain(grace_s=30)
    assert found.finish_reason == "length" and not running.alive
    with pytest.raises(RequestError) as caught:
        running.submit([stream(bundle)])
    assert caught.value.code == "unavailable"


def test_what_outlives_the_grace_ends_with_an_error(running: Engine, bundle: Bundle) -> None:
    found = stream(bundle, max_tokens=1_000_000)
    running.submit([found])
    wait_until_running(found)
    running.drain(grace_s=0.05)
    assert found.error is not None and found.error.code == "unavailable"
    assert not running.accepting and not running.alive
