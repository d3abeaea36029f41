"""The operators of domain `torsor`, version 1: what a file holds besides standard ones.

| operator                   | gives                                                        |
|----------------------------|--------------------------------------------------------------|
| `MatrixExp(S)`             | exp(S) of any square S: see `export.graph.matrix_exp`        |
| `OrthoStep(H, S)`          | H exp(S)                                                     |
| `MixStep(H, A, G)`         | H exp(tangent(u G)), u = coordinates(Hᵀ A), on SO(d) or O(d) |
| `SampleToken(logits, ...)` | the character taken: see `export.graph.sampler`              |
| `OsmAdvance(H, ...)`       | the whole of `advance`: see `export.graph.osm_advance`       |

Each stands in the file as a function of standard operators, so that every stock runtime can run it;
the kernels of `serve/native/` take their place where they are registered. The S of `OrthoStep` is
skew-symmetric and G = Γᵀ is (D, D); all other matrices are (..., d, d), of one shape.
"""

from collections.abc import Callable, Iterable

import onnx
from onnx import FunctionProto, NodeProto, helper

from export.graph.matrix_exp import matrix_exp_function
from export.graph.sampler import sample_token_function
from serve.manifest.page import DOMAIN, OPSET, VERSION
from train.groups.orthogonal import SO

HEADER = f'<domain: "{DOMAIN}", opset_import: ["" : {OPSET}, "{DOMAIN}" : {VERSION}]>'
USED_BY = {"OrthoStep": ("MatrixExp",), "MixStep": ("OrthoStep", "MatrixExp")}


def operator_functions(nodes: Iterable[NodeProto], squarings: int) -> list[FunctionProto]:
    """The bodies of our operators among these nodes, each behind those that it uses.

    A `MixStep` from torch has its d as an attribute. It is taken away: kernels see it in shapes.
    """
    used, sizes = set[str](), set[int]()
    for node in nodes:
        if node.domain == DOMAIN:
            used.update((node.op_type, *USED_BY.get(node.op_type, ())))
            sizes.update(attribute.i for attribute in node.attribute)
            del node.attribute[:]
    makers: dict[str, Callable[[], FunctionProto]] = {
        "MatrixExp": lambda: matrix_exp_function(squarings),
        "OrthoStep": ortho_step_function,
        "MixStep": lambda: mix_step_function(*sizes),  # a model has one group
        "SampleToken": sample_token_function,
    }
    return [make() for name, make in makers.items() if name in used]


def ortho_step_function() -> FunctionProto:
    """H exp(S), the exponential by `MatrixExp`."""
    return _function(
        "OrthoStep (H, S) => (E)",
        f"X = {DOMAIN}.MatrixExp (S)",
        "E = MatMul (H, X)",
    )


def mix_step_function(d: int) -> FunctionProto:
    """A move with mixing on SO(d), as `train.layers.mixing` has it.

    u_ij = (A_ij - A_ji) / √2 of HᵀA for i < j,  v = u G,  S_ij = v_ij / √2 = -S_ji,  H exp(S)
    """
    group = SO(d)
    function = _function(
        "MixStep (H, A, G) => (E)",
        "shape = Shape (H)",
        "H3 = Reshape (H, matrices)",
        "A3 = Reshape (A, matrices)",
        "back = Transpose <perm: ints = [0, 2, 1]> (H3)",
        "seen = MatMul (back, A3)",
        "flat = Reshape (seen, rows)",
        "upper = Gather <axis: int = 1> (flat, c_upper)",
        "lower = Gather <axis: int = 1> (flat, c_lower)",
        "difference = Sub (upper, lower)",
        "mixed = MatMul (difference, G)",
        "half = CastLike (half_f32, H)",
        "v = Mul (mixed, half)",  # both 1/√2 at once: runtimes keep a fused scale in float32
        "minus_v = Neg (v)",
        "some = Slice (difference, first, second, second)",
        "nothing = Sub (some, some)",
        "signed = Concat <axis: int = 1> (v, minus_v, nothing)",
        "unpacked = Gather <axis: int = 1> (signed, c_unpack)",
        "S = Reshape (unpacked, shape)",
        f"E = {DOMAIN}.OrthoStep (H, S)",
    )
    places = {
        "matrices": [-1, d, d],
        "rows": [-1, d * d],
        "c_upper": group.upper.tolist(),
        "c_lower": group.lower.tolist(),
        "c_unpack": group.unpack.tolist(),
        "first": [0],
        "second": [1],
    }
    for name, value in places.items():
        function.node.insert(0, helper.make_node("Constant", [], [name], value_ints=value))
    half = helper.make_node("Constant", [], ["half_f32"], value_float=0.5)
    function.node.insert(0, half)
    return function


def _function(head: str, *lines: str) -> FunctionProto:
    body = "\n".join(lines)
    return onnx.parser.parse_function(f"{HEADER}\n{head}\n{{\n{body}\n}}")
