"""What is kept by recency: made once, given without waiting, dropped in order."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from serve.ablation import schur
from serve.ablation.ops import forms, kept_schur
from serve.lru_cache import LruCache


def test_many_who_ask_at_once_get_one_thing_and_others_do_not_wait() -> None:
    kept, made, go, asked = (
        LruCache[str, str](100),
        list[int](),
        threading.Event(),
        threading.Event(),
    )
    kept.get("known", lambda: ("at hand", 1))

    def make() -> tuple[str, int]:
        made.append(1)
        asked.set()
        assert go.wait(30)
        return "slow", 1

    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(kept.get, "slow", make) for _ in range(8)]
        assert asked.wait(30)
        assert kept.get("known", lambda: ("another", 1)) == "at hand"
        assert kept.get("new", lambda: ("quick", 1)) == "quick"
        assert kept.find("slow") is None
        go.set()
        assert {future.result(30) for future in waiting} == {"slow"}
    assert len(made) == 1 and kept.find("slow") == "slow" and kept.num_bytes == 3


def test_what_fails_is_raised_and_made_anew() -> None:
    kept = LruCache[str, str](100)

    def fail() -> tuple[str, int]:
        raise ValueError("no such thing")

    for _ in range(2):
        with pytest.raises(ValueError, match="no such thing"):
            kept.get("x", fail)
    assert kept.get("x", lambda: ("made", 1)) == "made" and len(kept) == 1


def test_the_least_recently_used_go_first_and_the_bound_is_of_bytes() -> None:
    kept = LruCache[str, str](10)
    for key, size in (("a", 4), ("b", 4), ("a", 4), ("c", 4), ("large", 11)):
        kept.get(key, lambda key=key, size=size: (key, size))  # type: ignore[misc]
        assert kept.num_bytes <= 10
    assert [kept.find(key) for key in ("a", "b", "c", "large")] == ["a", None, "c", None]
    kept.forget(lambda key: key == "a")
    assert (len(kept), kept.num_bytes, kept.find("a")) == (1, 4, None)


def test_the_form_of_a_matrix_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "max_bytes", 2 * 2 * 8 * 9 * 9)  # two forms of 9 x 9
    W = np.random.default_rng(3).standard_normal((9, 9))
    form, expected = kept_schur(W), schur.ordered_schur(W)
    assert kept_schur(W.copy()) is kept_schur(np.asfortranarray(W)) is form
    assert (form.T == expected.T).all() and (form.Q == expected.Q).all()
    others = [kept_schur(A) for A in (W.T, W.astype(np.float32))]
    assert not any((other.T == form.T).all() for other in others)
    assert len(forms) == 2 and forms.num_bytes <= forms.max_bytes
    again = kept_schur(W)  # the others took its place
    assert again is not form and (again.T == form.T).all()


def test_what_has_no_form_is_refused_each_time() -> None:
    number = len(forms)
    for A, why in ((np.ones((2, 3)), "square"), (np.full((2, 2), np.nan), "NaN")):
        for _ in range(2):
            with pytest.raises(ValueError, match=why):
                kept_schur(A)
    assert len(forms) == number
