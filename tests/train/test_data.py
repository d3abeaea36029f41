"""Texts by name and by path, their vocabulary and splits, and what is refused."""

import builtins
import codecs
import gzip
import hashlib
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.data import files as text_file
from train.data import named as named_texts
from train.data import text as data
from train.data.files import DataError
from train.data.text import Splits, describe_unseen, encode, load_text, make_vocabulary, split

BODY = b"First Citizen: speak!"
WORDS = {  # a Penn Treebank of three parts, as its files look
    "ptb/ptb.train.txt": b" no it was n't black monday \n N of <unk> \n",
    "ptb/ptb.valid.txt": b" but while \n",
    "ptb/ptb.test.txt": b" a b \n",
}
MARKED = {  # encodings that are known by their byte order mark
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}
LANGUAGES = (
    *("amh", "arb", "ben", "bod", "chr", "cmn_hans", "cmn_hant", "csw", "div", "ell_polytonic"),
    *("eng", "heb", "hin", "hye", "iii", "jpn", "kat", "khk_mong", "khm", "kor", "lao", "mal"),
    *("mya", "rus", "san", "tam", "tha", "tzm_tfng", "uig_arab", "vai", "vie", "ydd"),
)
pack = partial(gzip.compress, mtime=0)
plain_texts = st.text(st.characters(exclude_characters="\0\r\ufeff", codec="utf-8"))


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data folder, an empty cache, and nothing at the public address; the cache's folder."""
    monkeypatch.delenv("TORSOR_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(named_texts, "SHAKESPEARE_URL", "http://127.0.0.1:9/input.txt")
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
        monkeypatch.setattr(named_texts, "SHAKESPEARE_URL", address)
        yield
        server.shutdown()
        thread.join()


def serve_bytes(content: bytes, said: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("public_address", [(content, said)], indirect=True, ids=[""])


def expect_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_texts, "SHAKESPEARE_SHA256", hashlib.sha256(BODY).hexdigest())


def put(folder: Path, content: bytes, name: str = named_texts.SHAKESPEARE) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def expect_words(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {name: hashlib.md5(content).hexdigest() for name, content in WORDS.items()}
    monkeypatch.setattr(named_texts, "PTB_MD5", digests)


def refusal(name: str | Path, symbols: str = "characters") -> str:
    """What load_text says when it refuses a text."""
    with pytest.raises(DataError) as caught:
        load_text(str(name), symbols)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
    assert (text.name, text.sha256) == ("shakespeare", named_texts.SHAKESPEARE_SHA256)
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
    expected = f"{path}: found SHA-256 {found}, expected {named_texts.SHAKESPEARE_SHA256};"
    assert str(caught.value) == f"{expected} remove or replace it"


def test_offline_the_error_says_where_it_looked_and_what_to_do(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path / "data"))
    with pytest.raises(DataError) as caught:
        load_text("shakespeare")
    message = str(caught.value)
    for part in (
        str(tmp_path / "data" / named_texts.SHAKESPEARE),
        str(nowhere / named_texts.SHAKESPEARE),
        named_texts.SHAKESPEARE_URL,
        "Connection refused",
        "set TORSOR_DATA_DIR",
        "--data python-docs",
    ):
        assert part in message
    assert not nowhere.exists()


def test_nothing_is_downloaded_where_that_is_switched_off() -> None:
    with pytest.raises(DataError, match="downloading is switched off"):
        named_texts.load_shakespeare(allow_download=False)


@serve_bytes(BODY, len(BODY))
@pytest.mark.usefixtures("public_address")
def test_a_download_is_checked_and_kept(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_body(monkeypatch)
    assert load_text("shakespeare").text == BODY.decode()
    kept = nowhere / named_texts.SHAKESPEARE
    assert kept.read_bytes() == BODY
    assert list(kept.parent.iterdir()) == [kept]
    monkeypatch.setattr(named_texts, "SHAKESPEARE_URL", "http://127.0.0.1:9/input.txt")
    assert load_text("shakespeare").text == BODY.decode()


@serve_bytes(BODY, len(BODY))
@pytest.mark.usefixtures("public_address")
def test_a_download_of_other_bytes_is_refused_and_not_kept(nowhere: Path) -> None:
    with pytest.raises(DataError, match=f"{named_texts.SHAKESPEARE_URL}: found SHA-256"):
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


@pytest.mark.parametrize("name", [named_texts.SHAKESPEARE, f"{named_texts.SHAKESPEARE}.gz"])
def test_a_named_text_may_be_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expect_body(monkeypatch)
    put(tmp_path / "data", pack(BODY), name)
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path / "data"))
    assert load_text("shakespeare").text == BODY.decode()


