"""Sweeps are jobs: equal on all wires, never lost, run once, and nobody's but their owner's."""

import asyncio
import json
import os
import select
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import family

from clients.errors import ServerError
from clients.grpc_client import GrpcClient
from clients.http_client import AsyncHttpClient, HttpClient
from clients.sweep_results import Sweep, SweepPoint, SweepPoints
from serve.gateway.keys import add_key
from serve.settings import SHIPPED
from serve.sweeps.folder import FolderBusy
from serve.sweeps.store import FILE, NewSweep, StoreError, SweepStore
from serve.wire.errors import RequestError
from serve.wire.limits import MAX_SWEEPS
from serve.wire.query_responses import point_json

OSM, TANH = "osm-rnn-shakespeare", "tanh-rnn-shakespeare"
TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n" * 4
NOTHING_THERE = 1e-9  # an alpha at which all eigenvalues are on one side
GRID = {
    "edits": [{"target": "recurrent", "op": "schur", "alpha": "$alpha", "zero": "$zero"}],
    "axes": {"alpha": [0.9, NOTHING_THERE], "zero": [["CC"], ["C→R"]]},
}
OWN = {"name": "no readout", "edits": [{"target": "readout", "op": "zero"}]}
ASKED: dict[str, Any] = {
    "model": TANH,
    "text": TEXT,
    "ablations": [OWN, {"name": "none", "edits": []}],
    "grid": GRID,
}
Start = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[HttpClient]:
    with HttpClient(server.url) as found:
        yield found


@pytest.fixture(scope="module")
def sweep(client: HttpClient) -> tuple[Sweep, SweepPoints]:
    """A sweep that is done, and its points."""
    started = client.sweeps.start(**ASKED)
    assert started.state in ("queued", "running") and started.num_points == 6
    *points, ended = client.sweeps.watch(started.id)
    assert isinstance(ended, Sweep)
    return ended, SweepPoints(p for p in points if isinstance(p, SweepPoint))


def without_times(points: Any) -> list[Any]:
    return [{**point_json(point), "seconds": 0} for point in points]


def test_points_come_in_order_and_then_the_sweep(sweep: Any) -> None:
    ended, points = sweep
    assert [point.index for point in points] == list(range(6))
    assert (ended.state, ended.num_done, ended.num_failed) == ("done", 6, 2)
    assert ended.created <= ended.started <= ended.ended
    assert ended.headline == "bpc" and ended.baseline["num_characters"] == len(TEXT)


def test_a_point_equals_the_score_of_its_ablation(client: HttpClient, sweep: Any) -> None:
    ended, points = sweep
    for point, ablation in ((points[0], OWN), (points[2], points[2].ablation)):
        assert ablation is not None
        asked = {key: ablation[key] for key in ("name", "edits")}
        scored = client.score(TEXT, asked, model=TANH)
        assert scored.ablated is not None
        assert point.scores == {
            "bpc": scored.ablated.bpc,
            "delta_bpc": scored.delta_bpc,
            "mean_kl": scored.mean_kl,
        }
        assert (point.delta, point.ablation) == (scored.delta_bpc, scored.ablation)
        assert scored.ablation is not None
        assert point.mass == scored.ablation["removed"][0]["mass"]
        assert point.per_mass == point.delta / point.mass
        assert ended.baseline["bpc"] == scored.baseline.bpc


def test_nothing_removed_changes_nothing(sweep: Any) -> None:
    none = sweep[1][1]
    assert (none.name, none.mass, none.delta, none.per_mass) == ("none", 0.0, 0.0, None)
    assert none.scores["mean_kl"] == 0.0


def test_an_edit_that_changes_nothing_is_an_error_point(sweep: Any) -> None:
    for point in sweep[1][4:]:
        assert point.error["code"] == "invalid_request" and point.delta is None
        assert point.error["field"] == "ablation.edits[0].zero"
        assert "expected something to remove" in point.error["message"]


def test_all_clients_give_equal_answers(server: Any, client: HttpClient, sweep: Any) -> None:
    ended, points = sweep
    with GrpcClient(server.grpc_address) as grpc:
        assert grpc.sweeps.get(ended.id) == client.sweeps.get(ended.id) == ended
        assert grpc.sweeps.points(ended.id) == client.sweeps.points(ended.id) == points
        assert tuple(grpc.sweeps.watch(ended.id, 4)) == (*points[4:], ended)
        again = grpc.sweeps.start(**ASKED)
        *own, last = grpc.sweeps.watch(again.id)
        assert without_times(own) == without_times(points)
        assert isinstance(last, Sweep) and last.id == again.id
        assert [s.id for s in client.sweeps.list()][:2] == [again.id, ended.id]
        assert grpc.sweeps.list() == client.sweeps.list()


