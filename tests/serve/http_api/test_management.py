"""Models that come and go over the wire; closed, but for keys that may manage."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from clients.command_line.main import main
from clients.errors import ServerError
from clients.http_client import HttpClient
from serve.gateway.keys import add_key
from serve.settings import SHIPPED

OSM, TANH = "osm-rnn-shakespeare", "tanh-rnn-shakespeare"
Start = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def managed(start_server: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server of one model, and the keys of one who may manage and one who may not."""
    folder = tmp_path_factory.mktemp("managed")
    file = folder / "keys.toml"
    keys = [add_key(file, name, manage=name == "boss") for name in ("boss", "guest")]
    arguments = (str(SHIPPED / OSM), "--keys", str(file))
    with start_server(folder, *arguments) as server:
        yield server.url, *keys


def test_without_keys_it_is_closed(server: Any) -> None:
    for method, path in (
        ("POST", "/management/models"),
        ("POST", f"/management/models/{OSM}/reload"),
        ("DELETE", f"/management/models/{OSM}"),
    ):
        answer = httpx.request(method, server.url + path, json={"folder": str(SHIPPED / OSM)})
        assert answer.status_code == 403 and answer.json()["error"]["code"] == "forbidden"
    assert len(httpx.get(server.url + "/v1/models").json()["data"]) == 2


def test_a_key_that_may_not_manage_may_not(managed: Any) -> None:
    url, _, guest = managed
    with HttpClient(url, api_key=guest) as client:
        assert [model.id for model in client.models()] == [OSM]
        with pytest.raises(ServerError) as error:
            client.load(str(SHIPPED / TANH))
        assert error.value.code == "forbidden"


def test_a_model_is_loaded_reloaded_and_unloaded(managed: Any) -> None:
    url, boss, _ = managed
    with HttpClient(url, api_key=boss) as client:
        expected = client.complete("A", max_tokens=20, seed=1)
        assert client.load(str(SHIPPED / TANH)).id == TANH
        assert len(client.complete("A", model=TANH, max_tokens=20).text) == 20
        assert client.reload(OSM).id == OSM
        assert client.complete("A", max_tokens=20, seed=1).text == expected.text
        client.unload(TANH)
        assert [model.id for model in client.models()] == [OSM]
        with pytest.raises(ServerError, match="model: found"):
            client.complete("A", model=TANH)
        with pytest.raises(ServerError, match="model: found"):
            client.unload(TANH)


def test_a_folder_without_a_whole_bundle_is_refused(managed: Any, tmp_path: Path) -> None:
    url, boss, _ = managed
    broken = tmp_path / "broken"
    shutil.copytree(SHIPPED / TANH, broken)
    (broken / "model.onnx").write_bytes(b"no graph")
    with HttpClient(url, api_key=boss) as client:
        for folder in (str(tmp_path / "none"), str(broken), "\0"):
            with pytest.raises(ServerError) as error:
                client.load(folder)
            assert (error.value.code, error.value.field) == ("invalid_request", "folder")
        assert [model.id for model in client.models()] == [OSM]


def test_a_path_is_the_servers_and_an_error_says_relative_to_what(managed: Any) -> None:
    url, boss, _ = managed
    with HttpClient(url, api_key=boss) as client:
        with pytest.raises(ServerError, match="no such folder.*the path is one of the server's"):
            client.load("/nowhere/docs")
        with pytest.raises(ServerError) as error:
            client.load("nowhere/docs")
        told = str(error.value)
        assert f"{Path.cwd() / 'nowhere/docs'}: no such folder" in told
        assert f"nowhere/docs is relative to {Path.cwd()}; --bundles-root sets another" in told


def test_names_are_relative_to_the_bundles_root_and_stay_below_it(
    start_server: Any, tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys.toml", "boss", manage=True)
    root = tmp_path / "bundles"
    shutil.copytree(SHIPPED / TANH, root / "docs")
    shutil.copytree(SHIPPED / TANH, tmp_path / "outside")
    more = ("--keys", str(tmp_path / "keys.toml"), "--bundles-root", str(root))
    with (
        start_server(tmp_path, str(SHIPPED / OSM), *more) as server,
        HttpClient(server.url, api_key=key) as client,
    ):
        assert client.load("docs").id == TANH
        assert client.load(str(tmp_path / "outside")).id == TANH  # a manager may name any
        for folder in ("../outside", "docs/../../outside", ".."):
            with pytest.raises(ServerError, match="folder: found .*, expected one below"):
                client.load(folder)
        with pytest.raises(ServerError, match="none is relative to its --bundles-root"):
            client.load("none")


def test_the_command_line_manages(
    managed: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, boss, guest = managed
    monkeypatch.setenv("TORSOR_API_KEY", boss)
    assert main(["manage", "load", str(SHIPPED / TANH), "--url", url]) == 0
    assert main(["manage", "reload", TANH, "--url", url, "--json"]) == 0
    assert main(["manage", "unload", TANH, "--url", url]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert (first, third) == (f"serves {TANH}", "unloaded")
    assert json.loads(second)["id"] == TANH
    monkeypatch.setenv("TORSOR_API_KEY", guest)
    assert main(["manage", "unload", OSM, "--url", url]) == 1
    assert "may manage" in capsys.readouterr().err
