"""The sampler inside the graph against plain numpy: which character, and how probable it was."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import serve.runtime.session
from export.parity.text import UNIFORM_STEPS
from serve.native.library import load, status
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device

Array = NDArray[Any]
Arrays = dict[str, Array]

V = 14  # characters of the small text
FAMILIES = ("osm-rnn", "tanh-rnn")
LAST = (UNIFORM_STEPS - 1) / UNIFORM_STEPS  # the largest uniform there is
CLEAR = 1e-4  # float32 may decide otherwise for a uniform that is closer to a border than this


class Row(NamedTuple):
    """What one stream asks of the sampler, and what it draws."""

    temperature: float
    top_k: int
    top_p: float
    bias: list[float]
    uniform: float


@pytest.fixture(scope="module", params=["native", "standard"])
def bundle(exported: Callable[[str], Path], request: pytest.FixtureRequest) -> Iterator[Bundle]:
    """A small model, its sampler by the kernel and by the body in the file."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "standard":
            patch.setattr(serve.runtime.session, "load", lambda: None)
        elif load() is None:
            pytest.skip(status())
        found = Bundle(exported("tanh-rnn") / "bundle", Device("cpu", 1))
        assert found.plain.session.kernels.startswith(request.param)
        yield found


def run(bundle: Bundle, B: int, K: int = 1, **inputs: Any) -> Arrays:
    """B fresh streams through K steps; what isn't given is neutral."""
    feeds: Arrays = {f"state.{name}": np.stack([v] * B) for name, v in bundle.initial.items()}
    neutral: dict[str, tuple[float, tuple[int, ...], type]] = {
        "position": (0, (B,), np.int64),
        "forced": (-1, (K, B), np.int64),
        "num_steps": (K, (B,), np.int64),
        "uniform": (0.0, (K, B), np.float32),
        "temperature": (1.0, (B,), np.float32),
        "top_k": (0, (B,), np.int64),
        "top_p": (1.0, (B,), np.float32),
        "bias": (0.0, (B, V), np.float32),
    }
    for name, (value, shape, dtype) in neutral.items():
        given_ = np.asarray(inputs.pop(name, value))
        feeds[name] = np.ascontiguousarray(np.broadcast_to(given_, shape).astype(dtype))
    return bundle.plain.session.run(feeds | inputs)


def first_logits(bundle: Bundle) -> Array:
    """What fresh streams predict: (V)."""
    logits: Array = run(bundle, 1)["logits"][0, 0]
    return logits


def log_softmax(logits: Array) -> Array:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    made: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return made


def odds(logits: Array, row: Row) -> tuple[Array, float]:
    """The row's distribution before scaling, and how clear its cuts are: (V), ()."""
    scores = (logits.astype(np.float64) + np.array(row.bias)) / row.temperature
    q = np.exp(scores - scores.max())
    q /= q.sum()
    order = np.argsort(-q, kind="stable")
    before = np.cumsum(q[order]) - q[order]
    kept, clear = np.ones(len(q), bool), 1.0
    if row.top_k:
        kept &= np.arange(len(q)) < row.top_k
        clear = min([clear, *(q[order][row.top_k - 1 : row.top_k] - q[order][row.top_k :][:1])])
    if row.top_p < 1.0:
        kept &= before < row.top_p
        clear = min(clear, np.abs(before - row.top_p).min())
    cut = np.zeros(len(q))
    cut[order[kept]] = q[order[kept]]
    return cut, clear


def choose(logits: Array, row: Row) -> tuple[int, float]:
    """The character of a row by the inverse CDF in vocabulary order, and how clear that is."""
    if row.temperature == 0.0:
        scores = np.sort(logits + np.array(row.bias))
        return int(np.argmax(logits + np.array(row.bias))), float(scores[-1] - scores[-2])
    cut, clear = odds(logits, row)
    cumulative = np.cumsum(cut)
    threshold = row.uniform * cumulative[-1]
    token = min(int((cumulative <= threshold).sum()), len(cut) - 1)
    return token, min(clear, float(np.abs(cumulative - threshold).min()))


uniforms = st.integers(0, UNIFORM_STEPS - 1).map(lambda i: i / UNIFORM_STEPS)
a_bias = st.one_of(st.just(0.0), st.floats(-6.0, 6.0, width=32), st.just(-np.inf))
every_row = st.builds(
    Row,
    temperature=st.one_of(st.just(0.0), st.just(1.0), st.floats(0.125, 10.0, width=32)),
    top_k=st.one_of(st.just(0), st.integers(1, V + 3)),
    top_p=st.one_of(st.just(1.0), st.floats(0.0625, 1.0, width=32)),
    bias=st.lists(a_bias, min_size=V, max_size=V).filter(lambda bias: max(bias) > -np.inf),
    uniform=uniforms,
)


