"""A server that holds models of tasks beside one of text: what it says of them, what it refuses."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from clients.command_line.main import main
from clients.errors import TorsorError
from clients.grpc_client import GrpcClient
from clients.http_client import HttpClient
from serve.models import Models
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.settings import SHIPPED
from serve.wire import torsor_pb2 as pb
from serve.wire import torsor_pb2_grpc as rpc
from serve.wire.errors import RequestError

TEXT = "tanh-rnn-shakespeare"
OSM_TARGETS = {"mixing", "prototypes", "input"}
ABLATION = {"edits": [{"target": "mixing", "op": "identity"}]}


@pytest.fixture(scope="module")
def folders(
    exported_task: Callable[[str, str], Path], for_device: Callable[[Path], Path]
) -> list[Path]:
    """The first of them of a task."""
    pairs = [("osm-rnn", "copy"), ("sparse-xor", "sparse-xor")]
    return [*(for_device(exported_task(*pair) / "bundle") for pair in pairs), SHIPPED / TEXT]


@pytest.fixture(scope="module")
def mixed(
    folders: list[Path], start_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    with start_server(tmp_path_factory.mktemp("mixed"), *map(str, folders)) as server:
        yield server


def test_the_server_is_ready_and_lists_what_each_model_is(mixed: Any) -> None:
    assert httpx.get(mixed.url + "/readyz", timeout=30).json()["ready"]
    with HttpClient(mixed.url) as http, GrpcClient(mixed.grpc_address) as over_grpc:
        models = {model.id: model for model in http.models()}
        assert http.models() == over_grpc.models()
    assert list(models) == ["small-copy", "small-sparse-xor", TEXT]
    task = models["small-copy"].task
    assert task is not None and models[TEXT].task is None
    assert (task["name"], task["input_size"], task["output_size"]) == ("copy", 2, 2)
    assert task["trials"] == {"count": 1024, "of": 1024, "seed": 1_000_033}
    assert task["options"] == {"symbols": 3, "bits": 2, "train_lags": 6, "lags": 20}
    assert models["small-copy"].headline[0] == "replay_accuracy"


def test_the_table_of_models_shows_tasks(mixed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--url", mixed.url]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "copy  " in lines["small-copy"] and "2 → 2" in lines["small-copy"]
    assert "replay accuracy 0." in lines["small-copy"]
    assert "65 characters" in lines[TEXT] and "BPC 2.4" in lines[TEXT]


def test_what_can_be_ablated_in_a_model_of_a_task_is_told(mixed: Any) -> None:
    with HttpClient(mixed.url) as client:
        assert {t.name for t in client.structure("small-copy").targets} == OSM_TARGETS
        assert len(client.structure("small-sparse-xor").targets) == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "R", "max_tokens": 3}),
        ("/v1/completions", {"prompt": "R", "max_tokens": 3, "stream": True}),
        ("/v1/ablations/generate", {"prompt": "R", "ablation": ABLATION}),
        ("/v1/ablations/score", {"text": "R"}),
    ],
)
@pytest.mark.parametrize("model", ["small-copy", "small-sparse-xor"])
def test_text_asked_of_a_model_of_a_task_is_refused_in_words(
    mixed: Any, path: str, body: dict[str, Any], model: str
) -> None:
    answer = httpx.post(mixed.url + path, json=body | {"model": model}, timeout=30)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "model"
    task = model.removeprefix("small-")
    assert error["message"] == (
        f"model: found '{model}', a model of the task '{task}', expected a model of text: {TEXT}; "
        "GET /v1/models says what each model is"
    )


def test_the_same_is_an_invalid_argument_over_grpc(mixed: Any) -> None:
    with grpc.insecure_channel(mixed.grpc_address) as channel:
        stub: Any = rpc.TorsorStub(channel)  # type: ignore[no-untyped-call]  # generated
        asks: list[Callable[[], Any]] = [
            lambda: list(stub.Generate(pb.GenerateRequest(model="small-copy", prompt="R"))),
            lambda: stub.Score(pb.ScoreRequest(model="small-copy", text="R")),
        ]
        for ask in asks:
            with pytest.raises(grpc.RpcError) as caught:
                ask()
            error: Any = caught.value
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "a model of the task 'copy', expected a model of text" in error.details()


def test_text_asked_of_no_model_comes_from_the_first_of_text(mixed: Any) -> None:
    with HttpClient(mixed.url) as client:
        assert client.score("ROMEO:").model == TEXT
        assert client.complete("ROMEO:", max_tokens=5, seed=1).model == TEXT
        with pytest.raises(TorsorError, match="expected a model of text"):
            client.complete("R", model="small-copy", max_tokens=1)


def test_a_server_of_tasks_alone_says_that_it_holds_no_text(
    folders: list[Path], device: Device
) -> None:
    bundle = Bundle(folders[0], device)
    host = Models({bundle.name: bundle})
    host.start()
    try:
        assert host.readiness().ready and host.describe(bundle).vocabulary_size == 0
        with pytest.raises(RequestError, match="expected a model of text: none of them is served"):
            host.text_bundle(None)
    finally:
        host.close()
