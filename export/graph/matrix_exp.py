"""The operator `torsor.MatrixExp`, version 1, and its body in standard operators.

    E = exp(S),   S any square (..., d, d), float32 or float64

The body scales S by 2^-s, takes the Taylor polynomial of degree 12 and squares s times. The
polynomial costs four products, in the form of Bader, Blanes and Casas (2019), freed of the
identity, so that small S keep their digits:

    B = b(S)^2,   X = e(S) + B,   exp(S) - I ≈ S + c_2 S^2 + c_3 S^3 + g B + (d(S) + X) X

b, d, e are of degree 3 and have no constants. As s is fixed, the body has a range: ‖S‖_F / √2 up
to ANGLE · 2^s in float32, a sixth of it in float64. Of skew-symmetric S that bounds the plane
angles, of all others it is a norm. In the range the error is some roundings of max(1, ‖E‖). Beyond,
where a fixed number of squarings would silently return a wrong matrix, it returns NaN, matrix by
matrix, so no matrix depends on its batch mates.

Stock runtimes run the body. A native kernel of the same name takes its place where one is
registered: it squares as often as a matrix asks for, and has a fast path for skew-symmetric S.
"""

import math

import numpy as np
import onnx
from onnx import FunctionProto, helper, numpy_helper

from serve.manifest.page import DOMAIN, OPSET
from train.groups.matrix_exp import ANGLE, num_squarings

HEADROOM = 2.0  # ablated weights may turn further than trained ones
MAX_BODY_SQUARINGS = 8
DOUBLE_SHARE = 1.0 / 6.0  # of the range, where float64 still gets all its digits
TINY = 1e-60  # zero in float32
POLYNOMIAL = {  # the letters of the equation above
    "b1": -0.13181061013830184,
    "b2": -0.020278555405892591,
    "b3": -0.0067595184686308636,
    "e1": 0.15822438471572673,
    "e2": 0.16563516943672742,
    "e3": 0.010786277931579243,
    "d1": 0.99287510353848683,
    "d2": -0.13244556105279964,
    "d3": 0.0017299,
    "c2": 0.23059149366054513,
    "c3": -0.078849845912911847,
    "g": 5.0233862365996189,
}


def body_squarings(angle: float) -> int:
    """Squarings of a body that covers `HEADROOM` times the angle that was seen.

    `ValueError` above 2^`MAX_BODY_SQUARINGS` times `ANGLE`: no trained model turns that far.
    """
    squarings = num_squarings(HEADROOM * angle)
    if not math.isfinite(angle) or squarings > MAX_BODY_SQUARINGS:
        raise ValueError(
            f"MatrixExp: found plane angles of {angle:.4g} rad, expected at most "
            f"{body_range(MAX_BODY_SQUARINGS) / HEADROOM:.4g}; the model turns chaotically, "
            "train it with a smaller learning rate"
        )
    return squarings


def body_range(squarings: int, double: bool = False) -> float:
    """Largest ‖S‖_F / √2 that a body with so many squarings is right for."""
    return ANGLE * 2.0**squarings * (DOUBLE_SHARE if double else 1.0)


def matrix_exp_function(squarings: int) -> FunctionProto:
    """The body, as a model-local function of opset 20."""
    numbers = _numbers(squarings)
    lines = [
        *(f"{name} = CastLike ({name}_f64, S)" for name in numbers),
        *_limit_lines(),
        "axes = Constant <value_ints: ints = [-2, -1]> ()",
        "square = ReduceSumSquare <keepdims: int = 1> (S, axes)",
        "inside = LessOrEqual (square, limit)",
        "scale = Where (inside, shrink, nan)",
        "S1 = Mul (S, scale)",
        "S2 = MatMul (S1, S1)",
        "S3 = MatMul (S2, S1)",
        *_cubic("root", "b"),
        "B = MatMul (root, root)",
        *_cubic("X", "e", "B"),
        *_cubic("Y", "d", "X"),
        "YX = MatMul (Y, X)",
        "gB = Mul (B, g)",
        "c3S = Mul (S3, c3)",
        "c2S = Mul (S2, c2)",
        "F0 = Sum (YX, gB, c3S, c2S, S1)",  # small ones first, which rounds least
        *(line for i in range(squarings) for line in _squaring(i)),
        "size = Shape <start: int = -1> (S)",
        "sizes = Concat <axis: int = 0> (size, size)",
        "zeros = ConstantOfShape (sizes)",
        "ones = EyeLike (zeros)",
        "I = CastLike (ones, S)",
        f"E = Add (F{squarings}, I)",
    ]
    head = f'<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>\nMatrixExp (S) => (E)\n'
    function = onnx.parser.parse_function(head + "{\n" + "\n".join(lines) + "\n}")
    for name, value in numbers.items():
        tensor = numpy_helper.from_array(np.array(value))
        function.node.insert(0, helper.make_node("Constant", [], [f"{name}_f64"], value=tensor))
    return function


def _numbers(squarings: int) -> dict[str, float]:
    """Constants of the body, float64: it casts them to the type of S."""
    named = {"two": 2.0, "nan": math.nan, "shrink": 0.5**squarings, "tiny": TINY}
    for double in (False, True):  # ‖S‖_F^2 at the end of the range
        named[f"limit_{double:d}"] = 2.0 * body_range(squarings, double) ** 2
    return named | POLYNOMIAL


def _limit_lines() -> list[str]:
    """`limit` for the type of S, which shows in whether `TINY` is zero in it."""
    return [
        "is_double = Cast <to: int = 9> (tiny)",
        "limit = Where (is_double, limit_1, limit_0)",
    ]


def _cubic(name: str, letter: str, *others: str) -> list[str]:
    """The polynomial of that letter, and what else is given."""
    terms = [f"{letter}{k}S = Mul (S{k}, {letter}{k})" for k in (1, 2, 3)]
    added = ", ".join([*(f"{letter}{k}S" for k in (1, 2, 3)), *others])
    return [*terms, f"{name} = Sum ({added})"]


def _squaring(i: int) -> list[str]:
    return [
        f"D{i} = Mul (F{i}, two)",
        f"G{i} = MatMul (F{i}, F{i})",
        f"F{i + 1} = Add (D{i}, G{i})",
    ]