def run_rows(bundle: Bundle, rows: list[Row]) -> Arrays:
    return run(bundle, len(rows), **columns(rows))


def columns(rows: list[Row]) -> dict[str, Any]:
    return {name: [getattr(row, name) for row in rows] for name in Row._fields}


@settings(max_examples=150)
@given(st.lists(every_row, min_size=1, max_size=8))
def test_every_row_takes_the_character_that_numpy_takes(bundle: Bundle, rows: list[Row]) -> None:
    found = run_rows(bundle, rows)
    for i, row in enumerate(rows):
        token, clear = choose(found["logits"][0, i], row)
        assert found["tokens"][0, i] == token or clear < CLEAR
        assert row.bias[found["tokens"][0, i]] > -np.inf


@settings(max_examples=60)
@given(st.lists(every_row, min_size=1, max_size=8))
def test_the_log_probability_is_of_the_raw_distribution(bundle: Bundle, rows: list[Row]) -> None:
    found = run_rows(bundle, rows)
    raw = log_softmax(found["logits"])
    taken = np.take_along_axis(raw, found["tokens"][..., None], axis=-1)[..., 0]
    assert np.isfinite(found["logits"]).all()
    assert np.abs(found["logprob"] - taken).max() <= 1e-6 * (1.0 + np.abs(taken).max())


@settings(max_examples=60)
@given(st.lists(every_row, min_size=1, max_size=8), st.data())
def test_a_forced_character_is_taken_whatever_the_settings(
    bundle: Bundle, rows: list[Row], data: st.DataObject
) -> None:
    forced = data.draw(st.lists(st.integers(0, V - 1), min_size=len(rows), max_size=len(rows)))
    found = run(bundle, len(rows), forced=forced, **columns(rows))
    plain = run(bundle, len(rows), forced=forced)
    assert found["tokens"][0].tolist() == forced
    assert {k: v.tobytes() for k, v in found.items()} == {k: v.tobytes() for k, v in plain.items()}


@given(st.sets(st.integers(0, V - 1), min_size=1), st.floats(0.1, 10.0), uniforms)
def test_ties_go_to_the_lowest_index(
    bundle: Bundle, tied: set[int], temperature: float, uniform: float
) -> None:
    bias = level(bundle, tied, -5.0)
    greedy = run(
        bundle, 2, temperature=[0.0, temperature], top_k=[0, 1], bias=bias, uniform=uniform
    )
    assert greedy["tokens"].tolist() == [[min(tied)] * 2]


def level(bundle: Bundle, places: set[int], others: float) -> Array:
    """The bias that makes all scores at these places 0, to the bit, and all others lower."""
    logits = first_logits(bundle)
    inside = np.isin(np.arange(V), sorted(places))
    return np.where(inside, -logits, -logits + np.float32(others))


@given(st.lists(st.floats(-6.0, 6.0, width=32), min_size=V, max_size=V), uniforms)
def test_the_most_probable_one_alone_is_greedy(
    bundle: Bundle, bias: list[float], uniform: float
) -> None:
    scores = np.sort(first_logits(bundle) + np.array(bias))
    narrow: dict[str, Any] = {"temperature": [0.0, 1.0, 0.5, 1.0], "top_k": [0, 1, 1, 0]}
    found = run(bundle, 4, bias=bias, uniform=uniform, top_p=[1, 1, 1, 1e-3], **narrow)
    assert len(set(found["tokens"][0].tolist())) == 1 or scores[-1] - scores[-2] < CLEAR


@pytest.mark.parametrize(
    "extreme", [{"temperature": 1e-38}, {"temperature": 1e-45}, {"top_p": 1e-45}, {"top_p": 0.0}]
)
def test_settings_near_zero_are_greedy(bundle: Bundle, extreme: dict[str, Any]) -> None:
    for best in (0, 5, V - 1):
        bias = np.where(np.arange(V) == best, 30.0, 0.0)
        found = run(bundle, 3, uniform=[0.0, 0.5, LAST], bias=bias, **extreme)
        assert found["tokens"].tolist() == [[best] * 3]


@given(st.sets(st.integers(0, V - 1), min_size=1))
def test_the_ends_of_the_interval_take_the_first_and_the_last_that_is_allowed(
    bundle: Bundle, allowed: set[int]
) -> None:
    bias = level(bundle, allowed, -np.inf)
    found = run(bundle, 4, bias=bias, uniform=[0.0, LAST] * 2, top_k=[0, 0, len(allowed), V])
    assert found["tokens"].tolist() == [[min(allowed), max(allowed)] * 2]


