import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.runtime.vocabulary import Decoder, Vocabulary
from serve.wire.errors import RequestError

LETTERS = Vocabulary((" ", "?", "a", "b", "é"))


def test_encoding_and_decoding_are_inverse() -> None:
    indices = LETTERS.encode("a béa?", "prompt", "error")
    assert LETTERS.decode(indices.tolist()) == "a béa?"


@pytest.mark.parametrize("text", ["abc", "ab\N{EM DASH}", "ab\ud800", "ab\0"])
def test_an_unknown_character_is_named_with_its_code_point_and_place(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        LETTERS.encode(text, "prompt", "error")
    assert caught.value.field == "prompt"
    assert f"U+{ord(text[2]):04X}" in caught.value.message
    assert "index 2" in caught.value.message
    caught.value.message.encode()  # an answer can carry it


def test_unknown_characters_can_be_skipped_or_replaced() -> None:
    assert LETTERS.decode(LETTERS.encode("axbx", "prompt", "skip").tolist()) == "ab"
    assert LETTERS.decode(LETTERS.encode("axb", "prompt", "replace").tolist()) == "a?b"


def test_an_empty_text_has_no_indices() -> None:
    assert len(LETTERS.encode("", "prompt", "error")) == 0


BYTES = Vocabulary(tuple(map(chr, range(256))), "bytes")
PLAIN = Vocabulary(tuple("abc"), "bytes")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_of_bytes_is_its_utf8(text: str) -> None:
    indices = BYTES.encode(text, "prompt", "error")
    assert bytes(indices.tolist()) == text.encode()
    assert BYTES.decode(indices.tolist()) == text


@given(st.lists(st.integers(0, 255)), st.data())
def test_pieces_of_bytes_make_the_whole_text_and_no_half_character(
    indices: list[int], data: st.DataObject
) -> None:
    decoder, text, rest = Decoder(BYTES), "", indices
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        piece, rest = decoder.feed(rest[:count]), rest[count:]
        text += piece
    text += decoder.feed([], final=True)
    assert text == bytes(indices).decode("utf-8", "replace")


def test_characters_of_which_a_byte_is_missing_are_named_as_a_whole() -> None:
    with pytest.raises(RequestError, match=r"found 'é' \(U\+00E9\) at index 2, expected one of"):
        PLAIN.encode("abé", "prompt", "error")
    assert PLAIN.encode("abéc", "prompt", "skip").tolist() == [0, 1, 2]


@given(st.text("aé→𝄞", max_size=8), st.sets(st.sampled_from(sorted("aé→𝄞".encode()))))
def test_characters_are_whole_whichever_bytes_are_missing(text: str, missing: set[int]) -> None:
    symbols = tuple(chr(byte) for byte in [0x3F, *sorted(set("aé→𝄞".encode()) - missing)])
    vocabulary = Vocabulary(symbols, "bytes")
    inside = [c for c in text if not missing & set(c.encode())]
    expected = {c: text.count(c) for c in text if c not in inside}
    found, counts = vocabulary.encode_counted(text, "prompt", "skip")
    assert vocabulary.decode(found) == "".join(inside) and counts == expected
    replaced, counts = vocabulary.encode_counted(text, "prompt", "replace")
    assert counts == expected
    assert vocabulary.decode(replaced) == "".join(c if c in inside else "?" for c in text)
    if expected:
        place = next(i for i, c in enumerate(text) if c not in inside)
        with pytest.raises(RequestError, match=f"at index {place}, expected"):
            vocabulary.encode(text, "prompt", "error")


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(RequestError, match="surrogate") as caught:
        BYTES.encode("ab\ud800", "prompt", "skip")
    caught.value.message.encode()


def test_bytes_have_the_names_that_openai_gives_them() -> None:
    assert BYTES.names[0x41] == "A"
    assert BYTES.names[0xE2] == "bytes:\\xe2"
