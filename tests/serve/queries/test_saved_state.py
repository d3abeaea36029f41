"""Saved states: in the blob, through the engine, and over the wire; resumed = straight on."""

import base64
import dataclasses
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.command_line.main import main
from clients.errors import ServerError
from clients.grpc_client import GrpcClient
from clients.http_client import HttpClient
from serve.engine.engine import Engine
from serve.engine.sampling import SamplingSettings
from serve.engine.stream import Life, Opening, Stream
from serve.manifest.page import Manifest
from serve.manifest.read import read_manifest
from serve.queries.saved_state import _sign, decode_state, encode_state, read_key
from serve.runtime.bundle import Bundle, load_bundles
from serve.runtime.device import Device
from serve.runtime.vocabulary import Vocabulary
from serve.settings import SHIPPED
from serve.wire.errors import RequestError

KEY = b"k" * 32
NAMES = ("osm-rnn-shakespeare", "tanh-rnn-shakespeare")
IDENTITY = {"edits": [{"target": "mixing", "op": "identity"}]}


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest(SHIPPED / NAMES[0])


@pytest.fixture(scope="module")
def bundles(for_device: Callable[[Path], Path], device: Device) -> dict[str, Bundle]:
    folders = [for_device(SHIPPED / name) for name in NAMES]
    return load_bundles(folders, device.kind, device.num_threads)


def rotation() -> dict[str, Any]:
    Q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(22, 22)))
    return {"H": Q.astype(np.float32)}


def blob_of(manifest: Manifest, rows: dict[str, Any], ablation: str = "") -> str:
    return encode_state(manifest, ablation, 37, 5, rows, KEY)


def signed_anew(content: bytes) -> str:
    return base64.urlsafe_b64encode(_sign(KEY, content) + content).decode()


def test_a_blob_gives_back_state_position_and_seed(manifest: Manifest) -> None:
    found = decode_state(blob_of(manifest, rotation()), manifest, "", KEY)
    assert (found.position, found.seed) == (37, 5)
    np.testing.assert_array_equal(found.rows["H"], rotation()["H"])


@given(st.integers(0, 10**9), st.integers(1, 255))
def test_no_byte_of_a_blob_can_be_changed(place: int, change: int) -> None:
    manifest = read_manifest(SHIPPED / NAMES[0])
    content = bytearray(base64.urlsafe_b64decode(blob_of(manifest, rotation())))
    content[place % len(content)] ^= change
    with pytest.raises(RequestError, match="signature"):
        decode_state(base64.urlsafe_b64encode(content).decode(), manifest, "", KEY)


@given(st.integers(0, 3000))
def test_no_part_of_a_blob_can_be_cut(length: int) -> None:
    manifest = read_manifest(SHIPPED / NAMES[0])
    blob = blob_of(manifest, rotation())
    with pytest.raises(RequestError, match="signature|base64"):
        decode_state(blob[: min(length, len(blob) - 4)], manifest, "", KEY)


def test_another_servers_key_is_refused(manifest: Manifest) -> None:
    with pytest.raises(RequestError, match="another server"):
        decode_state(blob_of(manifest, rotation()), manifest, "", b"q" * 32)


@pytest.mark.parametrize("blob", ["", "é", "a", "####", "AAAA"])
def test_what_is_no_blob_is_refused(manifest: Manifest, blob: str) -> None:
    with pytest.raises(RequestError) as error:
        decode_state(blob, manifest, "", KEY)
    assert error.value.field == "state" and error.value.code == "invalid_request"


def test_a_signed_blob_that_holds_no_safetensors_is_refused(manifest: Manifest) -> None:
    with pytest.raises(RequestError, match="safetensors"):
        decode_state(signed_anew(b"not a file"), manifest, "", KEY)


