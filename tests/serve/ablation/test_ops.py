"""What each op does to a target, how its random control matches it, and the JSON Schema."""

import json
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_manifest import MANIFEST, TARGETS, n, weights

from serve.ablation.ablation import (
    Ablation,
    AblationError,
    Edit,
    ablation_hash,
    canonical,
    controls,
)
from serve.ablation.apply import apply_ablation, removed_json
from serve.ablation.norm import frobenius
from serve.ablation.ops import Part, operate
from serve.ablation.parse import ablation_schema, ops_of, parse_ablation
from serve.ablation.schur import couplings, ordered_schur

W = np.random.default_rng(0).normal(0.0, n**-0.5, (n, n))
WIDE = np.random.default_rng(1).normal(0.0, 1.0, (5, 9))
BASIS = np.linalg.qr(np.random.default_rng(2).normal(size=(n, 4)))[0].T  # (4, n)
REMOVALS = [
    Edit(target="t", op="schur", alpha=0.7, zero=("C→R", "CC")),
    Edit(target="t", op="zero", rows=(2, 5)),
    Edit(target="t", op="scale", factor=0.5, columns=(0, 4)),
    Edit(target="t", op="identity"),
    Edit(target="t", op="rank", keep=3),
    Edit(target="t", op="project", subspace="readout-visible"),
    Edit(target="t", op="project", subspace="readout-null"),
    Edit(target="t", op="freeze", rows=(0, 2), columns=(1, 3)),
]


def run(edit: Edit, matrix: Any = W) -> Any:
    return operate(Part(W=matrix, basis=BASIS), edit, "edit").W


def control(edit: Edit, seed: int, matrix: Any = W) -> Any:
    return run(Edit(op="random", like=edit, seed=seed), matrix)


def test_zero_and_scale_hit_the_rows_and_columns_they_name_and_nothing_else() -> None:
    for edit, factor in (
        (Edit(target="t", op="zero", rows=(1, 3), columns=(2, 9)), 0.0),
        (Edit(target="t", op="scale", factor=-2.0, rows=(1, 3), columns=(2, 9)), -2.0),
    ):
        expected = WIDE.copy()
        expected[1:3, 2:9] *= factor
        assert np.array_equal(run(edit, WIDE), expected)
    assert np.array_equal(
        run(Edit(target="t", op="zero", columns=(0, 1)), WIDE)[:, 1:], WIDE[:, 1:]
    )
    assert not run(Edit(target="t", op="zero"), np.array(3.0)).any()  # a number is a target too


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 4), st.integers(0, 100))
def test_rank_keeps_the_largest_singular_values_and_their_directions(keep: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).normal(size=(5, 9))
    outcome = operate(Part(W=matrix), Edit(target="t", op="rank", keep=keep), "edit")
    values = np.linalg.svd(matrix, compute_uv=False)
    expected = [*values[:keep], *np.zeros(5 - keep)]
    assert np.allclose(np.linalg.svd(outcome.W, compute_uv=False), expected, atol=1e-12)
    assert np.allclose(frobenius(matrix - outcome.W) ** 2, (values[keep:] ** 2).sum())
    assert np.allclose(outcome.detail["singular_values"], values)


def test_the_two_projections_split_a_matrix_at_what_the_readout_sees() -> None:
    seen, hidden = (run(edit) for edit in REMOVALS[5:7])
    assert np.allclose(seen + hidden, W, atol=1e-15)
    assert np.allclose(BASIS @ hidden, 0.0, atol=1e-15) and np.allclose(BASIS @ seen, BASIS @ W)
    outcome = operate(Part(W=W, basis=BASIS), REMOVALS[6], "edit")
    assert outcome.detail == {"subspace": "readout-null", "kept_dimension": n - 4, "of": n}
    with pytest.raises(AblationError, match="export the bundle again"):
        operate(Part(W=W), REMOVALS[5], "edit")


