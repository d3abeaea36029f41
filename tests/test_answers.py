"""Answers as they look over HTTP."""

from hypothesis import given
from hypothesis import strategies as st

from serve.answers import PlainEvents, completion_choice, event_text
from serve.writing import Piece


@given(st.text(), st.integers(0, 127), st.integers(0, 2**63 - 1))
def test_an_event_made_by_hand_is_the_one_that_json_makes(text: str, index: int, seed: int) -> None:
    piece = Piece(index, "", text, None, None, None, seed)
    head = {"id": "cmpl-1", "object": "text_completion", "created": 5, "model": "osm"}
    expected = event_text({**head, "choices": [completion_choice(piece, None)]})
    assert PlainEvents(head).text(piece) == expected