def test_penn_treebank_is_spelled_out_and_cut_as_published(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSOR_DATA_DIR", str(data_dir))
    text = load_text("ptb")
    vocabulary = make_vocabulary(text.text)
    assert len(vocabulary) == 50
    parts = split(encode(text.text, vocabulary), 300, text.parts)
    sizes = [len(parts.train), len(parts.valid), len(parts.test)]
    assert sizes == [5_017_482, 393_042, 442_423]
    assert len(set(parts.test.tolist())) == 48
    assert describe_unseen(parts, vocabulary) == ()
    assert text.text.startswith("aer_banknote_berlitz_calloway_")


@pytest.mark.parametrize("symbols", data.SYMBOLS)
@pytest.mark.parametrize("packed", [False, True])
def test_penn_treebank_comes_from_data_folder_and_cache(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool, symbols: str
) -> None:
    expect_words(monkeypatch)
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path / "data"))
    folders = (nowhere, nowhere, tmp_path / "data")
    for folder, (name, content) in zip(folders, WORDS.items(), strict=True):
        put(folder, pack(content) if packed else content, name + ".gz" * packed)
    text = load_text("ptb", symbols)
    spelled = ("no_it_was_n't_black_monday\nN_of_<unk>\n", "but_while\n", "a_b\n")
    assert (text.name, text.text, text.parts) == ("ptb", "".join(spelled), (38, 48))
    assert text.sha256 == hashlib.sha256(b"".join(WORDS.values())).hexdigest()
    assert text.notes[0] == "words spelled out: a blank is '_', each line end is a character"


def test_a_penn_treebank_that_lacks_a_file_says_which_and_where_it_looked(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path / "data"))
    put(tmp_path / "data", b"", "ptb/ptb.train.txt.gz")
    message = refusal("ptb")
    assert message == (
        "data: Penn Treebank lacks ptb/ptb.valid.txt, ptb/ptb.test.txt, each with or without .gz: "
        f"not in {tmp_path / 'data'} nor {nowhere}; it has no public address, so set "
        "TORSOR_DATA_DIR to a folder that holds ptb/ptb.train.txt, ptb/ptb.valid.txt, "
        "ptb/ptb.test.txt"
    )


