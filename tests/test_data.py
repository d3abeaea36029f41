"""Texts by name and by path, their vocabulary and splits, and what is refused."""

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from train import data
from train.data import DataError, encode, load_text, make_vocabulary, split

BODY = b"First Citizen: speak!"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data folder, an empty cache, and nothing at the public address; the cache's folder."""
    monkeypatch.delenv("TORSOR_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(data, "SHAKESPEARE_URL", "http://127.0.0.1:9/input.txt")
    return tmp_path / "cache" / "torsor"


class Answer(BaseHTTPRequestHandler):
    """Answers with a body that may be shorter than it says."""

    def __init__(self, content: bytes, said: int, *args: object) -> None:
        self.content, self.said = content, said
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(self.said))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *args: object) -> None:
        del args


@pytest.fixture
def public_address(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A server at the public address that sends the parameter's bytes, and says how many."""
    content, said = request.param
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Answer, content, said)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/input.txt"
        monkeypatch.setattr(data, "SHAKESPEARE_URL", address)
        yield
        server.shutdown()
        thread.join()


def serve_bytes(content: bytes, said: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("public_address", [(content, said)], indirect=True, ids=[""])


def expect_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "SHAKESPEARE_SHA256", hashlib.sha256(BODY).hexdigest())


def put(folder: Path, content: bytes) -> Path:
    path = folder / data.SHAKESPEARE
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_python_docs_are_always_there_and_the_same() -> None:
    text = load_text("python-docs")
    assert text.name == "python-docs"
    assert len(text.text) > 400_000
    assert text == load_text("python-docs")
    assert text.sha256 == hashlib.sha256(text.text.encode()).hexdigest()


def test_tiny_shakespeare_comes_from_the_data_folder(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSOR_DATA_DIR", str(data_dir))
    text = load_text("shakespeare")
    assert (text.name, text.sha256) == ("shakespeare", data.SHAKESPEARE_SHA256)
    assert text.text.startswith("First Citizen:\nBefore we proceed any further")
    vocabulary = make_vocabulary(text.text)
    assert (len(text.text), len(vocabulary)) == (1_115_394, 65)
    parts = split(encode(text.text, vocabulary), 64)
    assert [len(parts.train), len(parts.valid), len(parts.test)] == [1_003_854, 55_769, 55_771]


def test_the_data_folder_comes_before_the_cache(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_body(monkeypatch)
    put(nowhere, b"something else")
    put(tmp_path / "data", BODY)
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path / "data"))
    assert load_text("shakespeare").text == BODY.decode()


def test_the_cache_is_used_where_the_data_folder_lacks_the_text(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_body(monkeypatch)
    put(nowhere, BODY)
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path / "empty"))
    assert load_text("shakespeare").text == BODY.decode()


def test_a_changed_file_is_refused_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "data", BODY)
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path / "data"))
    found = hashlib.sha256(BODY).hexdigest()
    with pytest.raises(DataError) as caught:
        load_text("shakespeare")
    expected = f"{path}: found SHA-256 {found}, expected {data.SHAKESPEARE_SHA256};"
    assert str(caught.value) == f"{expected} remove or replace it"


def test_offline_the_error_says_where_it_looked_and_what_to_do(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path / "data"))
    with pytest.raises(DataError) as caught:
        load_text("shakespeare")
    message = str(caught.value)
    for part in (
        str(tmp_path / "data" / data.SHAKESPEARE),
        str(nowhere / data.SHAKESPEARE),
        data.SHAKESPEARE_URL,
        "Connection refused",
        "set TORSOR_DATA_DIR",
        "--data python-docs",
    ):
        assert part in message
    assert not nowhere.exists()


def test_nothing_is_downloaded_where_that_is_switched_off() -> None:
    with pytest.raises(DataError, match="downloading is switched off"):
        data.load_shakespeare(allow_download=False)


