"""Symmetries: drawn elements are of their groups, and what they move changes no output."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from export.targets import describe_symmetries, describe_targets, find_subspaces
from serve.ablation import symmetry as room
from serve.ablation.algebra import adjoint
from serve.ablation.symmetry import DRAWS, act, draw
from serve.manifest.page import Action, Symmetry
from train.groups.by_name import group_names, make_group
from train.layers.mixing import MIXINGS
from train.model import Model, State, family

Array = NDArray[Any]
V, Y, T, B = 7, 5, 9, 3
SEEDS = (0, 1, 2)
CLOSE = 1e-7  # exp is no closer in float64
DOUBLE = torch.float64
FORMER = {"layers": 2, "heads": 2, "context": 4, "d": 4, "rank": 3}
SMALL: list[tuple[str, dict[str, Any]]] = [
    *(
        ("osm-rnn", {"group": group, "mixing": mixing, "d": 4, "rank": 3})
        for group in group_names()
        for mixing in MIXINGS
    ),
    *(
        ("osm-former", {"group": group, "mixing": mixing, **FORMER})
        for group in group_names()
        for mixing in MIXINGS
    ),
    ("osm-rnn", {"d": 2}),
    ("osm-former", {**FORMER, "d": 5}),  # with a row that no position turns
    ("tanh-rnn", {"n": 6}),
    ("tanh-rnn", {"n": 6, "bias": "none", "construction": "cayley"}),
    ("lstm", {"n": 5, "embedding": 4, "layers": 2}),
    ("rotrnn", {"layers": 2, "width": 6, "n": 12, "heads": 3}),
    ("rotrnn", {"layers": 1, "width": 6, "n": 4, "heads": 1}),
    ("lru", {"layers": 2, "width": 6, "n": 5}),
    ("transformer", {"d": 12, "layers": 2, "heads": 3, "context": 5}),
    ("transformer", {"d": 4, "layers": 1, "heads": 1, "context": 5}),
    *(
        ("lightning", {"d": 6, "layers": 2, "heads": heads, "a": 2, "block": block, "decay": decay})
        for heads in (1, 3)
        for block in ("residual", "plain")
        for decay in ("learned", "none")
    ),
    ("sparse-xor", {"m": 6}),
]
IDS = [f"{name}-{'-'.join(map(str, sizes.values()))}" for name, sizes in SMALL]
every_model = pytest.mark.parametrize(("name", "sizes"), SMALL, ids=IDS)


@torch.no_grad()
def make(name: str, sizes: dict[str, Any]) -> Model:
    """A small model in float64 with every parameter some way off its start."""
    kind: Any = family(name)
    output = 1 if name == "sparse-xor" else Y
    generator = torch.Generator().manual_seed(1)
    model: Model = kind(kind.Config(input_size=V, output_size=output, **sizes), generator).double()
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=DOUBLE))
    return model


def tensors_of(model: Model) -> dict[str, Array]:
    """What a bundle's weights.safetensors would hold, in float64."""
    weights, initial = model.weights(), model.init_state(1)
    tensors = {f"initial.{name}": value[0] for name, value in initial.items()}
    tensors |= weights | find_subspaces(model, weights, None)
    return {name: value.detach().numpy() for name, value in tensors.items()}


def outputs(model: Model, tensors: dict[str, Array]) -> Tensor:
    """The first outputs and those of a scan, from the initial state among the tensors."""
    values = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in tensors.items()}
    start: State = {
        name: values[f"initial.{name}"].expand(B, *value.shape[1:]).contiguous()
        for name, value in model.init_state(1).items()
    }
    generator = torch.Generator().manual_seed(2)
    xs = torch.randint(V, (T, B), generator=generator)
    if "characters" not in model.takes:
        xs = torch.randn(T, B, V, generator=generator, dtype=DOUBLE)
    _, ys = model.scan(values, start, xs)
    return torch.cat([model.readout(values, start).unsqueeze(0), ys])


def relative(after: Any, before: Any) -> float:
    return float(np.linalg.norm(after - before) / np.linalg.norm(before))


@every_model
@torch.no_grad()
def test_a_symmetry_changes_weights_and_no_output(name: str, sizes: dict[str, Any]) -> None:
    model = make(name, sizes)
    tensors = tensors_of(model)
    expected = outputs(model, tensors)
    for symmetry in describe_symmetries(model):
        for seed in SEEDS:
            changed = act(symmetry, draw(symmetry, seed), tensors)
            assert set(changed) == {action.weight for action in symmetry.actions}
            moved = {key: relative(value, tensors[key]) for key, value in changed.items()}
            moved.pop("subspace.visible", None)
            assert max(moved.values()) > 0.05, symmetry.name
            found = outputs(model, tensors | changed)
            assert relative(found, expected) < CLOSE, symmetry.name


