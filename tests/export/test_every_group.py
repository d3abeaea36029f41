"""Bundles over every group and every mixing: parity, native kernels = bodies, nothing complex.

Fresh weights of tiny models. A test takes each group and each mixing in turn, not all pairs.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import export.bundle
import export.parity.text
from export.bundle import export_bundle
from export.check import read_model
from export.parity.text import TOLERANCE, Evaluate, Shape, largest_error, measure_case, runtime
from serve.manifest.page import GRAPH_FILE, WEIGHTS_FILE
from serve.manifest.read import read_manifest
from serve.native.library import load, status
from train.groups.by_name import group_names
from train.layers.mixing import MIXINGS
from train.run import save_run, start_run
from train.settings import Settings

Arrays = dict[str, NDArray[Any]]

SHAPES = (Shape(3, 2, under_way=True),)  # of the reports: the reference is slow
COMPLEX = {TensorProto.COMPLEX64, TensorProto.COMPLEX128}
MODELS = {
    "so, none": ("osm-rnn", {"group": "so", "d": 3, "mixing": "none"}),
    "o, low-rank": ("osm-rnn", {"group": "o", "d": 4, "mixing": "low-rank", "rank": 2}),
    "u, linear": ("osm-rnn", {"group": "u", "d": 2, "mixing": "linear"}),
    "su, bch": ("osm-rnn", {"group": "su", "d": 2, "mixing": "bch"}),
    "torus, linear": ("osm-rnn", {"group": "torus", "d": 3, "mixing": "linear"}),
    "diagonal, low-rank": (
        "osm-rnn",
        {"group": "diagonal", "d": 3, "mixing": "low-rank", "rank": 2},
    ),
    "osm-former, u": (
        "osm-former",
        {"group": "u", "d": 2, "mixing": "linear", "layers": 1, "heads": 1, "context": 3},
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a model that was never trained; it has been written, so its bodies are right."""
    family, sizes = MODELS[request.param]
    folder = tmp_path_factory.mktemp("group")
    (folder / "text.txt").write_text("abcd" * 200)
    settings = Settings(data=str(folder / "text.txt"), window=8, batch=2)
    save_run(start_run(folder / "run", family, sizes, settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export.parity.text, "SHAPES", SHAPES)
        patch.setattr(export.bundle, "PROBE_CHARACTERS", 64)
        export_bundle(folder / "run", folder / "bundle", "group", quiet=True)
    return folder / "bundle"


def test_every_group_and_every_mixing_is_here() -> None:
    sizes = [sizes for _, sizes in MODELS.values()]
    assert {size["group"] for size in sizes} == set(group_names())
    assert {size["mixing"] for size in sizes} == set(MIXINGS)


def test_its_bodies_agree_with_torch(bundle: Path) -> None:
    parity = read_manifest(bundle).parity
    assert [case.weights for case in parity.cases] == ["trained", "random"]
    assert 0.0 < parity.max_error <= parity.tolerance == TOLERANCE


@pytest.mark.skipif(load() is None, reason=status())
def test_native_kernels_do_what_the_bodies_do(bundle: Path) -> None:
    subject = read_model(bundle, read_manifest(bundle))
    graph, heard = bundle / GRAPH_FILE, (list[Arrays](), list[Arrays]())
    bodies = listen(runtime(graph), heard[0])
    native = listen(runtime(graph, load()), heard[1])
    for shape in (Shape(1, 16), Shape(33, 4), Shape(7, 4, under_way=True)):
        case, tolerance = measure_case(subject, bodies, native, shape)
        assert max(case.reference_error, case.runtime_error) <= tolerance
    for found, expected in zip(*heard, strict=True):
        np.testing.assert_array_equal(found["tokens"], expected["tokens"])
        assert largest_error(found, expected) <= TOLERANCE / 5


def listen(evaluate: Evaluate, heard: list[Arrays]) -> Evaluate:
    def run(feeds: Arrays) -> Arrays:
        heard.append(evaluate(feeds))
        return heard[-1]

    return run


def test_no_tensor_is_complex(bundle: Path) -> None:
    types = list(types_of(onnx.load(bundle / GRAPH_FILE)))
    assert TensorProto.FLOAT in types and not COMPLEX & set(types)
    with (bundle / WEIGHTS_FILE).open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    assert {entry["dtype"] for name, entry in header.items() if name != "__metadata__"} == {"F32"}


def test_a_complex_tensor_would_be_found_wherever_it_is() -> None:
    tensor = numpy_helper.from_array(np.ones(1, np.complex64), "c")
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    value = helper.make_tensor_value_info("c", TensorProto.COMPLEX64, [1])
    branch = helper.make_graph([constant], "branch", [], [])
    function = helper.make_function("torsor", "F", [], ["c"], [constant], [])
    for nodes, inputs, initializers, functions in (
        ([constant], [], [], []),
        ([], [value], [], []),
        ([], [], [tensor], []),
        ([], [], [], [function]),
        ([helper.make_node("Cast", ["x"], ["c"], to=TensorProto.COMPLEX64)], [], [], []),
        ([helper.make_node("If", ["x"], ["c"], then_branch=branch)], [], [], []),
    ):
        graph = helper.make_graph(nodes, "graph", inputs, [], initializers)
        model = helper.make_model(graph, functions=functions)
        assert COMPLEX & set(types_of(model))


def types_of(model: onnx.ModelProto) -> Iterator[int]:
    """The element types of all tensors that a file names or makes."""
    inferred = onnx.shape_inference.infer_shapes(model)
    yield from _of_graph(inferred.graph)
    for function in inferred.functions:
        yield from _of_nodes(function.node)
        yield from (value.type.tensor_type.elem_type for value in function.value_info)


def _of_graph(graph: onnx.GraphProto) -> Iterator[int]:
    yield from (tensor.data_type for tensor in graph.initializer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.type.tensor_type.elem_type
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Any) -> Iterator[int]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t.data_type
            if node.op_type == "Cast" and attribute.name == "to":
                yield attribute.i
            if attribute.HasField("g"):
                yield from _of_graph(attribute.g)