@pytest.mark.parametrize("edit", REMOVALS, ids=lambda edit: edit.subspace or edit.op)
def test_a_control_removes_the_same_mass_in_another_direction(edit: Edit) -> None:
    removed = W - run(edit)
    found = [W - control(edit, seed) for seed in (0, 1)]
    for dW in found:
        assert frobenius(dW) == pytest.approx(frobenius(removed), rel=1e-12)
        assert frobenius(dW - removed) > 0.1 * frobenius(removed)
    assert not np.allclose(found[0], found[1])
    assert np.array_equal(control(edit, 0), control(edit, 0))  # a seed is a direction


def test_controls_are_of_the_kind_that_they_control() -> None:
    schur, zero, _, _, rank, visible, *_ = REMOVALS
    # The coefficients: eigenvalues lose digits where they lie close together
    assert np.allclose(np.poly(control(schur, 3)), np.poly(W), atol=1e-11)
    assert np.linalg.matrix_rank(W - control(rank, 3), tol=1e-9) == n - 3
    singular = [np.linalg.svd(W - m, compute_uv=False) for m in (control(rank, 3), run(rank))]
    assert np.allclose(singular[0], singular[1], atol=1e-12)
    changed = np.flatnonzero((control(zero, 3) != W).any(axis=1))
    assert changed.tolist() == [2, 3, 4]
    assert np.linalg.matrix_rank(W - control(visible, 3), tol=1e-9) == n - 4


def test_a_control_of_what_removes_nothing_is_an_error() -> None:
    with pytest.raises(AblationError, match="something to match"):
        control(Edit(target="t", op="zero"), 0, np.zeros((n, n)))


def test_a_single_number_has_no_control() -> None:
    for edit in (Edit(target="t", op="zero"), Edit(target="t", op="zero", rows=(0, 1))):
        matrix = np.array([2.0, 3.0]) if edit.rows else np.array(3.0)
        with pytest.raises(AblationError, match=r"like: found a removal of a single number"):
            control(edit, 0, matrix)


PAGES: list[dict[str, Any]] = [
    {"target": "recurrent", "op": "schur", "alpha": 0.7, "zero": ["C→R"]},
    {"target": "bias", "op": "zero", "rows": [0, 4]},
    {"target": "input", "op": "scale", "factor": 0, "columns": [1, 2]},
    {"target": "gate", "op": "rank", "keep": 2},
    {"target": "head", "op": "identity"},
    {"op": "random", "like": {"target": "gate", "op": "rank", "keep": 2}, "seed": 4},
]


def parse(*pages: Any) -> Ablation:
    return parse_ablation({"edits": list(pages)}, MANIFEST)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page["op"])
def test_every_op_is_parsed_applied_reported_and_canonical(page: dict[str, Any]) -> None:
    ablation = parse(page)
    assert parse_ablation(json.loads(json.dumps(canonical(ablation))), MANIFEST) == ablation
    applied = apply_ablation(ablation, weights(), MANIFEST)
    removed = removed_json(applied.removed[0])
    assert json.loads(json.dumps(removed, allow_nan=False)) == removed
    assert 0 < removed["mass"] and removed["op"] == page["op"]
    assert removed["target"] == page.get("like", page)["target"]
    mass = pytest.approx(removed["mass"], rel=1e-12)
    assert applied.mass == {"mass": mass, "negligible": False}