def test_a_changed_penn_treebank_is_refused_by_its_path(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_words(monkeypatch)
    paths = [put(nowhere, content, name) for name, content in WORDS.items()]
    paths[1].write_bytes(b"else")
    found, expected = hashlib.md5(b"else").hexdigest(), named_texts.PTB_MD5["ptb/ptb.valid.txt"]
    problem = f"found MD5 {found}, expected {expected}; remove or replace it"
    assert refusal("ptb") == f"{paths[1]}: {problem}"


def test_any_utf8_file_is_a_text(tmp_path: Path) -> None:
    path = put(tmp_path, "çà et là 🌀\n".encode(), "poem.txt")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert load_text(str(path)) == data.Text("poem.txt", "çà et là 🌀\n", sha256, None, ())


@pytest.mark.parametrize(
    ("content", "text", "notes"),
    [
        (b"abc", "abc", ()),
        (b" \n\t", " \n\t", ()),
        (b"a\x0bb\x0cc\xc2\x85d", "a\x0bb\x0cc\x85d", ()),  # other separators are characters
        (b"\xef\xbb\xbfabc", "abc", ("byte order mark dropped",)),
        (b"\xff\xfea\0", "a", ("read as UTF-16 LE", "byte order mark dropped")),
        (b"\xfe\xff\0a", "a", ("read as UTF-16 BE", "byte order mark dropped")),
        (b"\xff\xfe\0\0a\0\0\0", "a", ("read as UTF-32 LE", "byte order mark dropped")),
        (b"\0\0\xfe\xff\0\0\0a", "a", ("read as UTF-32 BE", "byte order mark dropped")),
        (b"a\r\nb\n", "a\nb\n", ("1 CRLF line end read as LF",)),
        (b"a\rb\r", "a\nb\n", ("2 lone CR line ends read as LF",)),
        (
            b"a\r\r\n\n" + b"\r\n" * 1200,
            "a\n\n\n" + "\n" * 1200,
            ("1,201 CRLF line ends read as LF", "1 lone CR line end read as LF"),
        ),
        (pack(b"abc"), "abc", ("unpacked with gzip",)),
        (
            pack(b"\xef\xbb\xbfa\r\n"),
            "a\n",
            ("unpacked with gzip", "byte order mark dropped", "1 CRLF line end read as LF"),
        ),
    ],
)
def test_what_is_done_to_a_file_is_noted(
    tmp_path: Path, content: bytes, text: str, notes: tuple[str, ...]
) -> None:
    found = load_text(str(put(tmp_path, content, "file")))
    assert (found.text, found.notes) == (text, notes)
    assert found.sha256 == hashlib.sha256(content).hexdigest()


@given(plain_texts)
def test_a_text_is_the_same_whatever_its_line_ends(text: str) -> None:
    for end in ("\r\n", "\r", "\n"):
        content = text.replace("\n", end).encode()
        assert text_file.decode("text", content)[0] == text


@given(plain_texts)
def test_a_text_is_the_same_in_every_marked_encoding(text: str) -> None:
    for encoding, mark in MARKED.items():
        assert text_file.decode("text", mark + text.encode(encoding))[0] == text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"ab\xffcd", "byte 0xFF at offset 2 is not UTF-8; convert the file first"),
        ("naïve".encode("latin-1"), "byte 0xEF at offset 2 is not UTF-8; convert the file first"),
        (b"it\x92s", "byte 0x92 at offset 2 is not UTF-8; convert the file first"),
        (b"\xef\xbb\xbfab\x80", "byte 0x80 at offset 5 is not UTF-8; convert the file first"),
        (b"ab\xe2\x82", "byte 0xE2 at offset 2 is not UTF-8; convert the file first"),
        (b"\xff\xfea\0b", "byte 0x62 at offset 4 is not UTF-16 LE; convert the file first"),
        (b"\xfe\xff\0a\xdc\0", "byte 0xDC at offset 4 is not UTF-16 BE; convert the file first"),
        (
            b"\xff\xfe\0\0a\0\0\0\0\0\x11\0",
            "byte 0x00 at offset 8 is not UTF-32 LE; convert the file first",
        ),
        (b"", "the file is empty, expected text"),
        (b"\xef\xbb\xbf", "the file is empty, expected text"),
        (pack(b""), "the file is empty, expected text"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    assert refusal(put(tmp_path, content, "text.txt")) == f"text.txt: {problem}"


@pytest.mark.parametrize(
    ("content", "offset"),
    [
        (b"ab\0cd", 2),
        (b"\1\0\2\0\3\0", 1),
        (b"some\0words\0each with\0a NUL\0", 4),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 8),
        (b"\xef\xbb\xbf\xc3\xa9\0", 5),
        (b"\xff\xfe=\xd8\0\xdea\0\0\0", 8),
        (b"\0" * 64, 0),
        (pack(b"abc\0"), 3),
    ],
)
def test_a_nul_means_a_binary_file(tmp_path: Path, content: bytes, offset: int) -> None:
    assert refusal(put(tmp_path, content, "file")) == (
        f"file: found a NUL at offset {offset}, as in a binary file, expected text; remove it, "
        "or train on bytes with --symbols bytes"
    )


@pytest.mark.parametrize("text", ["naïve\n", "Все люди рождаются свободными\n", "a"])
@pytest.mark.parametrize("encoding", [name for name in MARKED if name != "utf-8"])
def test_a_wide_encoding_without_a_mark_is_named(tmp_path: Path, text: str, encoding: str) -> None:
    content = text.encode(encoding)
    kind, _, order = encoding.upper().rpartition("-")
    assert refusal(put(tmp_path, content, "file")) == (
        f"file: found a NUL at offset {content.index(0)}, as in {kind} {order} without a byte "
        "order mark, expected UTF-8; convert it, or add a byte order mark"
    )
    assert load_text(str(put(tmp_path, MARKED[encoding] + content, "file"))).text == text


@pytest.mark.parametrize(
    "content",
    [
        pack(BODY)[:-1],
        pack(BODY)[:15],
        pack(BODY)[:-8] + b"\0" * 8,
        b"\x1f\x8b",
        b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 20,
        b"\x1f\x8b nothing packed",
    ],
)
@pytest.mark.parametrize("symbols", data.SYMBOLS)
def test_a_broken_gzip_file_is_refused(tmp_path: Path, content: bytes, symbols: str) -> None:
    message = refusal(put(tmp_path, content, "file.gz"), symbols)
    assert message.startswith("file.gz: found a gzip file that doesn't unpack (")
    assert message.endswith("), expected a whole one; copy or pack it again")


