"""Models that come and go while streams run."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_models import OSM, TANH, asked, edited, run, write

from serve.ablation import ops
from serve.engine.engine import Engine
from serve.engine.stream import Life, Stream
from serve.manifest.page import WEIGHTS_FILE
from serve.models import Models
from serve.queries.generate import open_generation
from serve.runtime.bundle import Bundle, load_bundles
from serve.settings import SHIPPED
from serve.wire.errors import RequestError


async def until(true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


def test_a_model_can_be_loaded_and_unloaded_while_others_run() -> None:
    async def work(host: Models) -> None:
        with pytest.raises(RequestError, match="not|expected one of"):
            await write(host, model=TANH)
        expected = await write(host, model=OSM)
        await host.load(SHIPPED / TANH)
        both = await asyncio.gather(write(host, model=OSM), write(host, model=TANH))
        assert both[0] == expected and len(both[1]) == 60
        host.unload(TANH)
        with pytest.raises(RequestError) as error:
            await write(host, model=TANH)
        assert error.value.code == "not_found"
        assert await write(host, model=OSM) == expected
        await until(lambda: len(host.engine._tables) == 1)

    run(work, OSM)


def test_a_running_stream_outlives_its_models_unloading_and_its_states_go() -> None:
    async def work(host: Models) -> None:
        expected = await write(host, max_tokens=3000, prompt="A" * 40)
        assert len(host.engine.cache) == 1
        request = asked({"seed": 1, "max_tokens": 3000, "prompt": "A" * 40})
        writing = await open_generation(host, request)
        pieces = writing.chunks()
        text = (await anext(pieces)).text
        host.unload(OSM)
        assert text + "".join([piece.text async for piece in pieces]) == expected
        await until(lambda: not host.engine._tables)
        assert len(host.engine.cache) == 0
        with pytest.raises(RequestError, match="none is served"):
            await write(host)

    run(work, OSM)


def silence(weights: dict[str, Any]) -> None:
    weights["mixing"][:] = 0


def test_a_reload_takes_the_new_weights_for_new_streams_only(tmp_path: Path) -> None:
    async def work(host: Models) -> None:
        before = await write(host, max_tokens=3000)
        writing = await open_generation(host, asked({"seed": 1, "max_tokens": 3000}))
        pieces = writing.chunks()
        text = (await anext(pieces)).text
        bundle = await host.load(edited(tmp_path / "new", silence))
        assert bundle.name == OSM and list(host.bundles) == [OSM, TANH]
        after = await write(host, max_tokens=3000)
        assert text + "".join([piece.text async for piece in pieces]) == before != after
        assert await host.reload(OSM) is not bundle
        assert await write(host, max_tokens=3000) == after
        await until(lambda: len(host.engine._tables) == 2)

    run(work, OSM, TANH)


def test_a_folder_that_holds_no_bundle_changes_nothing(tmp_path: Path) -> None:
    async def work(host: Models) -> None:
        expected = await write(host)
        broken = edited(tmp_path / "broken", silence)
        (broken / WEIGHTS_FILE).write_bytes(b"nothing")
        for folder in (tmp_path / "none", broken):
            with pytest.raises(RequestError) as error:
                await host.load(folder)
            assert error.value.field == "folder" and error.value.code == "invalid_request"
        assert await write(host) == expected

    run(work, OSM)


def overflow(weights: dict[str, Any]) -> None:
    weights["readout.prototypes"] *= np.float32(1e38)


def test_a_model_that_leaves_the_numbers_again_and_again_turns_readiness_off(
    tmp_path: Path,
) -> None:
    async def work(host: Models) -> None:
        sick = await host.load(edited(tmp_path / "sick", overflow))
        for _ in range(5):
            assert host.readiness().ready
            with pytest.raises(RequestError) as error:
                await write(host)
            assert error.value.code == "model_error" and "ablated, out" in str(error.value)
        assert not host.readiness().ready
        assert isinstance(sick, Bundle)
        await host.load(SHIPPED / OSM)
        assert host.readiness().ready and len(await write(host)) == 60

    run(work, OSM)


def test_a_sick_model_is_not_ready_and_a_healthy_one_beside_it_is(tmp_path: Path) -> None:
    async def work(host: Models) -> None:
        await host.load(edited(tmp_path / "sick", overflow))
        for _ in range(5):
            with pytest.raises(RequestError):
                await write(host)
            assert len(await write(host, model=TANH)) == 60
        found = host.readiness()
        assert found.ready and {m.id: m.ready for m in found.models} == {OSM: False, TANH: True}
        (reason,) = [model.reason for model in found.models if not model.ready]
        assert reason is not None and "not finite" in reason
        host.unload(OSM)
        assert all(model.ready for model in host.readiness().models)

    run(work, OSM, TANH)


def test_an_ablation_that_leaves_the_numbers_does_not() -> None:
    class Sick:
        def __init__(self, session: Any) -> None:
            self.session, self.initial = session, session.initial

        def run(self, feeds: Any) -> Any:
            outputs = self.session.run(feeds)
            return outputs | {"logprob": np.full_like(outputs["logprob"], np.nan)}

    bundle = load_bundles([SHIPPED / TANH], "cpu", 1)[TANH]
    engine, session = Engine([bundle]), Sick(bundle.plain.session)
    for _ in range(7):
        found = Stream(bundle, session, np.zeros(0), max_tokens=5, seed=0)  # type: ignore[arg-type]
        engine.submit([found])
        while found.life is not Life.FINISHED:
            engine.tick()
        assert found.error is not None and found.error.code == "model_error"
    assert engine.health.problem(bundle) is None


def test_streams_of_an_event_loop_that_has_closed_do_not_fail_the_engine() -> None:
    host = Models(load_bundles([SHIPPED / TANH], "cpu", 1))
    host.start()

    async def leave() -> None:
        await open_generation(host, asked({"max_tokens": 3_000}))

    try:
        asyncio.run(leave())
        assert len(asyncio.run(write(host))) == 60 and not host.engine.failed
    finally:
        host.close()


def test_a_warm_host_has_decomposed_what_schur_ablations_ask_for() -> None:
    async def work(host: Models) -> None:
        for again in (False, True):
            ops.forms.forget(lambda key: True)
            if again:
                await host.reload(TANH)
                await asyncio.gather(*host._warming)
            else:
                await host.warm(*host.bundles.values())
            known = ops.forms.num_bytes
            await host.structure(host.bundles[TANH])
            assert ops.forms.num_bytes == known > 0  # nothing was left to decompose

    run(work, TANH)
