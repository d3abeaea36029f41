import pytest

from serve.vocabulary import Vocabulary
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
