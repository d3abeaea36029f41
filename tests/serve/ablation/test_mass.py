"""The mass of an ablation as a whole: however it is cut into edits, it is the same."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_manifest import MANIFEST, n, weights

from serve.ablation.apply import apply_ablation, divisor_of, mass_page, total_mass
from serve.ablation.norm import frobenius
from serve.ablation.parse import parse_ablation

SQUARE = next(t.name for t in MANIFEST.targets if t.shape == (n, n))


def mass_of(*edits: dict[str, Any]) -> dict[str, Any]:
    return apply_ablation(
        parse_ablation({"edits": list(edits)}, MANIFEST), weights(), MANIFEST
    ).mass


def zero(start: int, stop: int) -> dict[str, Any]:
    return {"target": SQUARE, "op": "zero", "rows": [start, stop]}


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, n - 1), unique=True, max_size=4))
def test_an_ablation_has_one_mass_however_it_is_cut(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), n]
    parts = [zero(*pair) for pair in zip(ends, ends[1:], strict=False)]
    assert mass_of(*parts) == {"mass": pytest.approx(1.0, rel=1e-12), "negligible": False}
    identity = {"target": SQUARE, "op": "identity"}
    whole = pytest.approx(mass_of(identity)["mass"], rel=1e-12)
    assert mass_of(*reversed(parts), identity)["mass"] == whole


def test_what_is_undone_has_no_mass() -> None:
    scale = {"target": SQUARE, "op": "scale"}
    mass = mass_of({**scale, "factor": 2.0}, {**scale, "factor": 0.5})
    assert mass == {"mass": 0.0, "negligible": False} and divisor_of(mass) is None


def test_targets_count_once_each_with_all_their_entries() -> None:
    before = weights()
    gate, head = before["gates"][n : 2 * n, :n], before["heads"][1]
    named = [before["recurrent"], gate, head, before["bias"]]
    gone = [before["recurrent"][:3], gate, head, before["bias"] / 2]
    edits = [zero(0, 3), *({"target": name, "op": "zero"} for name in ("gate", "head"))]
    mass = mass_of(*edits, {"target": "bias", "op": "scale", "factor": 0.5})["mass"]
    norms = [np.linalg.norm([frobenius(part) for part in parts]) for parts in (gone, named)]
    assert mass == pytest.approx(norms[0] / norms[1], rel=1e-6)


def test_targets_of_the_same_entries_count_once() -> None:
    halves = [{"target": n, "op": "scale", "factor": 0.5} for n in ("input", "misdescribed")]
    assert mass_of(*halves)["mass"] == pytest.approx(0.75, rel=1e-6)


def test_a_mass_relative_to_nothing_is_that_of_a_single_edit() -> None:
    nothing, named = {"w": np.zeros(3)}, {"w": np.array([True, True, False])}
    assert total_mass(nothing, {"w": np.array([0.0, 1.0, 0.0])}, named) == np.inf
    assert total_mass(nothing, {"w": np.array([0.0, 0.0, 1.0])}, named) == 0.0
    assert mass_page(np.inf, [1.0], [False]) == {"mass": 1.0, "negligible": False}
    assert mass_page(np.inf, [1.0, 1.0], [False, False])["mass"] is None


def test_rounding_error_divides_nothing() -> None:
    assert mass_page(1e-8, [1e-8, 1e-9], [True, True]) == {"mass": 1e-8, "negligible": True}
    assert divisor_of({"mass": 1e-8, "negligible": True}) is divisor_of(None) is None
    assert divisor_of({"mass": 0.5, "negligible": False}) == 0.5
