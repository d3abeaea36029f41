"""Ablations as data: parsing, identity, what they remove, what a bundle offers."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_manifest import ALL, MANIFEST, TARGETS, n

from serve.ablation import ops as operations
from serve.ablation.ablation import Ablation, AblationError, Edit, ablation_hash, canonical
from serve.ablation.apply import Applied, apply_ablation, removed_json, structure
from serve.ablation.norm import frobenius
from serve.ablation.ops import Outcome
from serve.ablation.parse import parse_ablation
from serve.ablation.schur import couplings, ordered_schur, split
from serve.wire.codec import to_json

ZERO = {"target": "bias", "op": "zero"}
IDENTITY = Edit(target="recurrent", op="identity")
EDIT = "ablation.edits[0]"
SUBSETS = [("RR",), ("C→R",), ("CC",), ("RR", "CC"), ("C→R", "CC"), ("RR", "C→R", "CC")]
Weights = dict[str, NDArray[Any]]


@pytest.fixture
def weights() -> Weights:
    normal = np.random.default_rng(0).normal
    shapes = {"recurrent": (n, n), "input": (n, 3), "gates": (4 * n, n), "heads": (3, 4, 4)}
    made = {name: normal(0, 0.25, shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "bias": np.ones(n, np.float32)}


def schur_edit(*zero: str, alpha: float = 0.7, target: str = "recurrent") -> Edit:
    return Edit(target=target, op="schur", alpha=alpha, zero=zero)


def parse(page: Any) -> Ablation:
    return parse_ablation(page, MANIFEST)


def apply(weights: Weights, *edits: Edit) -> Applied:
    return apply_ablation(Ablation(name="", edits=edits), weights, MANIFEST)


def page_of(**edit: Any) -> dict[str, Any]:
    return {"edits": [{"target": "recurrent", "op": "schur", "zero": ["CC"]} | edit]}


@pytest.mark.parametrize("page", [None, {}, {"edits": []}, {"name": ""}])
def test_no_edits_are_the_empty_ablation_and_edit_no_weight(page: Any, weights: Weights) -> None:
    assert parse(page) == Ablation(name="", edits=())
    assert (apply(weights).weights, apply(weights).removed) == ({}, ())


REFUSED: list[tuple[Any, str, str]] = [
    ([], "ablation", "found [], expected an object"),
    ({"edit": []}, "ablation.edit", "no keys but name, edits"),
    ({"name": 3}, "ablation.name", "found 3, expected a string of at most 100 characters"),
    ({"name": "x" * 101}, "ablation.name", "at most 100"),
    ({"name": "\ud800"}, "ablation.name", "expected a string"),
    ({"edits": None}, "ablation.edits", "found null, expected a list"),
    ({"edits": [ZERO] * 65}, "ablation.edits", "found 65 edits, expected a list of at most 64"),
    ({"edits": [ZERO, 4]}, "ablation.edits[1]", "found 4, expected an object"),
    ({"edits": [ZERO, {**ZERO, "colour": 1}]}, "ablation.edits[1].colour", "leave it out"),
    ({"edits": [{**ZERO, "alpha": 0.9}]}, f"{EDIT}.alpha", "no keys but target, op"),
    ({"edits": [{"op": "zero"}]}, f"{EDIT}.target", "found nothing, expected a target of small"),
    (page_of(target="recurent"), f"{EDIT}.target", "recurrent, input, misdescribed, gate"),
    ({"edits": [{"target": "bias"}]}, f"{EDIT}.op", "found nothing"),
    (page_of(op="shur"), f"{EDIT}.op", "found 'shur', expected an op; use: schur, zero, scale,"),
    (page_of(target="misdescribed"), f"{EDIT}.op", "expected an op for misdescribed; use: zero"),
    ({"edits": [{"target": "bias", "op": "identity"}]}, f"{EDIT}.op", "use: zero"),
    ({"edits": [{"target": "bias", "op": "rank"}]}, f"{EDIT}.op", "use: zero, scale, random"),
    *[
        (page_of(alpha=alpha), f"{EDIT}.alpha", "expected a number, 0 < alpha <= 1")
        for alpha in (0, 0.0, -0.5, 1.01, 10**400, float("nan"), float("inf"), True, "0.9", None)
    ],
    *[
        (page_of(zero=zero), f"{EDIT}.zero", "expected a list of one or more of RR, C→R, CC")
        for zero in ([], None, "CC", ["cc"], ["CC", "CC"], ["C->R", "C→R"], ["CC", 3], {"CC": 1})
    ],
]


@pytest.mark.parametrize(("page", "field", "sentence"), REFUSED)
def test_every_wrong_ablation_is_refused_by_field(page: Any, field: str, sentence: str) -> None:
    with pytest.raises(AblationError) as caught:
        parse(page)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: found ") and sentence in str(caught.value)


def test_an_ablation_parses_and_its_canonical_form_writes_every_default_out() -> None:
    page = {"name": "a → b", "edits": [*page_of(zero=["CC", "C->R"])["edits"], ZERO]}
    zero = Edit(target="bias", op="zero", alpha=None, zero=())
    expected = Ablation(name="a → b", edits=(schur_edit("C→R", "CC", alpha=0.9), zero))
    assert parse(page) == expected
    edit = {"target": "recurrent", "op": "schur", "alpha": 0.9, "zero": ["C→R", "CC"]}
    assert canonical(expected) == {"name": "a → b", "edits": [edit, ZERO]}
    assert parse(json.loads(json.dumps(canonical(expected)))) == expected


def test_the_hash_is_that_of_the_canonical_edits() -> None:
    # printf '[{"alpha":0.9,"op":"schur","target":"recurrent","zero":["CC"]}]' | sha256sum
    assert ablation_hash(parse(page_of())) == "de4b1912031ac800"
    a, b = schur_edit("CC"), schur_edit("RR")
    many = [(), (a,), (b,), (a, b), (b, a), (a, a), (schur_edit("CC", alpha=0.8),)]
    assert len({ablation_hash(Ablation(name="", edits=edits)) for edits in many}) == len(many)


@settings(deadline=None, max_examples=20)
@given(st.permutations(["target", "op", "alpha", "zero"]), st.permutations(["RR", "C->R", "CC"]))
def test_the_hash_hangs_on_no_key_order_spelling_or_name(keys: list[str], zero: list[str]) -> None:
    edit = page_of(alpha=1, zero=zero)["edits"][0]
    page = {"name": "".join(keys), "edits": [{key: edit[key] for key in keys}]}
    expected = Ablation(name="", edits=(schur_edit("RR", "C→R", "CC", alpha=1.0),))
    assert ablation_hash(parse(page)) == ablation_hash(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("zero", SUBSETS)
def test_a_schur_edit_removes_the_named_couplings_and_keeps_the_rest(
    zero: tuple[str, ...], dtype: type[np.floating[Any]], weights: Weights
) -> None:
    W = weights["recurrent"].astype(dtype)
    form, eps = ordered_schur(W), float(np.finfo(dtype).eps)
    masks = couplings(form, split(form, 0.7))
    applied = apply({"recurrent": W}, schur_edit(*zero))
    edited, removed = applied.weights["recurrent"].astype(np.float64), applied.removed[0]
    gone = np.any([masks[name] for name in zero], axis=0)
    assert np.allclose(form.Q.T @ edited @ form.Q, np.where(gone, 0, form.T), atol=20 * eps)
    assert removed.mass == pytest.approx(frobenius(form.T[gone]) / frobenius(form.T), rel=20 * eps)
    assert removed.mass == pytest.approx(frobenius(edited - W) / frobenius(W))
    assert removed.warnings == ()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.sampled_from(SUBSETS), st.floats(0.3, 1.0))
def test_a_schur_edit_keeps_the_spectrum(seed: int, zero: tuple[str, ...], alpha: float) -> None:
    W = np.random.default_rng(seed).normal(0.0, n**-0.5, (n, n))
    try:
        edited = apply({"recurrent": W}, schur_edit(*zero, alpha=alpha)).weights["recurrent"]
    except AblationError as error:
        assert error.field == f"{EDIT}.zero"  # this split has none of these couplings
        return
    # Coefficients, not eigenvalues: these don't lose digits where eigenvalues lie close together
    assert np.allclose(np.poly(edited), np.poly(W), atol=1e-11)


def test_what_a_schur_edit_removed_is_reported_whole(weights: Weights) -> None:
    page = removed_json(apply(weights, schur_edit("C→R")).removed[0])
    assert json.loads(json.dumps(page, allow_nan=False)) == page
    form = ordered_schur(weights["recurrent"])
    assert (page["target"], page["op"], page["alpha"]) == ("recurrent", "schur", 0.7)
    assert (page["n_R"], page["n_R"] + page["n_C"], page["rho"]) == (split(form, 0.7), n, form.rho)
    assert page["eigenvalues"] == [[z.real, z.imag] for z in form.eigenvalues]
    assert page["block_sizes"] == [block.size for block in form.blocks]
    assert page["backward_error"] == form.backward_error < 1e-14
    assert page["mass"] == pytest.approx(page["masses"]["C→R"], rel=1e-5)


def test_zero_and_identity_report_their_mass_and_no_spectrum(weights: Weights) -> None:
    applied = apply(weights, Edit(target="bias", op="zero"), IDENTITY)
    assert not applied.weights["bias"].any()
    assert np.array_equal(applied.weights["recurrent"], np.eye(n, dtype=np.float32))
    norm = frobenius(weights["bias"])
    expected = {"target": "bias", "op": "zero", "mass": 1.0, "norm": norm, "warnings": []}
    assert removed_json(applied.removed[0]) == expected
    W = weights["recurrent"]
    assert applied.removed[1].mass == pytest.approx(frobenius(np.eye(n) - W) / frobenius(W))


@pytest.mark.parametrize("op", ALL)
@pytest.mark.parametrize("name", ["gate", "head"])
def test_an_edit_of_a_slice_leaves_the_other_bits(name: str, op: str, weights: Weights) -> None:
    weight, part = {"gate": ("gates", np.s_[n : 2 * n]), "head": ("heads", np.s_[1:2])}[name]
    edit = schur_edit("RR", "C→R", "CC", target=name) if op == "schur" else Edit(target=name, op=op)
    changed = apply(weights, edit).weights[weight] != weights[weight]
    assert changed[part].any() and not np.delete(changed, part, axis=0).any()


def test_only_edited_weights_come_back_as_new_arrays_of_the_same_kind(weights: Weights) -> None:
    weights["recurrent"] = np.asfortranarray(weights["recurrent"])
    before = {name: weight.copy() for name, weight in weights.items()}
    edited = apply(weights, schur_edit("CC"), Edit(target="head", op="zero")).weights
    assert list(edited) == ["recurrent", "heads"]
    for name, weight in edited.items():
        assert (weight.dtype, weight.shape) == (before[name].dtype, before[name].shape)
        assert weight.flags.c_contiguous and not np.shares_memory(weight, weights[name])
    assert all(np.array_equal(weights[name], before[name]) for name in weights)


def test_edits_of_one_weight_are_applied_in_order(weights: Weights) -> None:
    applied = apply(weights, *(Edit(target="gate", op=op) for op in ("zero", "identity")))
    assert np.array_equal(applied.weights["gates"][n : 2 * n], np.eye(n))
    assert [removed.mass for removed in applied.removed] == [1.0, 1.0]
    assert "was 0 before this edit" in applied.removed[1].warnings[0]


ORTHOGONAL = np.linalg.qr(np.random.default_rng(2).standard_normal((n, n)))[0]
NORMAL = ORTHOGONAL @ np.diag(np.arange(1.0, n + 1.0)) @ ORTHOGONAL.T
SLIGHT = np.diag(np.arange(n, 0, -1)) + 1e-9 * np.eye(n, k=1)
TIED = np.diag([1.0, 0.7 + 1e-8, 0.7 - 1e-8, *np.full(n - 3, 0.1)]) + np.eye(n, k=1)
DOUBTFUL: list[tuple[Edit, Any, str]] = [
    (schur_edit("CC"), NORMAL, "is rounding error of float64"),  # it has no couplings at all
    (schur_edit("CC"), SLIGHT.astype(np.float32), "is rounding error of float32"),
    (schur_edit("RR", "CC"), np.triu(np.ones((n, n))), "CC has no entries"),
    (schur_edit("RR"), TIED, "ill-conditioned split: rounding moves the moduli of 2 blocks"),
]


@pytest.mark.parametrize(("edit", "W", "warning"), DOUBTFUL)
def test_what_is_doubtful_about_an_edit_is_said(edit: Edit, W: Any, warning: str) -> None:
    removed = apply({"recurrent": W}, edit).removed[0]
    assert len(removed.warnings) == 1 and warning in removed.warnings[0]


IMPOSSIBLE: list[tuple[Edit, Any, str, str]] = [
    (schur_edit("CC"), ORTHOGONAL, f"{EDIT}.zero", "at n_R = 12, n_C = 0: CC has no entries"),
    (schur_edit("C→R", "CC"), ORTHOGONAL, f"{EDIT}.zero", "C→R has no entries and CC has no"),
    (schur_edit("CC"), np.diag([*np.ones(n - 1), 0.1]), f"{EDIT}.zero", "n_C = 1: CC has no"),
    (schur_edit("RR"), np.eye(n), EDIT, "changes no entry of recurrent"),
    (IDENTITY, np.eye(n), EDIT, "changes no entry"),
    (Edit(target="recurrent", op="zero"), np.zeros((n, n)), EDIT, "changes no entry"),
    (schur_edit("RR"), np.full((n, n), np.nan), f"{EDIT}.target", "NaN or infinite"),
    (schur_edit("RR"), np.full((n, n), 1e308), EDIT, "no Schur form"),
    (schur_edit("RR"), np.eye(n + 1), f"{EDIT}.target", "[13, 13], expected floating point [12,"),
    (schur_edit("RR"), np.eye(n, dtype=int), f"{EDIT}.target", "found int64 [12, 12]"),
    (Edit(target="gate", op="zero"), np.eye(n), f"{EDIT}.target", "found float64 [6, 12]"),
    (Edit(target="bias", op="zero"), np.eye(n), f"{EDIT}.target", "found nothing"),
    (Edit(target="lost", op="zero"), np.eye(n), f"{EDIT}.target", "expected a target of small"),
]


@pytest.mark.parametrize(("edit", "W", "field", "sentence"), IMPOSSIBLE)
def test_an_edit_that_does_nothing_or_cannot_be_done_is_refused(
    edit: Edit, W: Any, field: str, sentence: str
) -> None:
    short = np.ones((3 * n // 2, n))  # ends inside the gate's slice
    with pytest.raises(AblationError) as caught:
        apply({"recurrent": W, "gates": short}, edit)
    assert caught.value.field == field and sentence in str(caught.value)


def test_the_refused_edit_is_named_by_its_place(weights: Weights) -> None:
    with pytest.raises(AblationError, match=r"^ablation\.edits\[1\]: found that it changes no"):
        apply(weights, *[Edit(target="bias", op="zero")] * 2)


def test_a_result_beyond_the_dtype_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = operations.OPERATIONS["zero"]
    blow_up = zero._replace(run=lambda part, edit, where: Outcome(W=part.W * 1e39))
    monkeypatch.setitem(operations.OPERATIONS, "zero", blow_up)
    with pytest.raises(AblationError, match="found a result that isn't finite"):
        apply({"bias": np.ones(n, np.float32)}, Edit(target="bias", op="zero"))


def test_structure_describes_every_target_in_plain_finite_json(weights: Weights) -> None:
    weights["heads"][:] = 0.0
    pages = to_json(structure(MANIFEST, weights))["targets"]
    assert json.loads(json.dumps(pages, allow_nan=False)) == pages
    assert [page["name"] for page in pages] == [name for name, *_ in TARGETS]
    plain: dict[str, Any] = {"name": "input", "weight": "input", "meaning": "is input"}
    plain["ops"] = ["zero", "scale", "rank", "random"]
    assert pages[1] == plain | {"shape": [n, 3], "norm": frobenius(weights["input"])}
    assert ["rho" in page for page in pages] == [True, False, False, True, True, False]
    assert (pages[4]["norm"], pages[4]["rho"], pages[4]["n_R"]) == (0.0, 0.0, 4)
    assert pages[4]["masses"] == {"RR": 0.0, "C→R": 0.0, "CC": 0.0}


def test_structure_looks_at_the_slice_and_weighs_its_couplings(weights: Weights) -> None:
    page = to_json(structure(MANIFEST, weights))["targets"][3]
    form = ordered_schur(weights["gates"][n : 2 * n])
    assert (page["alpha"], page["rho"], page["n_R"]) == (0.9, form.rho, split(form, 0.9))
    assert page["eigenvalues"] == [[z.real, z.imag] for z in form.eigenvalues]
    for name, mask in couplings(form, page["n_R"]).items():
        assert page["masses"][name] == pytest.approx(frobenius(form.T[mask]) / page["norm"])