def test_the_asyncio_client_does_the_same(server: Any, sweep: Any) -> None:
    ended, points = sweep

    async def ask() -> None:
        client = AsyncHttpClient(server.url)
        assert await client.sweeps.get(ended.id) == ended
        assert await client.sweeps.points(ended.id) == points
        assert [item async for item in client.sweeps.watch(ended.id, 5)] == [points[5], ended]
        assert ended in await client.sweeps.list()
        own = await client.sweeps.start(model=TANH, text="a", ablations=[OWN])
        assert not (await client.sweeps.cancel(own.id)).model == OSM
        await client.close()

    asyncio.run(ask())


def test_the_files_hold_the_points(server: Any, sweep: Any) -> None:
    ended, points = sweep
    base = f"{server.url}/v1/sweeps/{ended.id}"
    lines = httpx.get(f"{base}/results.jsonl")
    assert lines.headers["content-type"].startswith("application/jsonl")
    pages = [json.loads(line) for line in lines.text.splitlines()]
    assert pages == httpx.get(f"{base}/points").json()["points"]
    assert [page["name"] for page in pages] == [point.name for point in points]
    head, first, *rest = httpx.get(f"{base}/results.csv").text.splitlines()
    assert head.startswith("index,name,hash,mass,bpc,delta_bpc,mean_kl,delta,per_mass,")
    assert first.startswith(f"0,no readout,{points[0].ablation['hash']},") and len(rest) == 5


def test_events_have_ids_from_which_they_go_on(server: Any, sweep: Any) -> None:
    url = f"{server.url}/v1/sweeps/{sweep[0].id}/events"
    events = httpx.get(url, headers={"Last-Event-ID": "3"}).text
    assert [line for line in events.splitlines() if line[:3] == "id:"] == ["id: 4", "id: 5"]
    assert events.endswith("data: [DONE]\n\n")
    assert httpx.get(f"{url}?start=6").text.count("data: ") == 2  # the sweep, and the end


def test_points_are_read_in_pages(server: Any, sweep: Any) -> None:
    url = f"{server.url}/v1/sweeps/{sweep[0].id}/points"
    page = httpx.get(f"{url}?start=1&limit=2").json()
    assert [point["index"] for point in page["points"]] == [1, 2] and page["next"] == 3
    assert httpx.get(f"{url}?start=6").json() == {"points": [], "next": 6}
    for query, field in (("start=-1", "start"), ("limit=0", "limit"), ("limit=x", "limit")):
        answer = httpx.get(f"{url}?{query}")
        assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_controls_remove_as_much_at_random(client: HttpClient) -> None:
    edit = {"target": "recurrent", "op": "schur", "zero": ["C→R"]}
    asked = {"model": TANH, "text": TEXT, "controls": 3, "seed": 5}
    started = client.sweeps.start(**asked, ablations=[{"edits": [edit]}])  # type: ignore[arg-type]
    point, _ = client.sweeps.watch(started.id)
    assert isinstance(point, SweepPoint) and [c.seed for c in point.controls] == [5, 6, 7]
    for control in point.controls:
        random = {"op": "random", "like": edit, "seed": control.seed}
        scored = client.score(TEXT, {"edits": [random]}, model=TANH)
        assert (control.delta, control.error) == (scored.delta_bpc, None)
        assert control.mass == pytest.approx(point.mass, rel=1e-6)
    deltas = [control.delta or 0.0 for control in point.controls]
    assert point.controls_mean == pytest.approx(sum(deltas) / 3) and point.controls_deviation


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"text": None}, "text"),
        ({"query": "trials"}, "text"),
        ({"query": "trials", "text": None}, "model"),
        ({"model": "none"}, "model"),
        ({"ablations": [], "grid": None}, "ablations"),
        ({"text": "é"}, "text"),
        ({"text": "a" * 100_001}, "text"),
        ({"grid": {**GRID, "axes": {"alpha": [0.9]}}}, "grid.edits[0]"),
        ({"controls": 33}, "controls"),
        (
            {"ablations": [{"edits": [{"target": "x", "op": "zero"}]}]},
            "ablations[0].edits[0].target",
        ),
        ({"else": 1}, "else"),
    ],
)
def test_a_wrong_request_is_refused_as_a_whole(
    server: Any, client: HttpClient, asked: Any, field: str
) -> None:
    before = client.sweeps.list()
    for path in ("/v1/sweeps", "/v1/ablations/sweep"):
        answer = httpx.post(server.url + path, json=ASKED | asked)
        assert answer.json()["error"]["param"] == field, answer.text
        assert answer.status_code in (400, 404) and client.sweeps.list() == before