def test_a_state_of_another_model_weights_or_ablation_is_refused(manifest: Manifest) -> None:
    blob = blob_of(manifest, rotation())
    other = read_manifest(SHIPPED / NAMES[1])
    with pytest.raises(RequestError, match="model: found 'osm-rnn-shakespeare'"):
        decode_state(blob, other, "", KEY)
    files = manifest.files | {"weights.safetensors": dataclasses.replace(
        manifest.files["weights.safetensors"], sha256="0" * 64
    )}  # fmt: skip
    with pytest.raises(RequestError, match="weights"):
        decode_state(blob, dataclasses.replace(manifest, files=files), "", KEY)
    with pytest.raises(RequestError, match=r"expected one of ablation abc"):
        decode_state(blob, manifest, "abcdef", KEY)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({"H": np.full((22, 22), np.nan, np.float32)}, "not finite"),
        ({"H": 2 * rotation()["H"]}, "off its group"),
        ({"H": rotation()["H"].astype(np.float64)}, "float64"),
        ({"H": rotation()["H"][:5]}, "shape|expected"),
        ({"h": rotation()["H"]}, "tensors"),
    ],
)
def test_what_no_stream_can_be_in_is_refused_though_signed(
    manifest: Manifest, rows: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason):
        decode_state(blob_of(manifest, rows), manifest, "", KEY)


