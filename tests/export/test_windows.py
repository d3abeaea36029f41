"""Windows read in blocks: what steps say, however a stream is cut; and no window in the loop."""

import functools
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor

from export.graph import windows as blocks
from export.graph.advance import MAX_STEPS, build_advance, runs_end_every
from export.parity.text import advance_reference, largest_error
from train.groups.by_name import group_names
from train.layers.sliding_window import BLOCK, SEEN, Windowed, block_at, close_window, open_block
from train.model import State, Weights, family

V, B = 7, 3
CLOSE = 1e-5
Arrays = dict[str, NDArray[Any]]

each_context = pytest.mark.parametrize("context", [2, 5, 16, 17, 40])
each_subject = pytest.mark.parametrize("name", ["transformer", "osm-former"])
SMALL = {"transformer": {"d": 16, "layers": 2}, "osm-former": {"d": 5, "layers": 2}}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(name: str, **sizes: Any) -> Windowed:
    kind: Any = family(name)
    config = kind.Config(input_size=V, output_size=V, **{**SMALL[name], **sizes})
    model = kind(config, generator()).requires_grad_(False)
    assert isinstance(model, Windowed)
    return model


def read(model: Windowed, weights: Weights, state: State, xs: Tensor) -> State:
    for x in xs:
        state = model.update(weights, state, x)
    return state


def run_in_block(
    model: Windowed, weights: Weights, state: State, position: Tensor, xs: Tensor
) -> State:
    """One run as `advance` makes it, without samples."""
    past, own, unseen = open_block(model, weights, state, position)
    windows = {name: state[name] for name in model.windows()}
    rest, rows = {n: v for n, v in state.items() if n not in windows}, torch.arange(len(position))
    taken = list[State]()
    for k, x in enumerate(xs):
        where = torch.stack([rows, (position + k) % BLOCK], -1)
        block = block_at(past, own, unseen, where, model.config.context)
        rest, own, entries = model.update_in_block(weights, rest, block, x)
        taken.append(entries | {SEEN: torch.ones_like(x, dtype=unseen.dtype)})
    entered = {name: torch.stack([entries[name] for entries in taken]) for name in windows}
    steps = torch.full_like(position, len(xs))
    return rest | {n: close_window(v, entered[n], steps) for n, v in windows.items()}


def check_runs(model: Windowed, position: int, cuts: list[int]) -> None:
    weights = model.weights()
    xs = torch.randint(V, (position + 40, B), generator=generator(1))
    start = read(model, weights, model.init_state(B), xs[:position])
    expected, found, now = read(model, weights, start, xs[position:]), start, position
    while now < len(xs):
        steps = min(cuts[now % len(cuts)], len(xs) - now, BLOCK - now % BLOCK)
        at = torch.full((B,), now)
        found = run_in_block(model, weights, found, at, xs[now : now + steps])
        now += steps
    assert found.keys() == expected.keys()
    assert max(float((found[n] - expected[n]).abs().max()) for n in expected) <= CLOSE


@each_subject
@each_context
@pytest.mark.parametrize("position", [0, 3, 16, 29])
@torch.no_grad()
def test_runs_in_blocks_do_what_single_steps_do(name: str, context: int, position: int) -> None:
    check_runs(make(name, context=context), position, [5, 1, 16])


@torch.no_grad()
def test_a_transformer_that_sees_itself_alone_has_blocks_too() -> None:
    check_runs(make("transformer", context=1), 3, [7])


@pytest.mark.parametrize("group", group_names())
@torch.no_grad()
def test_runs_in_blocks_do_what_single_steps_do_in_every_group(group: str) -> None:
    check_runs(make("osm-former", group=group, d=4, context=9), 5, [3, 16])


# The graph


class Graph(NamedTuple):
    """A family's `advance`, and the same from a twin that says nothing of its windows."""

    model: Windowed
    weights: Weights
    proto: onnx.ModelProto
    session: onnxruntime.InferenceSession

    def run(self, feeds: Arrays) -> Arrays:
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, feeds), strict=True))


