"""The query `trials`: its numbers, what may be brought to it, and that all wires answer alike."""

import asyncio
import base64
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from trial_scores import run_trials, score_trials

from clients.command_line.main import main
from clients.errors import ServerError
from clients.grpc_client import GrpcClient
from clients.http_client import AsyncHttpClient, HttpClient
from clients.query_results import TrialsResult
from serve.manifest.page import TaskSpec
from serve.models import Models
from serve.queries import intervals as bootstrap
from serve.queries.intervals import contrast, resample_counts, scores
from serve.queries.trials import answer_trials, measure, task_of
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.runtime.trials import Trials
from serve.settings import SHIPPED
from serve.wire.codec import from_json, to_json
from serve.wire.errors import RequestError
from serve.wire.limits import MAX_QUEUED_TRIALS, MAX_TRIAL_BYTES
from serve.wire.queries import TrialsRequest, UploadedTrials
from train.settings import Settings
from train.tasks.task import make_task
from train.tasks.trial_task import TrialTask

Array = NDArray[Any]
CPU = Device("cpu", 1)
TEXT = "tanh-rnn-shakespeare"
PAIRS = [("osm-rnn", "copy"), ("tanh-rnn", "list-ops"), ("sparse-xor", "sparse-xor")]
MODELS = [f"small-{task}" for _, task in PAIRS]
ABLATIONS: dict[str, dict[str, Any]] = {
    "small-copy": {"edits": [{"target": "mixing", "op": "identity"}]},
    "small-list-ops": {"edits": [{"target": "recurrent", "op": "zero"}]},
    "small-sparse-xor": {"edits": [{"target": "heads.0", "op": "zero"}]},
}
EMPTY: dict[str, Any] = {"name": "nothing", "edits": []}


@pytest.fixture(scope="module")
def folders(exported_task: Callable[[str, str], Path]) -> list[Path]:
    return [exported_task(*pair) / "bundle" for pair in PAIRS]


@pytest.fixture(scope="module")
def host(folders: list[Path]) -> Iterator[Models]:
    bundles = [Bundle(folder, CPU) for folder in [*folders, SHIPPED / TEXT]]
    found = Models({bundle.name: bundle for bundle in bundles})
    found.start()
    yield found
    found.close()


