"""`OsmAdvance`: the whole `advance` of an OSM-RNN in one kernel, against the graph behind it."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from export.graph.advance import build_advance
from export.graph.osm_advance import NAME, OUTPUTS, WEIGHTS, fold, unfold
from serve.native.library import load, status
from train.model import family

Array = NDArray[Any]
Arrays = dict[str, Array]
V = 11
SIZES = (5, 16, 22)
SQUARINGS = 4
CLOSE = 1e-5
pytestmark = pytest.mark.skipif(load() is None, reason=status())


def build(d: int, **settings: str) -> tuple[ModelProto, Arrays]:
    """A model's graph and its weights; tokens turn as far as those of a trained one."""
    kind = family("osm-rnn")
    config = kind.Config(input_size=V, output_size=V, d=d, **settings)
    model = kind(config, torch.Generator().manual_seed(d)).requires_grad_(False).eval()
    weights = model.weights()
    weights["input"] = 4.0 * weights["input"]
    return build_advance(model, weights, SQUARINGS), {n: w.numpy() for n, w in weights.items()}


@pytest.fixture(scope="module", params=SIZES)
def built(request: pytest.FixtureRequest) -> tuple[ModelProto, Arrays]:
    """The graph of an OSM-RNN on SO(d)."""
    return build(request.param)


def make_feeds(d: int, B: int, K: int, **given: Any) -> Arrays:
    """Streams of every kind: forced and sampled, cut, greedy, biased, resting, due a correction."""
    rng, row = np.random.default_rng([d, B, K]), np.arange(B)
    H = np.linalg.qr(rng.standard_normal((B, d, d)))[0] + 1e-4 * rng.standard_normal((B, d, d))
    bias = np.where(rng.random((B, V)) < 0.2, -np.inf, rng.standard_normal((B, V)))
    bias[:, 0] = 0.0
    feeds = {
        "state.H": H,
        "position": np.where(row % 3 == 1, 16, row),
        "forced": np.where(rng.random((K, B)) < 0.3, rng.integers(0, V, (K, B)), -1),
        "num_steps": np.where(row % 5 == 3, row % (K + 1), K),
        "uniform": rng.integers(0, 1 << 23, (K, B)) / (1 << 23),
        "temperature": rng.choice([0.0, 0.7, 1.0, 1.0], B),
        "top_k": rng.choice([0, 0, 4], B),
        "top_p": rng.choice([1.0, 1.0, 0.6], B),
        "bias": np.where(row[:, None] // 8 % 2 == 0, 0.0, bias),
    }
    feeds = {n: a if a.dtype == np.int64 else a.astype(np.float32) for n, a in feeds.items()}
    return feeds | given


def copy(model: ModelProto) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(model)
    return made


def with_weights(model: ModelProto, weights: Arrays, constant: bool = True) -> ModelProto:
    """The file with its weights as constants, or as inputs of every run."""
    whole = copy(model)
    for name, value in weights.items():
        if constant:
            whole.graph.initializer.append(numpy_helper.from_array(value, name))
        else:
            shape = list(value.shape)
            given = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            whole.graph.input.append(given)
    return whole


def session(model: ModelProto, native: bool = True, num_threads: int = 1) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    if native:
        library = load()
        assert library is not None
        options.register_custom_ops_library(str(library.path))
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)


def run(session: Any, feeds: Arrays) -> Arrays:
    return dict(zip(OUTPUTS, session.run(list(OUTPUTS), feeds), strict=True))


def column(feeds: Arrays, rows: slice) -> Arrays:
    """Some of the streams."""
    along = {"forced", "uniform", "tokens", "logprob", "logits"}
    return {n: a[:, rows] if n in along else a[rows] for n, a in feeds.items()}


def assert_same_bits(found: Arrays, expected: Arrays) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_the_whole_graph_is_one_node_and_its_body(built: tuple[ModelProto, Arrays]) -> None:
    model = built[0]
    assert [node.op_type for node in model.graph.node] == ["Constant", NAME]
    assert model.functions[-1].name == NAME
    opened = copy(model)
    unfold(opened)
    assert NAME not in {function.name for function in opened.functions}
    assert "Scan" in {node.op_type for node in opened.graph.node}
    fold(opened)
    assert [node.op_type for node in opened.graph.node] == ["Constant", NAME]


@pytest.mark.parametrize("B, K", [(1, 16), (2, 3), (9, 16), (41, 5)])
def test_kernel_body_and_the_graph_without_it_agree(
    built: tuple[ModelProto, Arrays], B: int, K: int
) -> None:
    model, weights = built
    d = weights["input"].shape[-1]
    whole = with_weights(model, weights)
    feeds = make_feeds(d, B, K)
    expected = run(session(whole, native=False), feeds)
    # a uniform near a border may draw a neighbour elsewhere: what was drawn is forced
    taken = np.maximum(expected["tokens"], 0)
    assert (run(session(whole), feeds)["tokens"] == expected["tokens"]).mean() > 0.95
    feeds["forced"] = taken
    expected = run(session(whole, native=False), feeds)
    opened = copy(whole)
    unfold(opened)
    assert_same_bits(run(session(opened, native=False), feeds), expected)
    reference: Any = ReferenceEvaluator(whole).run(list(OUTPUTS), feeds)
    for found in (run(session(whole), feeds), dict(zip(OUTPUTS, reference, strict=True))):
        np.testing.assert_array_equal(found["tokens"], expected["tokens"])
        for name in OUTPUTS:
            assert found[name].shape == expected[name].shape
            assert found[name].dtype == expected[name].dtype
            np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=CLOSE)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(7, 9), slice(31, 35), slice(69, 70)])