@every_model
@torch.no_grad()
def test_each_action_of_a_symmetry_is_needed(name: str, sizes: dict[str, Any]) -> None:
    """Without any one of them outputs change, or the test above could not fail."""
    model = make(name, sizes)
    tensors = tensors_of(model)
    expected = outputs(model, tensors)
    for symmetry in describe_symmetries(model):
        g = draw(symmetry, 0)
        for i, action in enumerate(symmetry.actions):
            if action.weight == "subspace.visible":
                continue
            others = symmetry.actions[:i] + symmetry.actions[i + 1 :]
            if not others:  # the swap of two heads is one action
                continue
            part = dataclasses.replace(symmetry, actions=others)
            found = outputs(model, tensors | act(part, g, tensors))
            assert relative(found, expected) > 100 * CLOSE, (symmetry.name, action)


def test_every_family_but_none_has_symmetries_under_names_of_their_own() -> None:
    for name, sizes in SMALL:
        names = [symmetry.name for symmetry in make(name, sizes).symmetries()]
        assert names and len(set(names)) == len(names)


def test_what_lightning_has_depends_on_its_block() -> None:
    def names(**sizes: Any) -> set[str]:
        sizes = {"d": 6, "layers": 1, "heads": 3, "a": 2, **sizes}
        return {symmetry.name for symmetry in make("lightning", sizes).symmetries()}

    both = {"layers.0.attention", "layers.0.scale"}
    assert names(block="plain") == both | {"input", "layers.0.basis", "layers.0.heads"}
    assert names(block="residual") == both | {"layers.0.units", "stream", "heads"}
    assert names(block="plain", heads=1) == both | {"input", "layers.0.basis"}


@every_model
def test_targets_name_what_is_there(name: str, sizes: dict[str, Any]) -> None:
    model = make(name, sizes)
    weights = model.weights()
    spaces = find_subspaces(model, weights, None)
    targets = describe_targets(model, weights)
    assert len({target.name for target in targets}) == len(targets)
    for target in targets:
        whole = weights[target.weight]
        bounds = target.slice or tuple((0, size) for size in whole.shape)
        assert all(0 <= a < b <= n for (a, b), n in zip(bounds, whole.shape, strict=True))
        assert ("project" in target.ops) == (target.subspace is not None)
        if target.subspace is not None:
            assert spaces[target.subspace].shape[1:] == target.shape[:1]
    assert set(spaces) == {target.subspace for target in targets} - {None}


# --- the groups


def symmetry_of(group: str, size: int, *actions: Action) -> Symmetry:
    return Symmetry(name="one", group=group, size=size, meaning="", actions=actions)


def sizes_of(group: str) -> tuple[int, ...]:
    return {"scale": (1,), "special-unitary": (4, 6)}.get(group, (2, 6))


@pytest.mark.parametrize("group", DRAWS)
def test_elements_are_the_same_for_a_seed_and_never_near_the_identity(group: str) -> None:
    for size in sizes_of(group):
        one = symmetry_of(group, size)
        for seed in range(200):
            g = draw(one, seed)
            assert np.linalg.norm(g - np.eye(size)) >= room.NEAREST
            np.testing.assert_array_equal(g, draw(one, seed))
        differ = size > 2 or "permutation" not in group
        assert np.array_equal(draw(one, 0), draw(one, 1)) == (not differ) or group[0] == "s"


@pytest.mark.parametrize("group", [g for g in DRAWS if g not in ("invertible", "scale")])
def test_elements_are_orthogonal_and_of_their_group(group: str) -> None:
    for size in sizes_of(group):
        for seed in range(20):
            g = draw(symmetry_of(group, size), seed)
            np.testing.assert_allclose(g @ g.T, np.eye(size), atol=1e-12)
            if group in ("special-orthogonal", "pairs", "halves"):
                assert np.linalg.det(g) == pytest.approx(1.0)
            if "permutation" in group:
                assert sorted(np.abs(g).ravel())[-size:] == [1.0] * size
                assert not np.abs(g).trace()
            if "unitary" in group:
                d = size // 2
                np.testing.assert_array_equal(g[:d, :d], g[d:, d:])
                np.testing.assert_array_equal(g[:d, d:], -g[d:, :d])
            if group == "special-unitary":
                Z = g[:d, :d] + 1j * g[d:, :d]
                assert np.linalg.det(Z) == pytest.approx(1.0)