@pytest.fixture(scope="module")
def server(
    folders: list[Path], start_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("trials")
    with start_server(folder, *map(str, [*folders, SHIPPED / TEXT])) as found:
        yield found


def ask(host: Models, content: bytes | None = None, **fields: Any) -> dict[str, Any]:
    request = TrialsRequest.model_validate(fields)
    answer: dict[str, Any] = to_json(asyncio.run(answer_trials(host, request, content)))
    return answer


def part_of(bundle: Bundle, num_trials: int) -> Trials:
    return Trials(*(np.ascontiguousarray(array[:, :num_trials]) for array in bundle.trials))


def as_json(trials: Trials) -> dict[str, Any]:
    return {name: array.tolist() for name, array in trials._asdict().items()}


def outputs_of(bundle: Bundle, trials: Trials) -> Array:
    return run_trials(bundle.plain.session.run, bundle.manifest, bundle.initial, trials.inputs)


def measured(host: Models, bundle: Bundle, trials: Trials) -> bootstrap.Measured:
    return asyncio.run(measure(host, bundle, bundle.plain.session, trials))


# Numbers


@pytest.mark.parametrize("model", MODELS)
def test_scores_are_those_that_training_measured(host: Models, model: str) -> None:
    page, training = ask(host, model=model), host.bundle(model).manifest.training
    expected = {name: training[f"test_{name}"] for name in page["baseline"]}
    assert page["baseline"] == pytest.approx(expected, rel=1e-5)
    assert task_of(host.bundle(model)).headline in expected
    assert page["ablated"] is page["delta"] is page["s_delta_t"] is page["ablation"] is None


@pytest.mark.parametrize("model", MODELS)
def test_the_ablated_scores_are_those_of_the_task_in_torch(host: Models, model: str) -> None:
    bundle, ablation = host.bundle(model), ABLATIONS[model]
    page, spec = ask(host, model=model, ablation=ablation), task_of(bundle)
    variant = asyncio.run(host.variant(bundle, ablation))
    trials, manifest = bundle.trials, bundle.manifest
    outputs = run_trials(variant.session.run, manifest, bundle.initial, trials.inputs)
    tensors, answers = [torch.from_numpy(array) for array in trials], torch.from_numpy(outputs)
    if spec.pooled:
        kept = tensors[2].unsqueeze(-1)
        answers = (answers * kept).sum(0, keepdim=True) / kept.sum(0, keepdim=True)
    task = make_task(Settings(task=spec.name), spec.options)
    assert isinstance(task, TrialTask)
    expected = task.score(answers, type(task.held_out("test"))(*tensors))
    found = {name: page["ablated"][name] for name in page["ablated"]}
    assert found == pytest.approx({name: expected[name] for name in found}, rel=1e-5)
    mass = page["ablation"]["removed"][0]["mass"]
    for name, value in found.items():
        delta = value - page["baseline"][name]
        assert page["delta"][f"delta_{name}"] == delta
        assert page["per_mass"][f"delta_{name}"] == delta / mass
    assert page["s_delta_t"] == page["per_mass"].get("delta_fvu")
    assert page["mass"] == mass and page["counted"] == trials_counted(spec, trials)


def trials_counted(spec: TaskSpec, trials: Trials) -> float:
    return trials.mask.shape[1] if spec.pooled else float(trials.mask.sum())


@pytest.mark.parametrize("model", MODELS)
def test_an_empty_ablation_is_the_plain_model_to_the_bit(host: Models, model: str) -> None:
    page, plain = ask(host, model=model, ablation=EMPTY), ask(host, model=model)
    assert page["ablated"] == page["baseline"] == plain["baseline"]
    assert set(page["delta"].values()) == {0.0} and page["mass"] == 0.0
    parts = page["intervals"]
    assert parts["ablated"] == parts["baseline"] == plain["intervals"]["baseline"]
    assert all(bounds == [0.0, 0.0] for bounds in parts["delta"].values())


@pytest.mark.parametrize("model", MODELS)
def test_the_same_seed_gives_the_same_intervals_around_the_score(host: Models, model: str) -> None:
    first, again, other = (ask(host, model=model, seed=seed) for seed in (1, 1, 2))
    assert first == again and first["intervals"] != other["intervals"]
    for name, (low, high) in first["intervals"]["baseline"].items():
        assert low < first["baseline"][name] < high
    assert ask(host, model=model, resamples=0)["intervals"] is None


@pytest.mark.parametrize("block", [1, 30, 10_000])
def test_resamples_are_those_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(bootstrap, "BLOCK", block)
    generator = np.random.default_rng(5)
    drawn = [generator.integers(11, size=11) for _ in range(7)]
    found = np.concatenate(list(resample_counts(11, 7, 5)))
    assert (found == [np.bincount(places, minlength=11) for places in drawn]).all()


@pytest.mark.parametrize("model", MODELS)
def test_intervals_are_those_of_trials_drawn_and_scored_again(host: Models, model: str) -> None:
    bundle, ablation = host.bundle(model), ABLATIONS[model]
    spec, trials = task_of(bundle), part_of(bundle, 13)
    variant = asyncio.run(host.variant(bundle, ablation))
    sessions, run = (bundle.plain.session, variant.session), asyncio.run
    before, after = (run(measure(host, bundle, session, trials)) for session in sessions)
    page = to_json(contrast(spec, before, after, 0.25, 50, 3))
    outputs = [
        run_trials(session.run, bundle.manifest, bundle.initial, trials.inputs)
        for session in sessions
    ]
    generator, drawn = np.random.default_rng(3), []
    for _ in range(50):
        places = generator.integers(13, size=13)
        chosen = Trials(*(array[:, places] for array in trials))
        drawn.append([score_trials(spec, found[:, places], chosen) for found in outputs])
    for name in drawn[0][0]:
        rows = np.array([[one[name], other[name]] for one, other in drawn])
        for part, key, values in (
            ("baseline", name, rows[:, 0]),
            ("ablated", name, rows[:, 1]),
            ("delta", f"delta_{name}", rows[:, 1] - rows[:, 0]),
        ):
            expected = np.quantile(values, [0.025, 0.975])
            assert page["intervals"][part][key] == pytest.approx(expected, rel=1e-9, abs=1e-12)
        if name == "fvu":
            expected = np.quantile((rows[:, 1] - rows[:, 0]) / 0.25, [0.025, 0.975])
            assert page["intervals"]["s_delta_t"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_a_mask_between_0_and_1_weighs_steps(host: Models, model: str) -> None:
    bundle, generator = host.bundle(model), np.random.default_rng(0)
    trials = part_of(bundle, 9)
    mask = generator.random(trials.mask.shape, np.float32) * (trials.mask > 0)
    trials = trials._replace(mask=mask)
    spec = task_of(bundle)
    found = scores(spec, measured(host, bundle, trials).table.sum(axis=0))
    expected = score_trials(spec, outputs_of(bundle, trials), trials)
    assert {name: float(found[name]) for name in expected} == pytest.approx(expected, rel=1e-9)


def test_what_is_not_finite_is_null_and_said(host: Models) -> None:
    bundle = host.bundle("small-copy")
    trials = as_json(part_of(bundle, 5))
    same = trials | {"targets": np.ones_like(np.array(trials["targets"])).tolist()}
    page = ask(host, model=bundle.name, trials=UploadedTrials(**same))
    assert page["baseline"][
        "fvu"
    ] is None and "fvu: the targets never change over what the mask counts (" in str(page)
    half = trials | {"targets": (np.array(trials["targets"]) / 2).tolist()}
    page = ask(host, model=bundle.name, trials=UploadedTrials(**half))
    assert page["baseline"]["loss"] is not None
    assert page["baseline"]["replay_accuracy"] is None
    assert "found targets other than -1 and 1" in str(page["warnings"])
    trials["inputs"][2][3] = [3e38, -3e38]
    page = ask(host, model=bundle.name, trials=UploadedTrials(**trials), ablation=EMPTY)
    assert page["baseline"]["loss"] is page["delta"]["delta_fvu"] is None
    assert "1 of 5 trials gave an output that is not finite" in str(page["warnings"])
    assert page["intervals"]["baseline"]["loss"] is None
    json.dumps(page, allow_nan=False)


# What a caller brings


def test_trials_in_any_form_give_the_same_numbers(server: Any, host: Models) -> None:
    for model in MODELS:
        trials = part_of(host.bundle(model), 12)
        lists, file = as_json(trials), save(trials._asdict())
        asked: dict[str, Any] = {"model": model, "resamples": 100}
        with HttpClient(server.url) as http, GrpcClient(server.grpc_address) as over_grpc:
            found = [
                client.trials(ABLATIONS[model], brought, **asked)
                for client in (http, over_grpc)
                for brought in (lists, file)
            ]
            own = http.trials(ABLATIONS[model], model=model, resamples=100)
        assert found == [found[0]] * 4 and found[0].num_trials == 12
        assert own.num_trials == host.bundle(model).trials.mask.shape[1]
        everything = ask(host, save(host.bundle(model).trials._asdict()), **asked)
        assert everything == ask(host, **asked)


def test_a_mask_that_is_left_out_counts_everything(host: Models) -> None:
    trials = as_json(part_of(host.bundle("small-copy"), 3))
    ones = trials | {"mask": np.ones_like(np.array(trials["mask"])).tolist()}
    del trials["mask"]
    asked = [ask(host, model="small-copy", trials=UploadedTrials(**t)) for t in (trials, ones)]
    assert asked[0] == asked[1] and asked[0]["counted"] == 3 * asked[0]["num_steps"]


WRONG: list[tuple[str, str, Callable[[dict[str, Array]], Any], str, str]] = [
    ("small-copy", "inputs", lambda a: a.pop("inputs"), "inputs", "missing"),
    ("small-copy", "extra", lambda a: a.update(x=a["mask"]), "x", "unknown tensor"),
    (
        "small-copy",
        "dtype",
        lambda a: a.update(inputs=a["inputs"].astype(np.float64)),
        "inputs",
        "found float64, expected float32; save it as float32",
    ),
    (
        "small-copy",
        "width",
        lambda a: a.update(inputs=a["inputs"][..., :1]),
        "inputs",
        "found shape [23, 4, 1], expected [T, N, 2] (T steps, N trials); bring some of each",
    ),
    (
        "small-copy",
        "no steps",
        lambda a: a.update(inputs=a["inputs"][:0]),
        "inputs",
        "found shape [0, 4, 2]",
    ),
    (
        "small-copy",
        "targets",
        lambda a: a.update(targets=a["targets"][1:]),
        "targets",
        "found shape [22, 4, 2], expected [23, 4, 2]",
    ),
    (
        "small-copy",
        "mask",
        lambda a: a.update(mask=a["mask"][:, 1:]),
        "mask",
        "found shape [23, 3], expected [23, 4]",
    ),
    (
        "small-copy",
        "nan",
        lambda a: a["inputs"].fill(np.nan),
        "inputs",
        "not finite, expected finite numbers",
    ),
    ("small-copy", "inf", lambda a: a["targets"].fill(np.inf), "targets", "not finite"),
    ("small-copy", "mask 2", lambda a: a["mask"].fill(2), "mask", "found 2.0, expected 0 to 1"),
    ("small-copy", "mask nan", lambda a: a["mask"].fill(np.nan), "mask", "found nan"),
    ("small-copy", "mask 0", lambda a: a["mask"].fill(0), "mask", "found 0 at every step"),
    (
        "small-list-ops",
        "class",
        lambda a: a["targets"].fill(10),
        "targets",
        "found 10, expected 0 to 9",
    ),
    ("small-list-ops", "character", lambda a: a["inputs"].fill(-1), "inputs", "found -1, expected"),
    (
        "small-list-ops",
        "one trial",
        lambda a: a["mask"][:, 2].fill(0),
        "mask",
        "found 0 at every step of trial 2",
    ),
]


@pytest.mark.parametrize(
    ("model", "change", "field", "words"),
    [(model, change, field, words) for model, _, change, field, words in WRONG],
    ids=[f"{model}-{name}" for model, name, *_ in WRONG],
)
def test_a_file_that_is_not_as_the_task_wants_it_is_refused_by_field(
    host: Models, model: str, change: Callable[[Any], Any], field: str, words: str
) -> None:
    arrays = {n: a.copy() for n, a in part_of(host.bundle(model), 4)._asdict().items()}
    change(arrays)
    file = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    with pytest.raises(RequestError) as caught:
        ask(host, file, model=model)
    assert caught.value.code == "invalid_request" and caught.value.field == f"trials.{field}"
    assert words in caught.value.message
    with pytest.raises(RequestError) as caught:
        ask(host, model=model, safetensors=base64.b64encode(file).decode())
    assert caught.value.field == f"safetensors.{field}"


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"trials": {"inputs": [[[1, 1]]]}}, "trials.targets", "missing"),
        ({"trials": {"inputs": [[[1, 1], [1]]], "targets": []}}, "trials.inputs", "unequal"),
        ({"trials": {"inputs": [["a"]], "targets": []}}, "trials.inputs", "expected lists of num"),
        ({"trials": {"inputs": [[[True, True]]], "targets": []}}, "trials.inputs", "numbers"),
        ({"trials": {"inputs": [[[None, 1]]], "targets": []}}, "trials.inputs", "numbers"),
        (
            {"trials": {"inputs": [[[1e300, 1]]], "targets": []}},
            "trials.inputs",
            "found 1e+300, ex",
        ),
        ({"safetensors": "%"}, "safetensors", "found no base64"),
        ({"safetensors": "gASVBQ=="}, "safetensors", "found no safetensors file"),
        ({"safetensors": "", "trials": {"inputs": [], "targets": []}}, "safetensors", "beside"),
        ({"resamples": 10_001}, "resamples", "10000 (max_resamples)"),
        ({"resamples": 1}, "resamples", "found 1, expected 100 to 10000, or 0 for no intervals"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"model": TEXT}, "model", "expected a model of a task: small-copy, small-list-ops"),
        ({"ablation": {"edits": [{"op": "zero"}]}}, "ablation.edits[0].target", "nothing"),
        ({"seed": True}, "seed", "found true, expected"),
    ],
)
def test_a_request_that_is_not_as_expected_is_refused_by_field(
    server: Any, changes: dict[str, Any], field: str, words: str
) -> None:
    body = {"model": "small-copy", **changes}
    answer = httpx.post(server.url + "/v1/ablations/trials", json=body, timeout=60)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == field, answer.text
    assert words in error["message"]