@pytest.mark.parametrize("ask", [{}, {"top_k": 4}, {"top_p": 0.9}, {"temperature": 3.0}])
def test_a_forbidden_character_is_never_taken(bundle: Bundle, ask: dict[str, Any]) -> None:
    forbidden = [0, 3, 4, V - 1]
    bias = np.where(np.isin(np.arange(V), forbidden), -np.inf, 0.0)
    u = np.linspace(0.0, LAST, 2000)
    found = run(bundle, len(u), bias=bias, uniform=u, **ask)["tokens"]
    assert not np.isin(found, forbidden).any()
    assert (np.diff(found[0]) >= 0).all()  # the inverse of a CDF never falls


SETTINGS = {
    "plain": Row(1.0, 0, 1.0, [0.0] * V, 0.0),
    "warm": Row(2.5, 0, 1.0, [0.0] * V, 0.0),
    "top_k": Row(1.5, 5, 1.0, [0.0] * V, 0.0),
    "top_p": Row(1.5, 0, 0.8, [0.0] * V, 0.0),
    "biased": Row(0.9, 9, 0.95, [1.5, -np.inf, -2.0, 3.0, 0.5, 0.0, 1.0] * 2, 0.0),
}


def counts(bundle: Bundle, row: Row, u: Array) -> tuple[Array, Array]:
    """How often each character was taken, and how often it should be: (V), (V)."""
    asked = {name: getattr(row, name) for name in ("temperature", "top_k", "top_p", "bias")}
    found = run(bundle, len(u), uniform=u, **asked)
    cut, clear = odds(found["logits"][0, 0], row)
    assert clear > CLEAR
    return np.bincount(found["tokens"][0], minlength=V), cut / cut.sum() * len(u)


@pytest.mark.parametrize("name", SETTINGS)
def test_evenly_spread_uniforms_take_each_character_its_share(bundle: Bundle, name: str) -> None:
    found, expected = counts(bundle, SETTINGS[name], np.arange(8192) / 8192)
    assert np.abs(found - expected).max() <= 1.01


@pytest.mark.parametrize("name", SETTINGS)
def test_frequencies_follow_the_distribution(bundle: Bundle, name: str) -> None:
    u = np.random.default_rng(0).integers(0, UNIFORM_STEPS, 20_000) / UNIFORM_STEPS
    found, expected = counts(bundle, SETTINGS[name], u)
    possible = expected > 0.0
    freedom = int(possible.sum()) - 1
    chi_square = float(((found - expected)[possible] ** 2 / expected[possible]).sum())
    assert found[~possible].sum() == 0
    assert chi_square <= freedom + 5.0 * np.sqrt(2.0 * freedom)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("position", [0, 5, 16])
def test_a_row_that_rests_returns_nothing_and_keeps_its_state(
    exported: Callable[[str], Path], family: str, position: int
) -> None:
    bundle = Bundle(exported(family) / "bundle", Device("cpu", 1))
    moved = run(bundle, 4, 6, forced=np.arange(24).reshape(6, 4) % V)
    state = {f"state.{s.name}": moved[f"next.{s.name}"] * np.float32(1.01) for s in bundle.states}
    steps = {"num_steps": [0, 2, 0, 5], "position": position, "uniform": 0.4}
    found = run(bundle, 4, 5, **steps, **state)
    assert found["tokens"][:, [0, 2]].tolist() == [[-1, -1]] * 5
    assert found["tokens"][2:, 1].tolist() == [-1] * 3
    assert (found["tokens"][:2, 1] >= 0).all() and (found["tokens"][:, 3] >= 0).all()
    assert (found["logprob"][found["tokens"] < 0] == 0.0).all()
    for s in bundle.states:
        before, after = state[f"state.{s.name}"], found[f"next.{s.name}"]
        assert after[[0, 2]].tobytes() == before[[0, 2]].tobytes()
        assert (after[[1, 3]] != before[[1, 3]]).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_keeps_the_state_that_it_had_after_its_last_step(
    exported: Callable[[str], Path], family: str
) -> None:
    bundle = Bundle(exported(family) / "bundle", Device("cpu", 1))
    short = run(bundle, 2, 3, uniform=0.7)
    long = run(bundle, 2, 9, uniform=0.7, num_steps=[3, 9])
    assert long["tokens"][:3, 0].tobytes() == short["tokens"][:, 0].tobytes()
    for s in bundle.states:
        name = f"next.{s.name}"
        assert long[name][0].tobytes() == short[name][0].tobytes()