def build(model: Windowed) -> Graph:
    weights = model.weights()
    proto = build_advance(model, weights, 3)
    values = [numpy_helper.from_array(v.numpy(), name) for name, v in weights.items()]
    proto.graph.initializer.extend(values)
    onnx.checker.check_model(proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return Graph(model, weights, proto, session)


@functools.cache
def graph_of(name: str) -> Graph:
    """A window that is longer than a block and no multiple of it."""
    one = {"d": 3, "group": "su", "layers": 1}  # torch takes seconds for each of its layers
    sizes: dict[str, Any] = {"d": 24} if name == "transformer" else one
    return build(make(name, context=21, **sizes))


@pytest.fixture
def graph(name: str) -> Graph:
    return graph_of(name)


def feeds_at(graph: Graph, positions: NDArray[Any], K: int, seed: int) -> Arrays:
    """Inputs of streams that have read `positions` (B) characters, for K forced steps."""
    rng, rows = np.random.default_rng(seed), list[State]()
    with torch.no_grad():
        for position in positions:
            xs = torch.from_numpy(rng.integers(0, V, (min(position, 40), 1)))
            rows.append(read(graph.model, graph.weights, graph.model.init_state(1), xs))
    size = len(positions)
    return {
        **{f"state.{n}": torch.cat([row[n] for row in rows]).numpy() for n in rows[0]},
        "position": positions,
        "forced": rng.integers(0, V, (K, size)),
        "num_steps": np.minimum(rng.choice([0, K // 2, K, K], size), BLOCK - positions % BLOCK),
        "uniform": np.zeros((K, size), np.float32),
        "temperature": np.ones(size, np.float32),
        "top_k": np.zeros(size, np.int64),
        "top_p": np.ones(size, np.float32),
        "bias": np.zeros((size, V), np.float32),
    }


def one_row(feeds: Arrays, row: int) -> Arrays:
    along_time = ("forced", "uniform")
    return {
        k: v[:, row : row + 1] if k in along_time else v[row : row + 1] for k, v in feeds.items()
    }


def cut_up(graph: Graph, feeds: Arrays, cuts: list[int]) -> dict[str, bytes]:
    """All K steps of one row, in runs of these lengths that end where blocks end."""
    K, k, state, parts = len(feeds["forced"]), 0, feeds, list[Arrays]()
    while k < K:
        position = feeds["position"] + k
        steps = min(cuts[k % len(cuts)], K - k, BLOCK - int(position[0]) % BLOCK)
        cut = {name: feeds[name][k : k + steps] for name in ("forced", "uniform")}
        numbers = {"position": position, "num_steps": np.full(1, steps)}
        parts.append(graph.run(state | cut | numbers))
        new = {f"state.{n[5:]}": v for n, v in parts[-1].items() if n.startswith("next.")}
        state, k = state | new, k + steps
    along_time = {n: np.concatenate([p[n] for p in parts]) for n in ("tokens", "logits", "logprob")}
    return {name: value.tobytes() for name, value in (parts[-1] | along_time).items()}


@each_subject
def test_the_loop_carries_no_window(graph: Graph) -> None:
    scan = next(node for node in graph.proto.graph.node if node.op_type == "Scan")
    body, S = scan.attribute[0].g, graph.model.init_state(1)[SEEN].shape[1]
    shapes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in body.input]
    assert not any(S in shape for shape in shapes)
    assert any(BLOCK in shape for shape in shapes)
    made = {o for node in body.node for o in node.output} | {i.name for i in body.input}
    outside = [n.op_type for n in body.node if n.input and not made.intersection(n.input)]
    assert set(outside) <= {"If"}  # its branches look outside by themselves
    assert runs_end_every(graph.model) == BLOCK >= MAX_STEPS


@each_subject
def test_a_window_that_is_carried_through_the_loop_gives_the_same(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = feeds_at(graph, np.array([0, 5, 31, 100]), 9, 0)
    found = graph.run(feeds)
    monkeypatch.setattr(blocks, "has_windows", lambda model: False)
    assert largest_error(build(graph.model).run(feeds), found) <= CLOSE


@each_subject
@hypothesis_settings(max_examples=15)
@given(
    start=st.integers(0, 50),
    cuts=st.lists(st.integers(1, BLOCK), min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
)
def test_bits_do_not_depend_on_cuts(name: str, start: int, cuts: list[int], seed: int) -> None:
    graph = graph_of(name)
    feeds = feeds_at(graph, np.array([start]), 45, seed)
    longest = cut_up(graph, feeds, [BLOCK])
    assert cut_up(graph, feeds, [1]) == longest
    assert cut_up(graph, feeds, cuts) == longest


@each_subject
@hypothesis_settings(max_examples=10)
@given(
    positions=st.lists(st.integers(0, 60), min_size=1, max_size=20),
    K=st.integers(1, BLOCK),
    seed=st.integers(0, 2**32),
)
def test_rows_do_not_see_their_neighbours_and_mean_what_torch_says(
    name: str, positions: list[int], K: int, seed: int
) -> None:
    graph = graph_of(name)
    feeds = feeds_at(graph, np.array(positions), K, seed)
    found = graph.run(feeds)
    assert largest_error(found, advance_reference(graph.model, graph.weights, feeds)) <= CLOSE
    for row in range(len(positions)):
        alone = graph.run(one_row(feeds, row))
        for key, value in found.items():
            mine = value[row] if key.startswith("next.") else value[:, row]
            assert alone[key].tobytes() == mine.tobytes(), key


@each_subject
def test_a_row_that_rests_keeps_the_bits_of_its_windows(graph: Graph) -> None:
    feeds = feeds_at(graph, np.array([3, 20, 47]), 9, 1) | {"num_steps": np.array([0, 0, 1])}
    found = graph.run(feeds)
    for name in graph.model.init_state(1):
        kept, start = found[f"next.{name}"], feeds[f"state.{name}"]
        assert kept[:2].tobytes() == start[:2].tobytes()
        if name in graph.model.windows() and name != SEEN:
            assert kept[2, :-1].tobytes() == start[2, 1:].tobytes()


@each_subject
def test_a_stream_may_be_very_long(graph: Graph) -> None:
    feeds = feeds_at(graph, np.array([40]), 8, 2)
    late = graph.run(feeds | {"position": feeds["position"] + BLOCK * 10**15})
    assert {n: v.tobytes() for n, v in late.items()} == {
        n: v.tobytes() for n, v in graph.run(feeds).items()
    }