def test_too_many_bytes_are_refused_by_the_limit(host: Models) -> None:
    with pytest.raises(RequestError, match=r"\(max_trial_bytes\)") as caught:
        ask(host, bytes(MAX_TRIAL_BYTES + 1), model="small-copy")
    assert caught.value.code == "too_large"
    lists = {"inputs": [[[1.0, "a"]]], "targets": [[[1.0, 1.0]]]}
    with pytest.raises(ServerError, match=r"trials.inputs: found other data"):
        from clients.grpc.trials_file import trials_file

        trials_file(lists, {"inputs": "vectors", "targets": "vectors"})


# Beside the engine


class Counted:
    """A session that counts its runs, and waits in the first one until it is told to go on."""

    def __init__(self, session: Any) -> None:
        self.num_runs, self._session, self.initial = 0, session, session.initial
        self.began, self.goes_on = threading.Event(), threading.Event()

    def run(self, feeds: dict[str, Array]) -> Any:
        self.num_runs += 1
        self.began.set()
        assert self.goes_on.wait(30)
        return self._session.run(feeds)


def test_a_query_that_nobody_waits_for_ends_before_its_next_run(host: Models) -> None:
    bundle = host.bundle("small-copy")
    session: Any = Counted(bundle.plain.session)

    async def leave() -> None:
        task = asyncio.create_task(measure(host, bundle, session, bundle.trials))
        assert await asyncio.to_thread(session.began.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        session.goes_on.set()
        assert await host.trials.run(lambda: "next") == "next"

    asyncio.run(leave())
    assert session.num_runs == 1


def test_a_full_queue_names_its_limit(host: Models) -> None:
    bundle = host.bundle("small-copy")
    session: Any = Counted(bundle.plain.session)

    async def fill() -> None:
        trials = part_of(bundle, 2)
        waiting = [
            asyncio.create_task(measure(host, bundle, session, trials))
            for _ in range(MAX_QUEUED_TRIALS)
        ]
        assert await asyncio.to_thread(session.began.wait, 30)
        with pytest.raises(RequestError, match=r"\(max_queued_trials\)") as caught:
            await measure(host, bundle, session, trials)
        assert caught.value.code == "queue_full"
        session.goes_on.set()
        await asyncio.gather(*waiting)

    asyncio.run(fill())


def test_a_host_that_closes_ends_a_query_before_its_next_run(folders: list[Path]) -> None:
    bundle = Bundle(folders[0], CPU)
    session: Any = Counted(bundle.plain.session)
    closing = Models({bundle.name: bundle})

    async def close() -> None:
        task = asyncio.create_task(measure(closing, bundle, session, bundle.trials))
        assert await asyncio.to_thread(session.began.wait, 30)
        closing.trials.close()
        session.goes_on.set()
        with pytest.raises(RequestError, match="the server has stopped"):
            await task
        with pytest.raises(RequestError, match="the server is shutting down"):
            await measure(closing, bundle, session, bundle.trials)

    asyncio.run(close())
    assert session.num_runs == 1


def test_the_plain_model_runs_once_on_its_own_trials(host: Models) -> None:
    bundle = host.bundle("small-copy")
    first = measured(host, bundle, bundle.trials)
    assert measured(host, bundle, bundle.trials) is first
    assert measured(host, bundle, part_of(bundle, 2)) is not first


# Wires and clients


@pytest.mark.parametrize("model", MODELS)
def test_every_wire_and_client_answers_alike(server: Any, host: Models, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "resamples": 100, "seed": 4}

    async def later() -> Any:
        async with AsyncHttpClient(server.url) as client:
            return await client.trials(ABLATIONS[model], **asked)

    with HttpClient(server.url) as http, GrpcClient(server.grpc_address) as over_grpc:
        found = http.trials(ABLATIONS[model], **asked)
        assert over_grpc.trials(ABLATIONS[model], **asked) == found == asyncio.run(later())
        assert http.trials(model=model) == over_grpc.trials(model=model)
        assert http.trials().model == over_grpc.trials().model == "small-copy"
    assert found == from_json(TrialsResult, ask(host, ablation=ABLATIONS[model], **asked))
    assert found.delta is not None and set(found.delta) == {f"delta_{n}" for n in found.baseline}


def lines_of(server: Any) -> list[str]:
    return list(server.log.read_text().splitlines())


def test_the_line_in_the_log_says_model_and_ablation(server: Any) -> None:
    with HttpClient(server.url) as client:
        result = client.trials(ABLATIONS["small-copy"], model="small-copy", resamples=0)
    assert result.ablation is not None
    expected = f"model=small-copy ablation={result.ablation['hash']} "
    deadline = time.monotonic() + 10  # the line comes after the answer
    while not any("ablations/trials" in line and expected in line for line in lines_of(server)):
        assert time.monotonic() < deadline, lines_of(server)[-20:]
        time.sleep(0.05)
    counters = httpx.get(server.url + "/metrics", timeout=30).text
    assert 'torsor_trials_total{model="small-copy"}' in counters


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_the_command_prints_the_scores_of_the_model_in_question(server: Any, wire: str) -> None:
    where = [server.url] if wire == "http" else [server.grpc_address, "--grpc"]

    def run(*words: str) -> str:
        command = [
            sys.executable,
            "-m",
            "clients.command_line.main",
            "trials",
            *words,
            "--url",
            *where,
        ]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert found.returncode == 0, found.stderr
        return found.stdout

    edit = ("--model", "small-copy", "--edit", json.dumps(ABLATIONS["small-copy"]["edits"][0]))
    page = json.loads(run(*edit, "--json"))
    assert page["replay_accuracy"] == page["ablated"]["replay_accuracy"]
    assert page["fvu"] == page["ablated"]["fvu"]
    assert page["delta_fvu"] == page["delta"]["delta_fvu"] == page["fvu"] - page["baseline"]["fvu"]
    assert page["s_delta_t"] == page["delta_fvu"] / page["mass"]
    plain = json.loads(run("--json", "--resamples", "0"))
    assert plain["fvu"] == page["baseline"]["fvu"] and plain["delta_fvu"] is None
    classes = json.loads(run("--model", "small-list-ops", "--json"))
    assert classes["fvu"] is classes["replay_accuracy"] is None and classes["accuracy"] > 0
    table = run(*edit)
    assert "replay accuracy" in table and "removed    mixing identity: mass" in table
    assert f"S_ΔT       {page['s_delta_t']:+.4f} [" in table


def test_the_command_takes_a_file_of_trials(server: Any, host: Models, tmp_path: Path) -> None:
    trials = part_of(host.bundle("small-copy"), 6)
    (tmp_path / "mine.safetensors").write_bytes(save(trials._asdict()))
    command = [
        sys.executable,
        "-m",
        "clients.command_line.main",
        "trials",
        "--url",
        server.url,
        "--json",
    ]
    command += ["--trials", str(tmp_path / "mine.safetensors")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(found.stdout)["num_trials"] == 6


def test_the_command_takes_trials_in_json_and_names_the_file_of_wrong_ones(
    server: Any, host: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = part_of(host.bundle("small-copy"), 6)
    pages = {"safetensors": save(trials._asdict()), "json": json.dumps(as_json(trials)).encode()}
    wrong = trials._replace(inputs=trials.inputs.astype(np.float64))._asdict()
    words = ["trials", "--model", "small-copy", "--json", "--trials"]
    for where in (["--url", server.url], ["--url", server.grpc_address, "--grpc"]):
        found = list[Any]()
        for kind, content in pages.items():
            (tmp_path / f"mine.{kind}").write_bytes(content)
            assert main([*words, str(tmp_path / f"mine.{kind}"), *where]) == 0
            found.append(json.loads(capsys.readouterr().out))
        assert found[0] == found[1] and found[0]["num_trials"] == 6
        refused: list[tuple[bytes, str]] = [
            (save(wrong), "inputs: found float64, expected float32; save it as float32"),
            (b"[1]", "found a list in "),
            (b'{"inputs": NaN, "targets": []}', "trials.inputs: found NaN, expected a finite"),
            (b'{"inputs": [[[1e300, 1]]], "targets": [[[1, 1]]]}', "expected at most 3.403e+38"),
            (b"PK", "found no safetensors file"),
        ]
        for content, said in refused:
            (path := tmp_path / "wrong").write_bytes(content)
            assert main([*words, str(path), *where]) == 1
            err = capsys.readouterr().err
            assert said in err and str(path) in err and err.count("\n") == 1


def test_rows_hold_every_score_with_its_interval(server: Any) -> None:
    with HttpClient(server.url) as client:
        result = client.trials(ABLATIONS["small-copy"], model="small-copy")
    rows = {row["score"]: row for row in result.rows()}
    assert set(rows) == {"loss", "fvu", "replay_accuracy"}
    assert rows["fvu"]["delta"] == rows["fvu"]["ablated"] - rows["fvu"]["baseline"]
    assert rows["fvu"]["baseline_low"] < rows["fvu"]["baseline"] < rows["fvu"]["baseline_high"]