def test_clients_refuse_what_the_server_would(server: Any, client: HttpClient) -> None:
    with GrpcClient(server.grpc_address) as grpc:
        for asking in (client, grpc):
            with pytest.raises(ServerError, match="text: found none"):
                asking.sweeps.start(ablations=[OWN])
            with pytest.raises(TypeError, match="found option 'txt'"):
                asking.sweeps.start(txt="a")  # type: ignore[call-arg]
            for ask in (asking.sweeps.get, asking.sweeps.cancel, asking.sweeps.points):
                with pytest.raises(ServerError, match="id: found no sweep 'x'") as error:
                    ask("x")
                assert error.value.code == "not_found"
            with pytest.raises(ServerError, match="id: found no sweep"):
                next(asking.sweeps.watch("x"))


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_a_sweep_is_cancelled_and_then_forgotten(server: Any, wire: str) -> None:
    made: Any = HttpClient(server.url) if wire == "http" else GrpcClient(server.grpc_address)
    with made as asking:
        ablations = [{"name": str(i), **OWN} for i in range(200)]
        long = asking.sweeps.start(model=TANH, text=TEXT * 40, ablations=ablations)
        waiting = asking.sweeps.start(model=TANH, text=TEXT, ablations=[OWN])
        with closing(asking.sweeps.watch(long.id)) as items:
            first = next(items)
        assert first.index == 0
        assert asking.sweeps.get(waiting.id).state == "queued"
        cancelled = asking.sweeps.cancel(long.id)
        assert (cancelled.state, cancelled.deleted) == ("cancelled", False)
        assert first in asking.sweeps.points(long.id)
        *_, last = asking.sweeps.watch(waiting.id)  # the next one runs
        assert (last.state, last.num_done) == ("done", 1)
        assert len(asking.sweeps.points(long.id)) == asking.sweeps.get(long.id).num_done < 200
        assert asking.sweeps.cancel(long.id).deleted
        with pytest.raises(ServerError, match="found no sweep"):
            asking.sweeps.get(long.id)


def test_who_watches_and_goes_away_harms_nothing(server: Any, client: HttpClient) -> None:
    started = client.sweeps.start(model=TANH, text=TEXT, ablations=[OWN] * 20)
    for _ in range(5):
        with closing(client.sweeps.watch(started.id)) as items:
            next(items)
    *points, ended = client.sweeps.watch(started.id)
    assert len(points) == 20 and isinstance(ended, Sweep) and ended.state == "done"


def test_only_so_many_sweeps_wait_and_a_stopped_server_leaves_them(
    start_server: Start, tmp_path: Path
) -> None:
    folder = ("--data-folder", str(tmp_path / "data"))
    long: Any = {"text": TEXT * 40, "ablations": [OWN] * 200}
    with start_server(tmp_path, str(SHIPPED / TANH), *folder) as server:
        with HttpClient(server.url) as client:
            first, *others = [client.sweeps.start(**long) for _ in range(MAX_SWEEPS)]
            answer = httpx.post(server.url + "/v1/sweeps", json=long)
            assert answer.status_code == 429 and int(answer.headers["Retry-After"]) >= 1
            assert "(max_sweeps)" in answer.json()["error"]["message"]
            client.sweeps.cancel(others[-1].id)
            assert client.sweeps.start(**long).state == "queued"
            items = client.sweeps.watch(first.id)
            next(items)
            metrics = httpx.get(server.url + "/metrics").text
            assert f'torsor_sweeps{{state="queued"}} {MAX_SWEEPS - 1}.0' in metrics
            assert 'torsor_sweeps{state="running"} 1.0' in metrics
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(ServerError, match="the next one on .* goes on") as error:
                list(items)
            assert error.value.code == "unavailable"
        assert server.process.wait(60) == 0
    store = SweepStore(tmp_path / "data")
    found = store.get(first.id)
    assert found is not None and found[0].state == "running" and found[0].num_done > 0
    store.close()


