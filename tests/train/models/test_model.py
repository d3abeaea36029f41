"""Every family keeps the contract: parameters -> weights -> step, and a scan that is its loop."""

import dataclasses
import re
from typing import Any

import pytest
import torch
from small_models import fitted
from torch import Tensor

from serve.wire.edit_fields import KEYS
from train.model import Model, State, Weights, family, family_names, predict, scan_reference
from train.models.osm_rnn import OsmRnn, OsmRnnConfig
from train.tasks.text import window_loss

V, T, B = 11, 12, 3
BUDGET = 4_000  # parameters of a small model


def variants() -> list[Any]:
    """Every family, and every choice that its configuration offers."""
    found = []
    for name in TEXT_FAMILIES:
        fields = dataclasses.fields(family(name).Config)
        choices = [(f.name, choice) for f in fields for choice in f.metadata.get("choices", ())]
        cases: list[dict[str, str]] = [{key: choice} for key, choice in choices] or [{}]
        for case in cases:
            words = [name, *(f"{key}={choice}" for key, choice in case.items())]
            found.append(pytest.param(name, case, id=" ".join(words)))
    return found


TEXT_FAMILIES = [name for name in family_names() if "characters" in family(name).takes]
every_family = pytest.mark.parametrize("name", TEXT_FAMILIES)
every_variant = pytest.mark.parametrize(("name", "sizes"), variants())


def make_model(name: str, sizes: Any = (), seed: int = 0) -> Model:
    """A small model, or one of the default size if its input_size is given."""
    sizes = dict(sizes)
    kind: Any = family(name)
    ends = {"input_size": V, "output_size": V}
    small = fitted(name, {**ends, **sizes}, BUDGET) if "input_size" not in sizes else {}
    config = kind.Config(**{**ends, **small, **sizes})
    model: Model = kind(config, torch.Generator().manual_seed(seed))
    return model


def characters(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed))


def distance(A: Tensor, B: Tensor) -> float:
    """Largest |difference| relative to 1 + |value|."""
    return float(((A - B).abs() / (1.0 + A.abs())).max().detach())


def state_distance(left: State, right: State) -> float:
    assert list(left) == list(right)
    return max(distance(left[name], right[name]) for name in left)


def warm_state(model: Model, weights: Weights, batch: int) -> State:
    """A state that differs from row to row and from the initial one."""
    return scan_reference(model, weights, model.init_state(batch), characters(5, batch, seed=9))[0]


