"""Tangents that the readout sees: what the op "project" keeps or leaves."""

from typing import Any

import pytest
import torch
from torch import Tensor

from train.groups.by_name import make_group
from train.groups.group import Group
from train.layers.group_readout import VISIBLE, read, visible_tangents
from train.model import Model, Weights, family

V = 5
DOUBLE = torch.float64


def make(group: str, d: int, name: str = "osm-rnn", **sizes: Any) -> Any:
    kind: Any = family(name)
    config = kind.Config(input_size=V, output_size=V, group=group, d=d, **sizes)
    return kind(config, torch.Generator().manual_seed(0))


def slopes(group: Group, weights: Weights, X: Tensor) -> Tensor:
    """Derivatives at I of the log-probabilities along tangents with coordinates X: (V, N)."""
    weights = {name: value.double() for name, value in weights.items()}

    def logits(u: Tensor) -> Tensor:
        H = group.identity().double() @ group.exp(group.tangent(u))
        return read(group, weights, H).log_softmax(-1)

    zero = torch.zeros(group.dim, dtype=DOUBLE)
    J: Tensor = torch.autograd.functional.jacobian(logits, zero)  # type: ignore[no-untyped-call]
    return J @ X.mT


@pytest.mark.parametrize(("group", "d"), [("so", 5), ("o", 5), ("u", 4), ("su", 4)])
def test_log_probabilities_see_the_visible_tangents_at_the_identity_and_no_others(
    group: str, d: int
) -> None:
    model = make(group, d)
    weights = {name: value.detach() for name, value in model.weights().items()}
    basis = model.subspaces(weights, True)[VISIBLE]
    assert basis.dtype == torch.float32 and basis.shape == (V - 1, model.group.dim)
    B = basis.double()
    assert (B @ B.mT - torch.eye(len(B))).abs().max() < 1e-6
    _, _, rows = torch.linalg.svd(B)
    null = rows[len(B) :]
    whole = B.mT @ B + null.mT @ null
    assert (whole - torch.eye(model.group.dim)).abs().max() < 1e-6
    seen, unseen = slopes(model.group, weights, B), slopes(model.group, weights, null)
    assert torch.linalg.matrix_rank(seen, atol=1e-4) == V - 1
    assert unseen.abs().max() < 1e-6 * seen.abs().max()


def test_outputs_that_are_no_logits_count_as_they_are() -> None:
    model: Model = make("so", 5)
    weights = {name: value.detach() for name, value in model.weights().items()}
    logits, values = (model.subspaces(weights, kind)[VISIBLE] for kind in (True, False))
    assert (len(logits), len(values)) == (V - 1, V)


def test_prototypes_that_are_all_alike_are_seen_by_nobody_and_few_dimensions_all() -> None:
    group = make_group("so", 4)
    same = {"readout.prototypes": group.sample(1, torch.Generator().manual_seed(0)).repeat(3, 1, 1)}
    assert visible_tangents(group, same, True).shape == (0, 6)
    assert visible_tangents(group, same, False).shape == (1, 6)
    model = make("so", 2)
    assert model.subspaces(model.weights(), True)[VISIBLE].abs().tolist() == [[1.0]]


@pytest.mark.parametrize("mixing", ["none", "bch"])
@pytest.mark.parametrize("name", ["osm-rnn", "osm-former"])
def test_a_mixing_without_a_matrix_has_no_subspace(name: str, mixing: str) -> None:
    model = make("so", 4, name, mixing=mixing)
    assert model.subspaces(model.weights(), True) == {}
    assert all(target.subspace is None for target in model.targets())