@pytest.mark.parametrize("name", ["shakespear", "", "no/such/file"])
def test_a_name_that_is_no_text_is_refused(name: str) -> None:
    assert refusal(name) == (
        f"data: found '{name}', expected shakespeare, python-docs, ptb or the path of a text file"
    )


def test_a_folder_is_refused(tmp_path: Path) -> None:
    problem = "found a folder, expected a file; name a file in it"
    assert refusal(tmp_path) == f"{tmp_path}: {problem}"
    assert refusal(".") == f".: {problem}"


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, b"abc", "locked")

    def deny(*arguments: object) -> None:
        del arguments
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", deny)
    message = refusal(path)
    monkeypatch.undo()
    assert message == (
        f"{path}: found a file that can't be read (Permission denied), expected a readable one; "
        "see to its permissions, or copy it elsewhere"
    )


def test_a_name_too_long_for_a_file_is_refused() -> None:
    assert "File name too long" in refusal("a" * 5000)


def test_names_are_resolved_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, b"abc", "ptb")
    put(tmp_path, b"abc", "mine")
    monkeypatch.chdir(tmp_path)
    assert data.resolve_name("ptb") == "ptb"
    assert data.resolve_name("mine") == str(path.with_name("mine"))
    assert data.resolve_name("absent" * 999) == "absent" * 999


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of texts, with one in a folder of its own and some that aren't meant."""
    (tmp_path / "texts" / "sub").mkdir(parents=True)
    (tmp_path / "texts" / ".git").mkdir()
    for name in ("b.txt", "a.txt", "sub/c.md", ".hidden", ".git/config"):
        (tmp_path / "texts" / name).write_text(f"<{name}>")
    (tmp_path / "one").write_text("<one>")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["one", "texts/b.txt"], "<one><b.txt>"),
        (["texts/b.txt", "one"], "<b.txt><one>"),
        (["texts"], "<a.txt><b.txt><sub/c.md>"),
        (["one", "texts", "one"], "<one><a.txt><b.txt><sub/c.md><one>"),
        (["texts/*.txt"], "<a.txt><b.txt>"),
        (["texts/**/*.md", "texts/[b]*"], "<sub/c.md><b.txt>"),
    ],
)
@pytest.mark.parametrize("symbols", data.SYMBOLS)
def test_several_files_folders_and_patterns_are_one_text_in_the_order_given(
    corpus: Path, words: list[str], expected: str, symbols: str
) -> None:
    found = load_text(data.resolve_name("\n".join(words)), symbols)
    assert found.text == expected
    assert found.notes[0] == f"{found.text.count('<')} files are one text, in the order given"
    assert len(found.notes) == len(set(found.notes))


def test_the_order_of_files_is_part_of_a_texts_hash(corpus: Path) -> None:
    one, other = (load_text(data.resolve_name(names)) for names in ("one\ntexts", "texts\none"))
    assert one.sha256 != other.sha256 and one.name == "one and 3 more"


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty, a folder without files, expected some text"):
        data.resolve_name(str(tmp_path / "empty"))


def test_a_binary_file_among_texts_is_named(corpus: Path) -> None:
    (corpus / "texts" / "z.bin").write_bytes(b"\0\1\2")
    with pytest.raises(DataError, match="^z.bin: found a NUL at offset 0"):
        load_text(data.resolve_name("texts"))


def test_a_text_that_its_publisher_cut_stays_alone(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "load_ptb", lambda: (b"a b", b"c d", b"e f"))
    with pytest.raises(DataError, match="found ptb among 2 texts, expected it alone"):
        load_text(data.resolve_name("one\nptb"))


