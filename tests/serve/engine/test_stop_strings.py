import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.engine import stop_strings as module
from serve.engine.stop_strings import StopFound, StopMatcher, StopStrings

Stops = list[tuple[int, ...]]
characters = st.lists(st.integers(0, 2), max_size=30)
stop_strings = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)
stops = st.lists(stop_strings, min_size=1, max_size=4)


def end_by_definition(text: list[int], stops: Stops) -> tuple[int, int] | None:
    """The first place where a stop string ends, and the longest one that ends there."""
    for end in range(1, len(text) + 1):
        found = [i for i, stop in enumerate(stops) if tuple(text[:end])[-len(stop) :] == stop]
        if found:
            return end, max(found, key=lambda i: len(stops[i]))
    return None


@given(characters, stops, st.lists(st.integers(1, 7), max_size=30))
def test_a_text_ends_where_the_definition_says_however_it_is_cut(
    text: list[int], stops: Stops, cuts: list[int]
) -> None:
    matcher, place, found = StopMatcher(stops), 0, None
    for size in [*cuts, len(text) + 1]:
        piece = text[place : place + size]
        found = matcher.feed(piece)
        if found is not None:
            break
        place += len(piece)
    expected = end_by_definition(text, stops)
    if expected is None:
        assert found is None
    else:
        end, index = expected
        assert found is not None
        assert place + found.consumed == end
        assert stops[found.index] == stops[index]
        assert found.length == len(stops[index])


@given(characters, stops)
def test_what_is_held_back_is_the_longest_suffix_that_can_still_become_a_stop_string(
    text: list[int], stops: Stops
) -> None:
    matcher = StopMatcher(stops)
    if matcher.feed(text) is not None:
        return
    starts = {stop[:n] for stop in stops for n in range(1, len(stop))}
    suffixes = [n for n in range(1, len(text) + 1) if tuple(text[-n:]) in starts]
    assert matcher.num_held == max(suffixes, default=0)


def test_an_overlapping_start_is_not_forgotten() -> None:
    matcher = StopMatcher([(1, 1, 2)])
    assert matcher.feed([1, 1, 1]) is None
    assert matcher.feed([2]) == StopFound(index=0, length=3, consumed=1)


def test_the_choices_of_a_request_share_the_work_on_its_stop_strings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = list[tuple[int, ...]]()
    real = module.borders

    def noted(stop: tuple[int, ...]) -> list[int]:
        done.append(stop)
        return real(stop)

    monkeypatch.setattr(module, "borders", noted)
    strings = StopStrings([(1, 1, 2), (2,)])
    first, second = StopMatcher(strings), StopMatcher(strings)
    assert first.feed([1, 1]) is None and second.feed([1, 1, 2]) == StopFound(0, 3, 3)
    assert done == [(1, 1, 2), (2,)]
    assert first.num_held == 2  # what they follow is their own
