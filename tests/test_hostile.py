"""What a hostile or just a large request may cost: work is counted, not timed."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from serve.wire.errors import MAX_FIELD, MAX_MESSAGE, RequestError


class Closed(str):
    """A text that may be cut, and not be gone through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("every character is looked at")


def printable_by_definition(text: str, length: int) -> str:
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= length else shown[: length - 1] + "…"


def test_an_error_looks_at_no_more_of_a_text_than_it_shows() -> None:
    error = RequestError("not_found", Closed("a" * 5_000), Closed("b" * 5_000))
    assert error.message == "a" * (MAX_MESSAGE - 1) + "…"
    assert error.field == "b" * (MAX_FIELD - 1) + "…"


@given(st.integers(0, 12), st.text("a\n\ud800é…", max_size=12))
def test_an_error_shows_what_it_would_show_of_the_whole_text(padding: int, end: str) -> None:
    for length in (MAX_MESSAGE, MAX_FIELD):
        text = "a" * (length - padding) + end
        error = RequestError("not_found", text, text)
        assert error.message == printable_by_definition(text, MAX_MESSAGE)
        assert error.field == printable_by_definition(text, MAX_FIELD)