class Watched(dict[str, Tensor]):
    """Weights that remember which of them were read."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default


@every_variant
@torch.no_grad()
def test_the_scan_is_the_loop_of_steps(name: str, sizes: dict[str, str]) -> None:
    model = make_model(name, sizes)
    weights, xs = model.weights(), characters(T, B)
    start = warm_state(model, weights, B)
    state, ys = model.scan(weights, start, xs)
    looped, expected = scan_reference(model, weights, start, xs)
    assert ys.shape == (T, B, V)
    assert distance(ys, expected) <= 1e-5
    assert state_distance(state, looped) <= 1e-5


@every_variant
@torch.no_grad()
def test_a_scan_cut_into_chunks_is_the_whole_scan(name: str, sizes: dict[str, str]) -> None:
    model = make_model(name, sizes)
    weights, xs = model.weights(), characters(T, B)
    whole, expected = model.scan(weights, model.init_state(B), xs)
    state, pieces = model.init_state(B), []
    for chunk in xs.split([1, 4, T - 5]):  # type: ignore[no-untyped-call]
        state, ys = model.scan(weights, state, chunk)
        pieces.append(ys)
    assert distance(torch.cat(pieces), expected) <= 1e-5
    assert state_distance(state, whole) <= 1e-5


@every_variant
@torch.no_grad()
def test_a_row_does_not_see_its_batch(name: str, sizes: dict[str, str]) -> None:
    model = make_model(name, sizes)
    weights, xs = model.weights(), characters(T, B)
    start = warm_state(model, weights, B)
    state, ys = model.scan(weights, start, xs)
    for row in range(B):
        mine = {key: value[row : row + 1] for key, value in start.items()}
        alone, expected = model.scan(weights, mine, xs[:, row : row + 1])
        assert distance(ys[:, row : row + 1], expected) <= 1e-5
        after = {key: value[row : row + 1] for key, value in state.items()}
        assert state_distance(after, alone) <= 1e-5


@every_family
@torch.no_grad()
def test_predictions_begin_with_the_readout_of_the_given_state(name: str) -> None:
    model = make_model(name)
    weights, xs = model.weights(), characters(T, B)
    start = warm_state(model, weights, B)
    state, logits = predict(model, weights, start, xs)
    expected, ys = model.scan(weights, start, xs)
    assert torch.equal(logits, torch.cat([model.readout(weights, start)[None], ys]))
    assert state_distance(state, expected) == 0.0


@every_family
@torch.no_grad()
def test_a_step_leaves_the_state_that_it_was_given_alone(name: str) -> None:
    model = make_model(name)
    weights = model.weights()
    start = warm_state(model, weights, B)
    before = {key: value.clone() for key, value in start.items()}
    model.step(weights, start, characters(B))
    model.scan(weights, start, characters(T, B))
    model.correct(start)
    assert state_distance(start, before) == 0.0


@every_family
@torch.no_grad()
def test_fresh_streams_are_alike_and_float32(name: str) -> None:
    model = make_model(name)
    one, many = model.init_state(1), model.init_state(B)
    assert all(value.dtype == torch.float32 for value in many.values())
    assert all(value.shape == (B, *one[key].shape[1:]) for key, value in many.items())
    assert all(torch.equal(value, one[key].expand_as(value)) for key, value in many.items())


@every_family
@torch.no_grad()
def test_corrections_leave_fresh_streams_as_they_are(name: str) -> None:
    model = make_model(name)
    assert state_distance(model.correct(model.init_state(B)), model.init_state(B)) == 0.0


@every_variant
@torch.no_grad()
def test_the_named_weights_are_those_that_are_used(name: str, sizes: dict[str, str]) -> None:
    model = make_model(name, sizes)
    for run in (model.scan, lambda *given: scan_reference(model, *given)):
        weights = Watched(model.weights())
        run(weights, model.init_state(B), characters(T, B))
        assert weights.read == set(weights)


@every_variant
@torch.no_grad()
def test_targets_name_weights_that_exist(name: str, sizes: dict[str, str]) -> None:
    model = make_model(name, sizes)
    weights, targets = model.weights(), model.targets()
    assert len({target.name for target in targets}) == len(targets) > 0
    for target in targets:
        weight = weights[target.weight]
        assert target.ops and set(target.ops) <= set(KEYS)
        assert target.meaning and not re.search("character|logit", target.meaning)  # tasks too
        for (start, stop), size in zip(target.slice or (), weight.shape, strict=False):
            assert 0 <= start < stop <= size
        if {"schur", "identity"} & set(target.ops) and target.slice is None:
            assert weight.shape == (weight.shape[0], weight.shape[0])


@every_variant
def test_the_gradient_reaches_every_parameter(name: str, sizes: dict[str, str]) -> None:
    model = make_model(name, sizes)
    window_loss(model, characters(T, B)).backward()  # type: ignore[no-untyped-call]
    for key, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None, key
        assert bool(parameter.grad.isfinite().all() & parameter.grad.any()), key


@every_family
def test_rates_belong_to_parameters_that_exist(name: str) -> None:
    model = make_model(name)
    assert set(model.learning_rates) <= {key for key, _ in model.named_parameters()}


@every_family
def test_the_default_sizes_stay_within_a_hundred_thousand_parameters(name: str) -> None:
    ends = {"input_size": 65, "output_size": 65}
    assert 85_000 < make_model(name, ends).num_parameters() <= 100_000


def test_the_default_osm_rnn_has_the_parameters_of_its_table() -> None:
    # tokens and prototypes of 65 characters, mixing, temperature, bias
    assert 65 * 22**2 + 65 * 231 + 231**2 + 1 + 65 == 99_902
    assert make_model("osm-rnn", {"input_size": 65, "output_size": 65}).num_parameters() == 99_902


@every_variant
def test_parameters_follow_from_the_generator_alone(name: str, sizes: dict[str, str]) -> None:
    before = torch.get_rng_state()
    first, same, other = (make_model(name, sizes, seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    pairs = [(p, same.get_parameter(key)) for key, p in first.named_parameters()]
    assert all(torch.equal(left, right) for left, right in pairs)
    assert any(not torch.equal(p, other.get_parameter(k)) for k, p in first.named_parameters())


@every_family
@torch.no_grad()
def test_the_module_is_called_by_its_family(name: str) -> None:
    assert family(name).family == name


def test_an_unknown_family_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match="family: found 'gru', expected one of .*osm-rnn"):
        family("gru")


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("osm-rnn", {"d": 1}, r"SO\(d\): found d = 1, expected at least 2"),
        (
            "osm-rnn",
            {"mixing": "cubic"},
            "mixing: found 'cubic', expected one of linear, low-rank, bch",
        ),
        ("tanh-rnn", {"n": 0}, "n: found 0, expected at least 1"),
        ("tanh-rnn", {"bias": "zero"}, "bias: found 'zero', expected 'learned' or 'none'"),
    ],
)
def test_sizes_that_make_no_model_are_refused(
    name: str, sizes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        family(name).Config(input_size=V, output_size=V, **sizes)


@pytest.mark.parametrize("mixing", ["linear", "none"])
@torch.no_grad()
def test_osm_rnn_logits_do_not_see_a_rotation_of_everything(mixing: str) -> None:
    model = OsmRnn(OsmRnnConfig(input_size=V, output_size=V, d=6, mixing=mixing), torch.Generator())
    weights, xs = model.weights(), characters(T, B)
    H = warm_state(model, weights, B)["H"]
    R = model.group.sample(1, torch.Generator().manual_seed(3))[0]
    turned = weights | {key: R @ weights[key] for key in ("input", "readout.prototypes")}
    state, ys = model.scan(weights, {"H": H}, xs)
    moved, expected = model.scan(turned, {"H": R @ H}, xs)
    assert distance(ys, expected) <= 1e-5
    assert distance(R @ state["H"], moved["H"]) <= 1e-5


@torch.no_grad()
def test_osm_rnn_states_and_prototypes_are_in_the_group() -> None:
    model = OsmRnn(OsmRnnConfig(input_size=V, output_size=V, d=8), torch.Generator())
    weights = model.weights()
    state, _ = model.scan(weights, model.init_state(B), characters(64, B))
    assert model.group.contains(state["H"], 1e-5)[0]
    assert model.group.contains(weights["readout.prototypes"], 1e-5)[0]
    off = {"H": state["H"] * 1.001}
    assert model.group.contains(model.correct(off)["H"], 1e-5)[0]