def test_every_byte_can_be_a_symbol(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf\r\n\0" + bytes(range(256))
    for packed in (content, pack(content)):
        text = load_text(str(put(tmp_path, packed, "file")), "bytes")
        assert text.text.encode("latin-1") == content
        assert make_vocabulary(text.text) == tuple(map(chr, range(256)))
        assert text.sha256 == hashlib.sha256(packed).hexdigest()
        assert text.notes[-1] == "symbols are bytes: bits per character are bits per byte"
        assert ("unpacked with gzip" in text.notes) == (packed != content)


@pytest.mark.parametrize("name", ["python-docs", "shakespeare"])
def test_named_texts_have_bytes_too(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expect_body(monkeypatch)
    put(nowhere, BODY)
    characters, symbols = load_text(name), load_text(name, "bytes")
    assert symbols.text.encode("latin-1") == characters.text.encode()
    assert symbols.sha256 == characters.sha256


def test_an_empty_file_has_no_bytes_either(tmp_path: Path) -> None:
    path = put(tmp_path, b"", "file")
    assert refusal(path, "bytes") == "file: the file is empty, expected text"


def test_other_symbols_are_refused() -> None:
    assert refusal("ptb", "words") == "symbols: found 'words', expected characters or bytes"


def test_the_scripts_of_the_world_read_back(data_dir: Path, tmp_path: Path) -> None:
    if not (packed := data_dir / "udhr2/udhr2.zip").is_file():
        pytest.skip("needs udhr2/udhr2.zip in TORSOR_DATA_DIR")
    with zipfile.ZipFile(packed) as languages:
        for name in LANGUAGES:
            content = languages.read(f"udhr2/{name}.txt")
            text = load_text(str(put(tmp_path, content, f"{name}.txt")))
            assert text.notes == ()
            vocabulary = make_vocabulary(text.text)
            ids = encode(text.text, vocabulary).tolist()
            assert "".join(vocabulary[i] for i in ids).encode() == content


def test_a_vocabulary_is_in_code_point_order() -> None:
    assert make_vocabulary("banana\n🌀é") == ("\n", "a", "b", "n", "é", "🌀")


@given(st.text())
def test_indices_read_back_as_the_text(text: str) -> None:
    vocabulary = make_vocabulary(text)
    ids = encode(text, vocabulary)
    assert ids.dtype == torch.int64
    assert "".join(vocabulary[i] for i in ids.tolist()) == text


def test_a_vocabulary_may_be_in_any_order() -> None:
    assert encode("abca", ("c", "🌀", "a", "b")).tolist() == [2, 3, 0, 2]


def test_an_unknown_character_is_named_with_its_code_point_and_place() -> None:
    with pytest.raises(DataError) as caught:
        encode("abc🌀🌀", ("a", "b", "c"))
    assert str(caught.value) == (
        "text: found '🌀' (U+1F300) at 3, expected one of the vocabulary's 3 characters"
    )
    with pytest.raises(DataError, match=r"found '\\ud800' \(U\+D800\) at 1, expected"):
        encode("a\ud800", ("a",))


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


def test_splits_are_cut_where_the_publisher_cut() -> None:
    ids = torch.arange(100)
    parts = split(ids, 9, (70, 80))
    assert torch.equal(torch.cat([parts.train, parts.valid, parts.test]), ids)
    assert [len(parts.train), len(parts.valid), len(parts.test)] == [70, 10, 20]
    with pytest.raises(DataError, match="the valid part has 10 characters, expected more than the"):
        split(ids, 10, (70, 80))


def test_characters_that_training_never_shows_are_counted_and_named() -> None:
    vocabulary = ("\n", "a", "b", "é", "\u2028")
    splits = Splits(torch.tensor([1, 1]), torch.tensor([1, 3, 3, 0, 4]), torch.tensor([2, 1]))
    assert describe_unseen(splits, vocabulary) == (
        r"validation: 3 characters, 4 times, never in training: '\n', 'é', '\u2028'",
        "test: 1 character, 1 time, never in training: 'b'",
    )


def test_a_text_without_unseen_characters_has_no_note() -> None:
    splits = Splits(torch.tensor([0, 1]), torch.tensor([1]), torch.tensor([0, 0]))
    assert describe_unseen(splits, ("a", "b")) == ()


@pytest.mark.parametrize(("unseen", "end"), [(10, "'i', 'j'"), (11, "'i', 'j' and 1 more")])
def test_a_note_names_ten_characters(unseen: int, end: str) -> None:
    vocabulary = tuple("abcdefghijklmno")
    splits = Splits(torch.tensor([14]), torch.tensor([14]), torch.arange(unseen))
    (note,) = describe_unseen(splits, vocabulary)
    assert note.startswith(f"test: {unseen} characters, {unseen} times, never in training: 'a', ")
    assert note.endswith(end)