def test_a_server_goes_on_where_a_killed_one_was(start_server: Start, tmp_path: Path) -> None:
    folder = ("--data-folder", str(tmp_path / "data"))
    ablations = [{"name": str(i), **OWN} for i in range(60)]
    with start_server(tmp_path, str(SHIPPED / TANH), *folder) as server:
        with HttpClient(server.url) as client:
            started = client.sweeps.start(text=TEXT * 10, ablations=ablations)
            second = client.sweeps.start(text=TEXT, ablations=[OWN])
            with closing(client.sweeps.watch(started.id)) as items:
                seen = [next(items) for _ in range(5)]
        kill_all(server)
    leave_foreign_sweeps(tmp_path / "data")
    with (
        start_server(tmp_path, str(SHIPPED / TANH), *folder) as server,
        HttpClient(server.url) as client,
    ):
        *points, ended = client.sweeps.watch(started.id)
        assert points[:5] == seen  # with their times: they were not run again
        assert [point.index for point in points if isinstance(point, SweepPoint)] == [*range(60)]
        assert isinstance(ended, Sweep) and (ended.state, ended.num_done) == ("done", 60)
        *_, last = client.sweeps.watch(second.id)
        assert isinstance(last, Sweep) and last.state == "done"
        for id, words in (("0", "has other weights"), ("1", "is not served any more")):
            point, ended = client.sweeps.watch(id)
            assert isinstance(ended, Sweep) and ended.state == "failed"
            assert ended.error is not None and words in ended.error["message"]
            assert isinstance(point, SweepPoint) and point.name == "a"


def leave_foreign_sweeps(folder: Path) -> None:
    """Sweeps of other weights and of a model that isn't there, each with a point."""
    store = SweepStore(folder)
    for number, (model, identity) in enumerate([(TANH, "other-weights"), ("gone", "x")]):
        request = {"text": TEXT, "ablations": [OWN, OWN]}
        fields: Any = {"query": "score", "owner": None, "request": request}
        new = {"model": model, "identity": identity, "ablations": [OWN, OWN], **fields}
        store.add(NewSweep(id=str(number), **new))
        store.begin(str(number))
        store.save(str(number), 0, {"index": 0, "name": "a", "error": None, "seconds": 1.0})
    store.close()