@serve_bytes(BODY, len(BODY))
@pytest.mark.usefixtures("public_address")
def test_a_download_is_checked_and_kept(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_body(monkeypatch)
    assert load_text("shakespeare").text == BODY.decode()
    kept = nowhere / data.SHAKESPEARE
    assert kept.read_bytes() == BODY
    assert list(kept.parent.iterdir()) == [kept]
    monkeypatch.setattr(data, "SHAKESPEARE_URL", "http://127.0.0.1:9/input.txt")
    assert load_text("shakespeare").text == BODY.decode()


@serve_bytes(BODY, len(BODY))
@pytest.mark.usefixtures("public_address")
def test_a_download_of_other_bytes_is_refused_and_not_kept(nowhere: Path) -> None:
    with pytest.raises(DataError, match=f"{data.SHAKESPEARE_URL}: found SHA-256"):
        load_text("shakespeare")
    assert not nowhere.exists()


@serve_bytes(BODY, 2 * len(BODY))
@pytest.mark.usefixtures("public_address")
def test_a_download_that_breaks_off_is_refused_and_not_kept(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_body(monkeypatch)
    with pytest.raises(DataError, match="did not answer"):
        load_text("shakespeare")
    assert not nowhere.exists()


def test_any_utf8_file_is_a_text(tmp_path: Path) -> None:
    path = tmp_path / "poem.txt"
    path.write_bytes("çà et là 🌀\r\n".encode())
    text = load_text(str(path))
    assert text == data.Text(
        "poem.txt", "çà et là 🌀\r\n", hashlib.sha256(path.read_bytes()).hexdigest()
    )


def test_a_byte_order_mark_is_no_character(tmp_path: Path) -> None:
    path = tmp_path / "bom.txt"
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert load_text(str(path)).text == "abc"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"ab\xffcd", "byte 0xFF at offset 2 is not UTF-8; convert the file first"),
        ("naïve".encode("latin-1"), "byte 0xEF at offset 2 is not UTF-8; convert the file first"),
        (b"\xef\xbb\xbfab\x80", "byte 0x80 at offset 5 is not UTF-8; convert the file first"),
        (b"ab\xe2\x82", "byte 0xE2 at offset 2 is not UTF-8; convert the file first"),
        (b"", "the file is empty, expected text"),
        (b"\xef\xbb\xbf", "the file is empty, expected text"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_text(str(path))
    assert str(caught.value) == f"text.txt: {problem}"


@pytest.mark.parametrize("name", ["shakespear", "", "."])
def test_a_name_that_is_no_text_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=f"data: found '{name}', expected shakespeare, python-docs"):
        load_text(name)


def test_a_vocabulary_is_in_code_point_order() -> None:
    assert make_vocabulary("banana\n🌀é") == ("\n", "a", "b", "n", "é", "🌀")


def test_indices_read_back_as_the_text() -> None:
    text = "abracadabra 🌀"
    vocabulary = make_vocabulary(text)
    ids = encode(text, vocabulary)
    assert ids.dtype == torch.int64
    assert "".join(vocabulary[i] for i in ids) == text


def test_an_unknown_character_is_named_with_its_code_point_and_place() -> None:
    with pytest.raises(DataError) as caught:
        encode("abc🌀🌀", ("a", "b", "c"))
    assert str(caught.value) == (
        "text: found '🌀' (U+1F300) at 3, expected one of the vocabulary's 3 characters"
    )


def test_splits_are_the_text_in_order() -> None:
    ids = torch.arange(1000)
    parts = split(ids, 16)
    assert torch.equal(torch.cat([parts.train, parts.valid, parts.test]), ids)
    assert [len(parts.train), len(parts.valid), len(parts.test)] == [900, 50, 50]


def test_each_part_holds_a_window_and_its_next_character() -> None:
    split(torch.arange(1000), 49)
    with pytest.raises(DataError, match="the valid part has 50 characters, expected more than the"):
        split(torch.arange(1000), 50)


@pytest.mark.parametrize("length", [1, 10, 100])
def test_a_text_shorter_than_its_windows_is_refused(length: int) -> None:
    with pytest.raises(DataError, match="bring a longer text or a smaller --window"):
        split(torch.arange(length), 64)
