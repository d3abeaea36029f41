"""The OSM models against their equations, written once more in complex numbers and plain loops."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from serve.native import library
from serve.native.library import load, status
from train.groups.by_name import group_names, make_group
from train.groups.group import Group
from train.groups.native import available
from train.layers.mixing import MIXINGS, join
from train.model import Model, Weights, family, scan_reference
from train.models.osm_former import OsmFormer
from train.models.osm_rnn import OsmRnn

V, Y, T, B = 5, 4, 6, 2
COMPLEX = ("u", "su", "diagonal")
DOUBLE = torch.float64
FORMER = {"layers": 2, "heads": 2, "context": 4}
REACH = FORMER["layers"] * (FORMER["context"] - 1)  # characters that an output looks back

each_group = pytest.mark.parametrize("group", group_names())
each_mixing = pytest.mark.parametrize("mixing", MIXINGS)
each_family = pytest.mark.parametrize("name", ["osm-rnn", "osm-former"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=DOUBLE)


def characters(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(V, shape, generator=generator(seed))


def close(A: Tensor, B: Tensor, tolerance: float = 1e-6) -> bool:
    return torch.allclose(A, B, rtol=0.0, atol=tolerance)


@torch.no_grad()
def make(name: str, shake: float = 0.2, **sizes: Any) -> Any:
    """A small model in float64 with every parameter some way off its start."""
    kind: Any = family(name)
    chosen = {**(FORMER if name == "osm-former" else {}), "d": 4, "rank": 3, **sizes}
    model = kind(kind.Config(input_size=V, output_size=Y, **chosen), generator()).double()
    for parameter in model.parameters():
        parameter += shake * torch.randn(parameter.shape, generator=generator(1), dtype=DOUBLE)
    return model


def outputs(model: Model, weights: Weights, xs: Tensor) -> Tensor:
    return model.scan(weights, model.init_state(xs.shape[1]), xs)[1]


# --- the equations once more: complex matrices, sums over a basis, one position at a time


@functools.cache
def basis(group: str, d: int) -> Tensor:
    """The orthonormal basis of g that the group's docstring names: (D, s, s), complex."""
    size = 2 * d if group == "torus" else d

    def unit(i: int, j: int, value: complex = 1.0) -> Tensor:
        E = torch.zeros(size, size, dtype=torch.complex128)
        E[i, j] = torch.tensor(value)
        return E

    pairs = [(i, j) for i in range(d) for j in range(i + 1, d)]
    turns = [(unit(i, j) - unit(j, i)) / 2**0.5 for i, j in pairs]
    swaps = [(unit(i, j, 1j) + unit(j, i, 1j)) / 2**0.5 for i, j in pairs]
    phases = [unit(k, k, 1j) for k in range(d)]
    steps = [
        (sum(phases[:k], torch.zeros(size, size)) - k * phases[k]) / (k * (k + 1)) ** 0.5
        for k in range(1, d)
    ]
    planes = [(unit(2 * k + 1, 2 * k) - unit(2 * k, 2 * k + 1)) / 2**0.5 for k in range(size // 2)]
    found = {
        **{"so": turns, "o": turns, "u": turns + swaps + phases, "su": turns + swaps + steps},
        **{"diagonal": phases, "torus": planes},
    }
    return torch.stack(found[group])


def plain(group: str, A: Tensor) -> Tensor:
    """The complex matrix that a model keeps as [[Re, -Im], [Im, Re]]; a real one of real groups."""
    if group not in COMPLEX:
        return A.to(torch.complex128)
    d = A.shape[-1] // 2
    return torch.complex(A[..., :d, :d], A[..., d:, :d])


def inner(A: Tensor, B: Tensor) -> Tensor:
    """Re tr(A* B)."""
    return (A.conj() * B).sum((-2, -1)).real


def taken(model: Any, weights: Weights, name: str, A: Tensor) -> Tensor:
    """The tangent that is taken for one ambient matrix."""
    E = basis(model.config.group, model.config.d)
    u = inner(E, A)
    if model.config.mixing in ("linear", "low-rank"):
        u = weights[name] @ u
    X = (u[:, None, None] * E).sum(0)
    if model.config.mixing != "bch":
        return X
    C = plain(model.config.group, weights[f"{name}.constant"])
    XC = X @ C - C @ X
    return X + C + XC / 2 + (X @ XC - XC @ X) / 12 + (C @ -XC - -XC @ C) / 12


def logits(model: Any, weights: Weights, H: Tensor) -> Tensor:
    P = plain(model.config.group, weights["readout.prototypes"])
    return weights["readout.temperature"] * inner(H, P) + weights["readout.bias"]


def restated_rnn(model: OsmRnn, weights: Weights, xs: Tensor) -> Tensor:
    """The outputs of one stream xs (T)."""
    M = plain(model.config.group, weights["input"])
    H, ys = torch.eye(M.shape[-1], dtype=torch.complex128), []
    for x in xs:
        H = H @ torch.linalg.matrix_exp(taken(model, weights, "mixing", H.mH @ M[x]))
        ys.append(logits(model, weights, H))
    return torch.stack(ys)


def rotation(group: str, size: int, angles: Tensor) -> Tensor:
    """The element of `train.layers.torus_positions` with these angles, as a complex matrix."""
    if group in COMPLEX:
        return torch.diag(torch.polar(torch.ones_like(angles), angles))
    R, m = torch.eye(size, dtype=torch.complex128), len(angles)
    for k, angle in enumerate(angles):
        p, q = (2 * k, 2 * k + 1) if group == "torus" else (k, m + k)
        R[p, p] = R[q, q] = angle.cos().item()
        R[q, p], R[p, q] = angle.sin().item(), -angle.sin().item()
    return R


def restated_former(model: OsmFormer, weights: Weights, xs: Tensor) -> Tensor:
    """The outputs of one stream xs (T)."""
    config = model.config
    M = plain(config.group, weights["input"])[xs]
    E, size = basis(config.group, config.d), M.shape[-1]
    Hs = [torch.linalg.matrix_exp((inner(E, A)[:, None, None] * E).sum(0)) for A in M]
    for layer in range(config.layers):
        name, before = f"layers.{layer}", Hs
        omega = weights[f"{name}.attention.frequency"]
        R = [rotation(config.group, size, i * omega) for i in range(len(xs))]
        K = [rotation(config.group, size, angles) for angles in weights[f"{name}.attention.phase"]]
        Hs = []
        for i, H in enumerate(before):
            window = range(max(0, i - config.context + 1), i + 1)
            mean = torch.zeros_like(H)
            for beta, turn in zip(weights[f"{name}.attention.sharpness"], K, strict=True):
                sought = R[i] @ turn @ H
                scores = [beta * inner(sought, R[j] @ before[j]) / config.d for j in window]
                alpha = torch.stack(scores).softmax(0)
                for share, j in zip(alpha, window, strict=True):
                    mean = mean + share * R[i].mH @ R[j] @ before[j]
            for phase, A in (("attention", mean), ("grounding", M[i])):
                X = taken(model, weights, f"{name}.{phase}.mixing", H.mH @ A)
                H = H @ torch.linalg.matrix_exp(weights[f"{name}.{phase}.gain"] * X)
            Hs.append(H)
    return torch.stack([logits(model, weights, H) for H in Hs])


RESTATED: dict[str, Any] = {"osm-rnn": restated_rnn, "osm-former": restated_former}


@each_family
@each_group
@each_mixing
@torch.no_grad()
def test_outputs_are_those_of_the_equations(name: str, group: str, mixing: str) -> None:
    model = make(name, group=group, mixing=mixing, d=3)
    weights, xs = model.weights(), characters(T, 1)
    expected = RESTATED[name](model, weights, xs[:, 0])[:, None]
    state, ys = scan_reference(model, weights, model.init_state(1), xs)
    assert close(ys, expected)
    assert close(outputs(model, weights, xs), expected)
    assert model.group.contains(state["H"], 1e-6)[0]


@each_family
@each_group
@each_mixing
@torch.no_grad()
def test_states_stay_in_the_group(name: str, group: str, mixing: str) -> None:
    model = make(name, group=group, mixing=mixing).float()
    weights = model.weights()
    assert model.group.contains(weights["readout.prototypes"], 1e-5)[0]
    state, _ = model.scan(weights, model.init_state(B), characters(40, B))
    assert model.group.contains(state["H"], 1e-4)[0]
    for key in ("layers.0", "layers.1"):
        if key in state:
            assert model.group.contains(state[key].flatten(0, 1), 1e-4)[0]


# --- the kernels and the loop


@each_family
@pytest.mark.parametrize("group", ["so", "o"])
@pytest.mark.parametrize("mixing", ["linear", "none", "low-rank"])
@pytest.mark.parametrize("takes", ["characters", "vectors"])
def test_native_kernels_do_what_the_plain_loop_does(
    name: str, group: str, mixing: str, takes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if load() is None:
        pytest.skip(status())
    model = make(name, group=group, mixing=mixing, d=5)
    assert available(model.tokens)
    xs = characters(T, B) if takes == "characters" else normal(T, B, V)
    native = everything(model, xs)
    monkeypatch.setenv("TORSOR_NATIVE", "off")
    library._attempt.cache_clear()
    try:
        assert not available(model.tokens)
        looped = everything(model, xs)
    finally:
        monkeypatch.undo()
        library._attempt.cache_clear()
    assert native.keys() == looped.keys()
    for key, value in native.items():
        assert close(value, looped[key], 1e-5), key


def everything(model: Any, xs: Tensor) -> dict[str, Tensor]:
    """Outputs, the last state, and the gradients of a function of both."""
    model.zero_grad()
    inputs = {"xs": xs.clone().requires_grad_()} if xs.is_floating_point() else {}
    state = model.init_state(B)
    if isinstance(model, OsmRnn):  # an OSMFormer doesn't look at its first H
        state = {"H": model.group.sample(B, generator(2)).double().requires_grad_()}
        inputs |= state
    after, ys = model.scan(model.weights(), state, inputs.get("xs", xs))
    probe = (ys * normal(*ys.shape, seed=3)).sum() + (after["H"] * normal(5, 5, seed=4)).sum()
    probe.backward()
    found = {"ys": ys.detach(), "H": after["H"].detach()}
    for key, value in {**dict(model.named_parameters()), **inputs}.items():
        assert value.grad is not None and bool(value.grad.any()), key
        found[f"gradient of {key}"] = value.grad.clone()
    return found


# --- symmetries


@each_group
@each_mixing
@torch.no_grad()
def test_osm_rnn_logits_do_not_see_left_multiplication_of_everything(
    group: str, mixing: str
) -> None:
    model = make("osm-rnn", group=group, mixing=mixing)
    weights, xs = model.weights(), characters(T, B)
    H, R = (model.group.sample(n, generator(n)).double() for n in (B, 1))
    turned = weights | {key: R @ weights[key] for key in ("input", "readout.prototypes")}
    state, ys = model.scan(weights, {"H": H}, xs)
    moved, same = model.scan(turned, {"H": R @ H}, xs)
    assert close(same, ys) and close(moved["H"], R @ state["H"])


@each_group
@each_mixing
@torch.no_grad()
def test_osm_former_logits_do_not_see_conjugation_by_what_commutes_with_positions(
    group: str, mixing: str
) -> None:
    """X -> R X R* of tokens, prototypes and C, Γ -> Ad Γ Ad*: states go from H to R H R*.

    Not left multiplication: layer 0 makes its states as exp(proj M), and proj(R M) isn't R proj(M).
    With positions R is in the maximal torus, which commutes with R_p and K_h; without, in G.
    """
    model = make("osm-former", group=group, mixing=mixing)
    weights, xs = model.weights(), characters(T, B)
    angles = normal(model.group.size // 2, seed=5)
    R = torus_element(group, model.group, angles)
    before, after = (outputs(model, w, xs) for w in (weights, conjugated(model, weights, R)))
    assert close(after, before)
    still = {k: v * 0.0 if k.endswith(("frequency", "phase")) else v for k, v in weights.items()}
    R = model.group.sample(1, generator(6)).double()[0]
    before, after = (outputs(model, w, xs) for w in (still, conjugated(model, still, R)))
    assert close(after, before)


def torus_element(name: str, group: Group, angles: Tensor) -> Tensor:
    """The rotation by these angles as the models keep it: (n, n)."""
    R = rotation(name, group.size, angles)
    if name not in COMPLEX:
        return R.real
    return torch.cat([torch.cat([R.real, -R.imag], 1), torch.cat([R.imag, R.real], 1)])


def conjugated(model: OsmFormer, weights: Weights, R: Tensor) -> Weights:
    units = model.group.tangent(torch.eye(model.group.dim).to(R))
    Ad = model.group.coordinates(R @ units @ R.mT).mT
    matrices = ("input", "prototypes", "constant")
    changed = {k: R @ v @ R.mT for k, v in weights.items() if k.endswith(matrices)}
    mixings = {k: Ad @ v @ Ad.mT for k, v in weights.items() if k.endswith("mixing")}
    return weights | changed | mixings


@torch.no_grad()
def test_osm_former_logits_see_left_multiplication() -> None:
    model = make("osm-former")
    weights, xs = model.weights(), characters(T, B)
    R = torus_element("so", model.group, normal(model.group.size // 2))
    turned = weights | {key: R @ weights[key] for key in ("input", "readout.prototypes")}
    assert not close(outputs(model, turned, xs), outputs(model, weights, xs), 1e-2)


# --- what an output looks at


@each_family
@each_group
@torch.no_grad()
def test_later_characters_change_nothing(name: str, group: str) -> None:
    model = make(name, shake=0.0, group=group)
    weights, xs, now = model.weights(), characters(T, B), 4
    changed = torch.cat([xs[:now], (xs[now:] + 1) % V])
    before, after = outputs(model, weights, xs), outputs(model, weights, changed)
    assert torch.equal(before[:now], after[:now])
    assert not close(before[now:], after[now:], 1e-3)


@each_family
@each_group
def test_outputs_feel_what_is_in_reach_and_nothing_else(name: str, group: str) -> None:
    model = make(name, group=group)
    length, now = REACH + 5, REACH + 2
    xs = torch.nn.functional.one_hot(characters(length, 1), V).double().requires_grad_()
    y = outputs(model, model.weights(), xs)[now, 0, 0]
    gradient = torch.autograd.grad(y, xs)[0].abs().amax((1, 2))
    first = now - REACH if name == "osm-former" else 0
    felt = [first <= place <= now for place in range(length)]
    assert (gradient != 0.0).tolist() == felt


@each_group
@torch.no_grad()
def test_osm_former_logits_do_not_see_where_they_are(group: str) -> None:
    model = make("osm-former", group=group)
    weights, content = model.weights(), characters(REACH + 4, 1)
    found = []
    for length in (0, 1, 7, 40):
        xs = torch.cat([characters(length, 1, seed=length), content])
        found.append(outputs(model, weights, xs)[length + REACH :])
    assert found[0].std() > 1e-2
    assert all(close(other, found[0], 1e-9) for other in found[1:])


# --- mixing


@each_family
@each_group
@torch.no_grad()
def test_mixing_that_changes_nothing_is_none(name: str, group: str) -> None:
    none = make(name, group=group, mixing="none")
    kept, xs = none.weights(), characters(T, B)
    D, n = none.group.dim, none.group.size
    neutral = {
        "linear": {"mixing": torch.eye(D, dtype=DOUBLE)},
        "low-rank": {"mixing": torch.eye(D, dtype=DOUBLE)},
        "bch": {"mixing.constant": torch.zeros(n, n, dtype=DOUBLE)},
    }
    for mixing, [(key, value)] in ((kind, page.items()) for kind, page in neutral.items()):
        model = make(name, group=group, mixing=mixing)
        given = {k: value if k.endswith(key) else kept[k] for k in model.weights()}
        assert set(given) > set(kept)
        assert close(outputs(model, given, xs), outputs(none, kept, xs), 1e-9), mixing


@each_group
@torch.no_grad()
def test_low_rank_mixing_is_the_identity_and_a_product(group: str) -> None:
    model = make("osm-rnn", group=group, mixing="low-rank", rank=2)
    U, W, D = model.mixing.left, model.mixing.right, model.group.dim
    assert (U.shape, W.shape) == ((D, 2), (2, D))
    expected = [[float(i == j) + float(U[i] @ W[:, j]) for j in range(D)] for i in range(D)]
    found = model.weights()["mixing"]
    assert close(found, torch.tensor(expected, dtype=DOUBLE), 1e-12)
    assert torch.linalg.matrix_rank(found - torch.eye(D, dtype=DOUBLE)) == min(2, D)


@each_group
@torch.no_grad()
def test_joined_tangents_are_the_logarithm_of_a_product_to_third_order(group: str) -> None:
    algebra = make_group(group, 4)
    X, C = algebra.tangent(normal(2, algebra.dim)).unbind()
    X, C = X / X.norm(), C / C.norm()
    assert algebra.contains(torch.linalg.matrix_exp(join(X, C)).float())[0]
    exp = torch.linalg.matrix_exp
    errors = [
        float((exp(join(size * X, size * C)) - exp(size * X) @ exp(size * C)).norm())
        for size in (0.2, 0.1, 0.05)
    ]
    if group in ("torus", "diagonal"):  # all brackets are 0
        assert close(join(X, C), X + C, 1e-14)
    else:
        assert [big / small for big, small in zip(errors, errors[1:], strict=False)] == [
            pytest.approx(16.0, rel=0.05)
        ] * 2


@each_group
@each_mixing
@torch.no_grad()
def test_a_phase_without_gain_leaves_states_as_they_are(group: str, mixing: str) -> None:
    model = make("osm-former", group=group, mixing=mixing)
    weights, xs = model.weights(), characters(T, B)
    gains = [key for key in weights if key.endswith("gain")]
    off = weights | {key: torch.zeros((), dtype=DOUBLE) for key in gains}
    H = model.group.exp(model.group.project(weights["input"][xs]))
    assert close(outputs(model, off, xs), model.readout(weights, {"H": H}), 1e-9)
    grounded = weights | {key: off[key] for key in gains if "attention" in key}
    alone = torch.cat([outputs(model, grounded, x[None]) for x in xs])  # nothing comes from others
    assert close(outputs(model, grounded, xs), alone, 1e-9)


# --- the two components of O(d)


@each_family
@torch.no_grad()
def test_prototypes_lie_in_both_components_of_o(name: str) -> None:
    prototypes = make(name, group="o").weights()["readout.prototypes"]
    assert close(torch.linalg.det(prototypes), torch.tensor([1.0, -1.0] * (Y // 2)).double())


@pytest.mark.parametrize("side", [1.0, -1.0])
@torch.no_grad()
def test_osm_rnn_states_never_leave_their_component_of_o(side: float) -> None:
    model = make("osm-rnn", group="o")
    weights, H = model.weights(), torch.eye(4, dtype=DOUBLE).repeat(B, 1, 1)
    H[:, 0, 0] = side
    for x in characters(20, B):
        H = model.update(weights, {"H": H}, x)["H"]
        assert close(torch.linalg.det(H), torch.full((B,), side).double())