def test_a_second_server_leaves_the_folder_alone(start_server: Start, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    folder = ("--data-folder", str(tmp_path / "data"))
    with start_server(tmp_path / "two", str(SHIPPED / TANH), *folder) as second:
        with start_server(tmp_path / "one", str(SHIPPED / TANH), *folder) as first:
            with HttpClient(first.url) as client:
                started = client.sweeps.start(text=TEXT, ablations=[OWN] * 3)
            with HttpClient(second.url) as client:
                for ask in (client.sweeps.list, lambda: client.sweeps.get(started.id)):
                    with pytest.raises(ServerError, match="is used by another server") as error:
                        ask()
                    assert error.value.code == "unavailable" and "--data-folder" in str(error.value)
                assert client.complete("A", max_tokens=3).text  # it serves all else
            first.stop()
        with HttpClient(second.url) as client:  # the folder is free now
            *points, ended = client.sweeps.watch(started.id)
            assert len(points) == 3 and isinstance(ended, Sweep) and ended.state == "done"


def test_with_keys_a_sweep_is_its_owners(start_server: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    keys = {name: add_key(file, name, manage=name == "boss") for name in ("boss", "ann", "bob")}
    arguments = (str(SHIPPED / TANH), "--keys", str(file))
    with start_server(tmp_path, *arguments) as server:
        ann, bob, boss = (HttpClient(server.url, api_key=keys[n]) for n in ("ann", "bob", "boss"))
        started = ann.sweeps.start(text=TEXT, ablations=[OWN])
        assert [s.id for s in ann.sweeps.list()] == [s.id for s in boss.sweeps.list()]
        assert ann.sweeps.get(started.id).id == boss.sweeps.get(started.id).id == started.id
        assert bob.sweeps.list() == ()
        with GrpcClient(server.grpc_address, api_key=keys["bob"]) as grpc:
            asks: list[Callable[[], Any]] = [
                *(lambda c=c: c.sweeps.get(started.id) for c in (bob, grpc)),
                *(lambda c=c: c.sweeps.cancel(started.id) for c in (bob, grpc)),
                *(lambda c=c: list(c.sweeps.watch(started.id)) for c in (bob, grpc)),
                lambda: bob.sweeps.points(started.id),
            ]
            for ask in asks:
                with pytest.raises(ServerError, match="found no sweep"):
                    ask()
        assert boss.sweeps.cancel(started.id).id == started.id
        for client in (ann, bob, boss):
            client.close()


def test_trials_are_swept(
    start_server: Start, exported_task: Callable[[str, str], Path], tmp_path: Path
) -> None:
    bundle = exported_task("tanh-rnn", "flip-flop") / "bundle"
    ablations = [
        {"name": op, "edits": [{"target": "recurrent", "op": op}]} for op in ("zero", "identity")
    ]
    with start_server(tmp_path, str(bundle)) as server:
        with HttpClient(server.url) as client, GrpcClient(server.grpc_address) as grpc:
            started = client.sweeps.start(query="trials", ablations=ablations, controls=2)
            *points, ended = client.sweeps.watch(started.id)
            assert (*points, ended) == (*grpc.sweeps.points(started.id), ended)
            with pytest.raises(ServerError, match="expected a model of text"):
                client.sweeps.start(text=TEXT, ablations=ablations)
        for point, ablation in zip(points, ablations, strict=True):
            body: Any = {"ablation": ablation}
            page = httpx.post(server.url + "/v1/ablations/trials", json=body, timeout=60).json()
            assert isinstance(point, SweepPoint) and isinstance(ended, Sweep)
            assert {k: point.scores[k] for k in page["ablated"]} == page["ablated"]
            assert {k: point.scores[k] for k in page["delta"]} == page["delta"]
            assert point.scores["s_delta_t"] == page["s_delta_t"]
            assert point.mass == page["mass"]
            assert point.delta == page["delta"][f"delta_{ended.headline}"]
            assert [control.error for control in point.controls] == [None, None]


def test_the_store_refuses_what_is_not_its_own(tmp_path: Path) -> None:
    store = SweepStore(tmp_path)
    with pytest.raises(FolderBusy, match="used by another server"):
        SweepStore(tmp_path)
    store.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="found version 99 of the tables, expected 1"):
        SweepStore(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / FILE).write_text("no database, but long enough to be looked at" * 99)
    with pytest.raises(StoreError, match="can't be used as a store of sweeps"):
        SweepStore(tmp_path / "other")


def test_the_store_keeps_the_newest_ended_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.sweeps.store.MAX_ENDED", 3)
    store = SweepStore(tmp_path)
    fields: Any = {"model": "m", "query": "score", "identity": "i", "owner": None, "request": {}}
    for number in range(6):
        store.add(NewSweep(id=str(number), ablations=[OWN], **fields))
        assert store.end(str(number), "cancelled") and not store.end(str(number), "done")
    assert [sweep.id for sweep, _ in store.every()] == ["5", "4", "3"]
    for number in range(MAX_SWEEPS):
        store.add(NewSweep(id=f"new {number}", ablations=[OWN], **fields))
    with pytest.raises(RequestError, match="max_sweeps"):
        store.add(NewSweep(id="too many", ablations=[OWN], **fields))
    store.close()


def test_points_are_saved_once_and_shown_in_order(tmp_path: Path) -> None:
    store = SweepStore(tmp_path)
    fields: Any = {"model": "m", "query": "score", "identity": "i", "owner": None, "request": {}}
    store.add(NewSweep(id="a", ablations=[OWN] * 3, **fields))
    store.begin("a")
    for index in (2, 0, 0):
        store.save("a", index, {"index": index, "error": None, "time": time.monotonic()})
    found = store.get("a")
    assert found is not None and found[0].num_done == 2
    assert [position for position, _ in store.points("a", 0, 10)] == [0]  # 1 isn't done
    job = store.next()
    assert job is not None and [position for position, _ in job.todo] == [1]
    store.end("a", "cancelled")
    assert [position for position, _ in store.points("a", 0, 10)] == [0, 2]
    store.save("a", 1, {"index": 1, "error": None})  # too late
    assert len(store.points("a", 0, 10)) == 2
    store.close()


def test_a_named_folder_must_be_writable(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from serve.__main__ import main

    (tmp_path / "file").touch()
    assert main(["--data-folder", str(tmp_path / "file" / "data")]) == 1
    assert "torsor serve: data_folder: found" in capfd.readouterr().err


def kill_all(server: Any) -> None:
    """Kill the server, its supervisor and its workers, as a crash of the machine would.

    A process closes its files while it dies, and only its parent could wait for it: a pidfd tells
    when its last thread has gone.
    """
    workers = [os.pidfd_open(pid) for pid in family(server.process.pid)[1:]]
    assert workers
    server.process.kill()
    for worker in workers:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker, signal.SIGKILL)
    for worker in workers:
        assert select.select([worker], [], [], 30)[0], "a killed worker goes on"
        os.close(worker)
    server.process.wait(10)