def test_the_control_of_an_ablation_replaces_each_edit_once() -> None:
    made = controls(parse(*PAGES), 9)
    assert [edit.op for edit in made.edits] == ["random"] * len(PAGES)
    assert [edit.seed for edit in made.edits] == [*[9] * (len(PAGES) - 1), 4]
    assert controls(made, 5) == made
    masses = [
        [r.mass for r in apply_ablation(ablation, weights(), MANIFEST).removed[:1]]
        for ablation in (parse(*PAGES), made)
    ]
    assert np.allclose(masses[0], masses[1], rtol=1e-5)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"target": "bias", "op": "zero", "columns": [0, 1]}, "columns", "none: bias has the shape"),
    ({"target": "bias", "op": "zero", "rows": [0, 13]}, "rows", "0 <= start < stop <= 12"),
    ({"target": "bias", "op": "zero", "rows": [3, 3]}, "rows", "[start, stop]"),
    ({"target": "bias", "op": "zero", "rows": [True, 3]}, "rows", "[start, stop]"),
    ({"target": "bias", "op": "zero", "rows": None}, "rows", "found null"),
    ({"target": "bias", "op": "scale"}, "factor", "found nothing"),
    ({"target": "bias", "op": "scale", "factor": 1.0}, "factor", "other than 1"),
    ({"target": "bias", "op": "scale", "factor": float("inf")}, "factor", "finite"),
    ({"target": "gate", "op": "rank", "keep": 12}, "keep", "0 to 11"),
    ({"target": "gate", "op": "rank", "keep": 1.5}, "keep", "whole number"),
    ({"target": "gate", "op": "project", "subspace": "all"}, "op", "expected an op for gate"),
    ({"target": "bias", "op": "random", "like": PAGES[1]}, "target", "like, seed"),
    ({"op": "random", "seed": 1}, "like", "found nothing, expected an edit whose mass"),
    ({"op": "random", "like": PAGES[5]}, "like.op", "expected an op"),
    ({"op": "random", "like": {**PAGES[1], "rows": [9, 3]}}, "like.rows", "start < stop"),
    ({"op": "random", "like": PAGES[1], "seed": -1}, "seed", "0 to 2^53 - 1"),
    ({"op": "symmetry", "kind": "mirror"}, "kind", "it has none"),
]


@pytest.mark.parametrize(("page", "key", "sentence"), WRONG)
def test_wrong_values_are_refused_by_field(page: Any, key: str, sentence: str) -> None:
    with pytest.raises(AblationError) as caught:
        parse(page)
    assert caught.value.field == f"ablation.edits[0].{key}" and sentence in str(caught.value)


def test_what_may_be_done_hangs_on_shape_and_on_what_the_manifest_names() -> None:
    found = {target.name: ops_of(target) for target in MANIFEST.targets}
    square = ["schur", "zero", "scale", "identity", "rank", "random"]
    matrix, vector = ["zero", "scale", "rank", "random"], ["zero", "scale", "random"]
    assert found == {
        **dict.fromkeys(("recurrent", "gate", "head"), square),
        **dict.fromkeys(("input", "misdescribed"), matrix),
        "bias": vector,
    }
    assert list(found) == [name for name, *_ in TARGETS]


def test_hashes_tell_ops_and_their_keys_apart() -> None:
    pages = [
        *PAGES,
        {**PAGES[1], "rows": [0, 5]},
        {**PAGES[2], "factor": 0.5},
        {**PAGES[5], "seed": 5},
        {"target": "bias", "op": "zero"},
    ]
    assert len({ablation_hash(parse(page)) for page in pages}) == len(pages)


def test_the_schema_takes_what_the_parser_takes_and_refuses_what_it_refuses() -> None:
    validator = jsonschema_rs.validator_for(ablation_schema())
    jsonschema_rs.meta.validate(ablation_schema())
    assert validator.is_valid({"name": "all", "edits": PAGES})
    assert validator.is_valid(canonical(parse(*PAGES)))
    by_shape = [page for page, key, _ in WRONG if key not in ("op", "kind")]
    by_shape.remove(WRONG[7][0])  # JSON has no infinity
    sizes = [{"target": "bias", "op": "zero", "rows": r} for r in ([0, 13], [3, 3])]
    unsaid = [*sizes, WRONG[0][0], WRONG[8][0], WRONG[14][0]]  # hang on the model
    for page in by_shape:
        assert validator.is_valid({"edits": [page]}) == (page in unsaid), page


def test_a_schur_control_may_use_couplings_that_the_edit_keeps() -> None:
    edit = REMOVALS[0]
    form = ordered_schur(W)
    masks = couplings(form, len(W))
    moved = form.Q.T @ (W - control(edit, 1)) @ form.Q
    assert np.abs(moved[~masks["RR"]]).max() < 1e-12 and (np.abs(moved[masks["RR"]]) > 0).all()
