"""Our operators alone in a graph, and inputs for them."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from export.graph.operators import operator_functions
from serve.manifest.page import DOMAIN, OPSET, VERSION
from serve.native.library import load, status

Array = NDArray[Any]


Arrays = dict[str, Array]


TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float64): TensorProto.DOUBLE,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.bool_): TensorProto.BOOL,
}


SQUARINGS = 4  # of the bodies: angles up to 19.2 rad


needs_kernels = pytest.mark.skipif(load() is None, reason=status())


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def alone(operator: str, feeds: Arrays, output: int = TensorProto.FLOAT) -> ModelProto:
    """A model that is one of our operators, every axis free, its body in the file."""
    node = helper.make_node(operator, list(feeds), ["out"], domain=DOMAIN)
    if operator == "MixStep":
        node.attribute.append(helper.make_attribute("d", feeds["H"].shape[-1]))
    given = [
        helper.make_tensor_value_info(name, TYPES[a.dtype], [None] * a.ndim)
        for name, a in feeds.items()
    ]
    made = helper.make_tensor_value_info("out", output, None)
    functions = operator_functions([node], SQUARINGS)
    return helper.make_model(
        helper.make_graph([node], "alone", given, [made]),
        functions=functions,
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, VERSION)],
        ir_version=10,
    )


def evaluate(form: str, operator: str, feeds: Arrays, num_threads: int = 1) -> Array:
    """What the operator gives in one of the three forms."""
    output = (
        TensorProto.INT64 if operator == "SampleToken" else TYPES[next(iter(feeds.values())).dtype]
    )
    model = alone(operator, feeds, output)
    if form == "reference":
        made: Any = ReferenceEvaluator(model).run(None, feeds)
        return np.asarray(made[0])
    if form == "native":
        del model.functions[:]  # nothing else could run it
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    if form == "native":
        library = load()
        assert library is not None
        options.register_custom_ops_library(str(library.path))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, feeds)[0])


def skew(B: int, d: int, norm: float, dtype: Any = np.float32) -> Array:
    """Skew-symmetric matrices of that Frobenius norm."""
    A = rng(B, d).standard_normal((B, d, d))
    S = A - A.swapaxes(1, 2)
    size = np.maximum(np.linalg.norm(S, axis=(1, 2), keepdims=True), 1e-30)
    made: Array = (S / size * norm).astype(dtype)
    return made


def orthogonal(B: int, d: int, dtype: Any = np.float32) -> Array:
    made: Array = np.linalg.qr(rng(B, d, 1).standard_normal((B, d, d)))[0].astype(dtype)
    return made


def mix_feeds(B: int, d: int, dtype: Any = np.float32) -> Arrays:
    D = d * (d - 1) // 2
    G = np.eye(D) + 0.1 * rng(d, 2).standard_normal((D, D)) / max(d, 2)
    return {
        "H": orthogonal(B, d, dtype),
        "A": (0.3 * rng(B, d, 3).standard_normal((B, d, d)) / np.sqrt(d)).astype(dtype),
        "G": G.astype(dtype),
    }


def matrix_feeds(operator: str, B: int, d: int, dtype: Any = np.float32) -> Arrays:
    if operator == "MixStep":
        return mix_feeds(B, d, dtype)
    S = {"S": skew(B, d, 2.0, dtype)}
    return {"H": orthogonal(B, d, dtype), **S} if operator == "OrthoStep" else S


def token_feeds(B: int, V: int, **given: Any) -> Arrays:
    """Rows of every kind: sampled, greedy, forced, cut by top-k, by top-p, by both."""
    r, row = rng(B, V), np.arange(B)
    feeds = {
        "logits": (2.0 * r.standard_normal((B, V))).astype(np.float32),
        "bias": np.where(r.random((B, V)) < 0.1, -np.inf, 0.0).astype(np.float32),
        "divisor": (0.3 + r.random((B, 1))).astype(np.float32),
        "greedy": row % 5 == 4,
        "top_k": np.where(row % 3 == 1, max(1, V // 3), V)[:, None],
        "top_p": np.where(row % 4 == 2, 0.6, 2.0)[:, None].astype(np.float32),
        "uniform": (r.integers(0, 1 << 23, (B, 1)) / (1 << 23)).astype(np.float32),
        "forced": np.where(row % 7 == 6, row % V, -1),
    }
    feeds["bias"][:, 0] = 0.0  # something must stay allowed
    return feeds | given
