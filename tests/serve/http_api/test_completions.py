"""Answers as they look over HTTP."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.http_api.completions import PlainEvents, completion_choice, event_text
from serve.queries.generate import Character, Choice, Chunk
from serve.queries.logprobs import Logprobs
from serve.runtime.vocabulary import Decoder, Vocabulary


@given(st.text(), st.integers(0, 127), st.integers(0, 2**63 - 1))
def test_an_event_made_by_hand_is_the_one_that_json_makes(text: str, index: int, seed: int) -> None:
    piece = Chunk(index, "", text, None, None, None, seed)
    head = {"id": "cmpl-1", "object": "text_completion", "created": 5, "model": "osm"}
    expected = event_text({**head, "choices": [completion_choice(piece, None)]})
    assert PlainEvents(head).text(piece) == expected


BYTES = Vocabulary(tuple(map(chr, range(256))), "bytes")


@given(
    st.binary(max_size=12)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6).map(str.encode),
    st.data(),
)
def test_offsets_of_bytes_are_the_same_wherever_pieces_end(content: bytes, data: Any) -> None:
    size = data.draw(st.integers(1, 4))
    choice = Choice(0, "", 1, cast(Any, None), Decoder(BYTES), prompt_length=5)
    shown = Logprobs(choice, echo=False, top=0)
    pieces = [list(content[i : i + size]) for i in range(0, len(content), size)]
    found = [
        offset
        for piece in pieces
        for offset in shown.of(
            Chunk(0, "", "", [Character(BYTES.names[i], -0.5, {}) for i in piece], None, None, 1)
        ).text_offset
    ]
    text = content.decode("utf-8", "replace")
    assert len(found) == len(content) and found == sorted(found)
    assert set(found) == set(range(5, 5 + len(text)))  # every character has its bytes
    if "\ufffd" not in text:
        assert found == [5 + i for i, character in enumerate(text) for _ in character.encode()]


@pytest.mark.parametrize("content", [b"\xed\xa0", b"\xed\xa0\x80", b"\xed\xa0a", b"\xf0\x9f\x98"])
def test_bytes_that_become_no_character_have_the_places_of_their_stand_ins(content: bytes) -> None:
    choice = Choice(0, "", 1, cast(Any, None), Decoder(BYTES), prompt_length=5)
    characters = [Character(BYTES.names[byte], -0.5, {}) for byte in content]
    page = Logprobs(choice, echo=False, top=0).of(Chunk(0, "", "", characters, None, None, 1))
    stand_ins = content.decode("utf-8", "replace")
    assert set(page.text_offset) == set(range(5, 5 + len(stand_ins)))