def test_invertible_elements_are_well_conditioned_and_scales_positive() -> None:
    for seed in range(50):
        values = np.linalg.svd(draw(symmetry_of("invertible", 5), seed), compute_uv=False)
        assert 0.5 <= values.min() <= values.max() <= 2.0
        assert 0.3 < draw(symmetry_of("scale", 1), seed).item() < 3.0


@pytest.mark.parametrize("name", [n for n in group_names() if make_group(n, 3).algebra])
def test_the_adjoint_is_what_conjugation_does_to_the_coordinates_of_training(name: str) -> None:
    group = make_group(name, 4)
    assert group.algebra is not None
    g = draw(symmetry_of(group.matrices, group.size), 0)
    R, units = torch.from_numpy(g), group.tangent(torch.eye(group.dim, dtype=DOUBLE))
    expected = group.coordinates(R @ units @ R.mT).mT
    np.testing.assert_allclose(adjoint(group.algebra, g), expected.numpy(), atol=1e-12)


# --- acting


def test_an_axis_is_seen_as_outer_size_and_inner() -> None:
    W = np.random.default_rng(0).standard_normal((3, 12)).astype(np.float32)
    one = symmetry_of("invertible", 2, Action(weight="W", axis=1, inner=3))
    g = draw(one, 0)
    changed = act(one, g, {"W": W, "other": W})
    assert list(changed) == ["W"] and changed["W"].dtype == np.float32
    expected = np.einsum("ij,bojk->boik", g, W.reshape(3, 2, 2, 3)).reshape(3, 12)
    np.testing.assert_allclose(changed["W"], expected, rtol=1e-6)


def test_a_dual_action_undoes_what_products_with_it_see_and_a_slice_keeps_the_rest() -> None:
    rng = np.random.default_rng(0)
    weights = {"A": rng.standard_normal((6, 4)), "B": rng.standard_normal((6, 4))}
    rows = ((2, 4), (0, 4))
    one = symmetry_of(
        "invertible",
        2,
        Action(weight="A", axis=0, slice=rows),
        Action(weight="B", axis=0, slice=rows, dual=True),
    )
    before = {name: value.copy() for name, value in weights.items()}
    changed = act(one, draw(one, 3), weights)
    np.testing.assert_allclose(changed["A"].T @ changed["B"], before["A"].T @ before["B"])
    for name in "AB":
        np.testing.assert_array_equal(weights[name], before[name])
        np.testing.assert_array_equal(
            np.delete(changed[name], [2, 3], 0), before[name][[0, 1, 4, 5]]
        )
        assert relative(changed[name][2:4], before[name][2:4]) > 0.1


WRONG: list[tuple[Symmetry, str]] = [
    (symmetry_of("rotations", 2), "group: found 'rotations', expected one of permutation, "),
    (symmetry_of("permutation", 1), "group: found size 1, expected at least 2 for permutation"),
    (symmetry_of("pairs", 3), "group: found size 3, expected at least 2, even for pairs"),
    (symmetry_of("scale", 2), "group: found size 2, expected 1 for scale"),
    (symmetry_of("pairs", 2), "actions: found none, expected at least one"),
    (symmetry_of("pairs", 2, Action(weight="X", axis=0)), r"actions\[0\].weight: found 'X', "),
    (
        symmetry_of("pairs", 2, Action(weight="W", axis=2)),
        r"axis: found 2, expected 0 to 1",
    ),
    (
        symmetry_of("pairs", 4, Action(weight="W", axis=1)),
        "found length 6, expected a",
    ),
    (symmetry_of("pairs", 2, Action(weight="W", axis=0, inner=0)), "axis: found length 4"),
    (
        symmetry_of("pairs", 2, Action(weight="W", axis=0, slice=((0, 2),))),
        r"slice: found \(\(0, 2\),\), expected \(start, stop\) per axis within \(4, 6\)",
    ),
    (
        symmetry_of("pairs", 2, Action(weight="W", axis=0, algebra="sl")),
        "algebra: found 'sl' and 2, expected one of so, u, su",
    ),
]


@pytest.mark.parametrize(("one", "message"), WRONG, ids=[message for _, message in WRONG])
def test_symmetries_that_do_not_fit_are_refused(one: Symmetry, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        act(one, np.eye(one.size), {"W": np.zeros((4, 6), np.float32)})


def test_groups_and_elements_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="symmetry one: group: found size 2, expected 1 for scale"):
        draw(symmetry_of("scale", 2), 0)
    one = symmetry_of("pairs", 2, Action(weight="W", axis=0))
    with pytest.raises(ValueError, match=r"found g of shape \(3, 3\), not \(2, 2\)"):
        act(one, np.eye(3), {"W": np.zeros((4, 6), np.float32)})