def test_a_key_file_is_checked_and_the_own_key_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert read_key("") == read_key("")
    assert [file.name for file in (tmp_path / "torsor").iterdir()] == ["state.key"]
    assert (tmp_path / "torsor" / "state.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="state_key"):
        read_key(str(tmp_path / "none"))
    (tmp_path / "short").write_text("secret")
    with pytest.raises(ValueError, match="at least 32"):
        read_key(str(tmp_path / "short"))


def test_a_key_that_cannot_be_kept_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(logging.getLogger("torsor"), "propagate", True)
    assert read_key("") != read_key("")
    assert "--state-key" in caplog.text


def write(engine: Engine, found: Stream) -> list[int]:
    engine.submit([found])
    while found.life is not Life.FINISHED:
        engine.tick()
    return [c for delivery in found.collect()[0] for c in delivery.characters]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cut", [0, 1, 15, 16, 17, 100, 255, 256, 257])
def test_a_stream_that_goes_on_from_its_state_writes_the_same_bits(
    bundles: dict[str, Bundle], name: str, cut: int
) -> None:
    bundle, engine = bundles[name], Engine(bundles.values())
    forced = Vocabulary(bundle.manifest.vocabulary).encode("ROMEO:\nBut", "prompt", "error")
    settings = SamplingSettings(temperature=0.9, top_p=0.95)

    def stream(forced: Any, tokens: int, **options: Any) -> Stream:
        session = bundle.plain.session
        given: dict[str, Any] = {"max_tokens": tokens, "seed": 3, "settings": settings} | options
        return Stream(bundle, session, forced, **given)

    whole = write(engine, stream(forced, 300))
    first = stream(forced, cut, saves=True)
    start = write(engine, first)
    assert first.saved is not None
    opening = Opening(first.position, first.saved)
    rest = write(engine, stream(forced[:0], 300 - cut, opening=opening))
    assert start + rest == whole


def test_a_stop_string_inside_a_run_leaves_the_state_right_behind_it(
    bundles: dict[str, Bundle],
) -> None:
    bundle, engine = bundles[NAMES[0]], Engine(bundles.values())
    session = bundle.plain.session
    whole = write(engine, Stream(bundle, session, np.zeros(0), max_tokens=200, seed=1))
    for stop in ((whole[20],), tuple(whole[30:33]), tuple(whole[90:92])):
        first = Stream(
            bundle, session, np.zeros(0), max_tokens=200, seed=1, stops=[stop], saves=True
        )
        start = write(engine, first)
        assert first.finish_reason == "stop" and first.saved is not None
        assert [*start, *stop] == whole[: first.position]
        opening = Opening(first.position, first.saved)
        num_left = 200 - first.position
        rest = Stream(bundle, session, np.zeros(0), max_tokens=num_left, seed=1, opening=opening)
        assert [*start, *stop, *write(engine, rest)] == whole
    assert engine.num_running == 0


@pytest.mark.parametrize("family", ["transformer", "lightning", "osm-former", "rotrnn", "lstm"])
def test_every_kind_of_state_can_be_saved(
    exported: Callable[[str], Path],
    for_device: Callable[[Path], Path],
    device: Device,
    family: str,
) -> None:
    bundle = Bundle(for_device(exported(family) / "bundle"), device)
    engine, session = Engine([bundle]), bundle.plain.session
    whole = write(engine, Stream(bundle, session, np.zeros(0), max_tokens=60, seed=2))
    first = Stream(bundle, session, np.zeros(0), max_tokens=23, seed=2, saves=True)
    start = write(engine, first)
    blob = encode_state(bundle.manifest, "", first.position, 2, first.saved or {}, KEY)
    saved = decode_state(blob, bundle.manifest, "", KEY)
    opening = Opening(saved.position, saved.rows)
    rest = Stream(bundle, session, np.zeros(0), max_tokens=37, seed=2, opening=opening)
    assert start + write(engine, rest) == whole


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("ablation", [None, "edited"])
def test_http_and_grpc_take_each_others_states(server: Any, model: str, ablation: Any) -> None:
    target = "mixing" if model == NAMES[0] else "recurrent"
    edits = {"edits": [{"target": target, "op": "identity"}]} if ablation else None
    options: Any = {"model": model, "ablation": edits}
    with HttpClient(server.url) as http, GrpcClient(server.grpc_address) as grpc:
        whole = http.complete("KING:", max_tokens=90, seed=4, **options)
        first = grpc.complete("KING:", max_tokens=31, seed=4, save_state=True, **options)
        second = http.complete(
            "", max_tokens=29, state=first.choices[0].state, save_state=True, **options
        )
        third = list(grpc.generate("", max_tokens=30, state=second.choices[0].state, **options))
        text = first.text + second.text + "".join(chunk.text for chunk in third)
        assert text == whole.text
        assert second.choices[0].seed == 4
        prompted = http.complete("KING:" + whole.text + "\nAnd ", max_tokens=40, seed=4, **options)
        resumed = http.complete(
            "\nAnd ",
            max_tokens=40,
            seed=4,
            state=http.complete(
                "", max_tokens=30, state=second.choices[0].state, save_state=True, **options
            ).choices[0].state,
            **options,
        )  # fmt: skip
        assert resumed.text == prompted.text


def test_a_state_is_refused_by_another_model_and_in_a_pair(server: Any) -> None:
    with HttpClient(server.url) as client:
        saved = client.complete("A", max_tokens=3, save_state=True, model=NAMES[0]).choices[0].state
        assert saved is not None
        with pytest.raises(ServerError, match="state: model") as error:
            client.complete("", state=saved, model=NAMES[1])
        assert error.value.field == "state"
        with pytest.raises(ServerError, match="expected one of ablation"):
            client.complete("", state=saved, model=NAMES[0], ablation=IDENTITY)
        with pytest.raises(ServerError, match="signature"):
            client.complete("", state=saved[:40] + "A" + saved[41:], model=NAMES[0])


def test_another_server_with_the_same_key_goes_on(
    start_server: Callable[..., AbstractContextManager[Any]], tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("x" * 40)
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    arguments = (str(SHIPPED / NAMES[1]), "--state-key", str(tmp_path / "key"))
    with start_server(folders[0], *arguments) as one, HttpClient(one.url) as client:
        whole = client.complete("A", max_tokens=50, seed=9)
        saved = client.complete("A", max_tokens=20, seed=9, save_state=True)
    with start_server(folders[1], *arguments) as two, HttpClient(two.url) as client:
        rest = client.complete("", max_tokens=30, state=saved.choices[0].state)
    assert saved.text + rest.text == whole.text


@pytest.mark.parametrize("wire", [(), ("--grpc",)])
def test_the_command_line_writes_a_state_and_goes_on_from_it(
    server: Any, wire: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = server.grpc_address if wire else server.url
    asked = ["generate", *wire, "--url", where, "--model", NAMES[0]]
    path = str(tmp_path / "state")

    def generate(*words: str) -> str:
        assert main([*asked, *words]) == 0
        return capsys.readouterr().out

    whole = generate("JULIET:", "--max-tokens", "60", "--seed", "2")
    start = generate("JULIET:", "--max-tokens", "25", "--seed", "2", "--save-state", path)
    rest = generate("--max-tokens", "35", "--state", path)
    assert start.removesuffix("\n") + rest.removesuffix("\n") == whole.removesuffix("\n")
    assert [file.name for file in tmp_path.iterdir()] == ["state"]