def test_batch_mates_threads_and_cuts_never_show_in_the_bits(
    built: tuple[ModelProto, Arrays], rows: slice
) -> None:
    model, weights = built
    whole = with_weights(model, weights)
    native = session(whole)
    feeds = make_feeds(weights["input"].shape[-1], 70, 6, num_steps=np.full(70, 6))
    feeds["position"] = np.arange(70) % 10 + 1
    together = run(native, feeds)
    assert_same_bits(run(session(whole, num_threads=2), feeds), together)
    assert_same_bits(run(native, column(feeds, rows)), column(together, rows))
    steps = [slice(0, 2), slice(2, 6)]
    state, chunks = feeds["state.H"], list[Arrays]()
    for part in steps:
        cut = feeds | {n: feeds[n][part] for n in ("forced", "uniform")} | {"state.H": state}
        cut["num_steps"] = np.full(70, part.stop - part.start)
        chunks.append(run(native, cut | {"position": feeds["position"] + part.start}))
        state = chunks[-1]["next.H"]
    assert_same_bits({"next.H": state}, {"next.H": together["next.H"]})
    for name in ("tokens", "logprob", "logits"):
        joined = np.concatenate([chunk[name] for chunk in chunks])
        np.testing.assert_array_equal(joined, together[name])


def test_weights_that_are_no_constants_give_the_same_bits(
    built: tuple[ModelProto, Arrays],
) -> None:
    model, weights = built
    feeds = make_feeds(weights["input"].shape[-1], 9, 4)
    expected = run(session(with_weights(model, weights)), feeds)
    assert_same_bits(
        run(session(with_weights(model, weights, constant=False)), feeds | weights), expected
    )


def test_a_broken_stream_leaves_the_others_alone(built: tuple[ModelProto, Arrays]) -> None:
    model, weights = built
    native = session(with_weights(model, weights))
    feeds = make_feeds(weights["input"].shape[-1], 12, 5, num_steps=np.full(12, 5))
    feeds["forced"][:, 4] = -1
    whole = run(native, feeds)
    feeds["state.H"][4, 0, 1] = np.nan
    found = run(native, feeds)
    assert np.isnan(found["next.H"][4]).all() and np.isnan(found["logprob"][:, 4]).all()
    assert (found["tokens"][:, 4] == 0).all()
    for rows in (slice(0, 4), slice(5, 12)):
        assert_same_bits(column(found, rows), column(whole, rows))


def test_nothing_gives_nothing(built: tuple[ModelProto, Arrays]) -> None:
    model, weights = built
    d, native = weights["input"].shape[-1], session(with_weights(model, weights))
    assert run(native, make_feeds(d, 0, 3))["logits"].shape == (3, 0, V)
    none = run(native, make_feeds(d, 2, 0, position=np.array([1, 1])))
    assert none["tokens"].shape == (0, 2)
    np.testing.assert_array_equal(none["next.H"], make_feeds(d, 2, 0)["state.H"])


def test_mistakes_are_named(built: tuple[ModelProto, Arrays]) -> None:
    model, weights = built
    d, native = weights["input"].shape[-1], session(with_weights(model, weights))
    with pytest.raises(Exception, match="not a row of the table"):
        native.run(None, make_feeds(d, 2, 3, forced=np.full((3, 2), V)))
    loose = with_weights(model, weights, constant=False)
    for value in loose.graph.input:
        value.type.tensor_type.ClearField("shape")
    free = session(loose)
    for changed, problem in (
        ({"mixing": weights["mixing"][:-1]}, "expected a mixing"),
        ({"uniform": np.zeros((3, 1), np.float32)}, r"of \(K, B\)"),
        ({"top_k": np.zeros(3, np.int64)}, "one setting a stream"),
        ({"bias": np.zeros((2, V + 1), np.float32)}, "bias of"),
    ):
        with pytest.raises(Exception, match=problem):
            free.run(None, make_feeds(d, 2, 3) | weights | changed)


@pytest.mark.parametrize("settings", [{"mixing": "none"}, {"group": "u"}])
def test_other_models_keep_their_loop(settings: dict[str, str]) -> None:
    model, _ = build(3, **settings)
    assert "Scan" in {node.op_type for node in model.graph.node}
    assert set(WEIGHTS) - {"mixing"} <= {
        name for node in model.graph.node for name in node.input
    } | {
        name
        for node in model.graph.node
        for a in node.attribute
        for n in a.g.node
        for name in n.input
    }
