"""The operator `torsor.MatrixExp`, version 1, and its body in standard operators.

    E = exp(S),   S skew-symmetric (..., d, d)

The body is the polynomial of `train.matrix_exp` with a fixed number s of squarings, so it is right
for plane angles up to ANGLE · 2^s. Beyond, where a fixed number of squarings would silently
return a wrong and non-orthogonal matrix, it returns NaN. The angle is judged by ‖S‖_F / √2, matrix
by matrix, so no matrix depends on its batch mates. Stock runtimes run the body; a native kernel of
the same name takes its place where one is registered.
"""

import math

import onnx
from onnx import FunctionProto, helper

from serve.manifest import DOMAIN, OPSET
from train.matrix_exp import ANGLE, coefficients, num_squarings

HEADROOM = 2.0  # ablated weights may turn further than trained ones
MAX_BODY_SQUARINGS = 8


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


def body_range(squarings: int) -> float:
    """Largest ‖S‖_F / √2 (radians) that a body with so many squarings is right for."""
    return ANGLE * 2.0**squarings


def matrix_exp_function(squarings: int) -> FunctionProto:
    """The body, as a model-local function of opset 20."""
    lines = [
        "axes = Constant <value_ints: ints = [-2, -1]> ()",
        "square = ReduceSumSquare <keepdims: int = 1> (S, axes)",
        "inside = LessOrEqual (square, c_limit)",
        "scale = Where (inside, c_scale, c_nan)",
        "S1 = Mul (S, scale)",
        "S2 = MatMul (S1, S1)",
        "S3 = MatMul (S2, S1)",
        *_quadratic("Q", 7),
        "R = MatMul (S3, Q)",
        *_quadratic("P", 4),
        "P1 = Add (P, R)",
        "T = MatMul (S3, P1)",
        *_quadratic("L", 1),
        "F0 = Add (L, T)",
        *(line for i in range(squarings) for line in _squaring(i)),
        "d = Shape <start: int = -1> (S)",
        "dd = Concat <axis: int = 0> (d, d)",
        "zeros = ConstantOfShape (dd)",
        "I = EyeLike (zeros)",
        f"E = Add (F{squarings}, I)",
    ]
    head = f'<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>\nMatrixExp (S) => (E)\n'
    function = onnx.parser.parse_function(head + "{\n" + "\n".join(lines) + "\n}")
    for name, value in _numbers(squarings):
        function.node.insert(0, helper.make_node("Constant", [], [name], value_float=value))
    return function


def _numbers(squarings: int) -> list[tuple[str, float]]:
    limit = 2.0 * body_range(squarings) ** 2  # ‖S‖_F^2 at the largest angle
    named = [("c_limit", limit), ("c_scale", 0.5**squarings), ("c_two", 2.0), ("c_nan", math.nan)]
    return named + [(f"c{k}", value) for k, value in enumerate(coefficients()) if k]


def _quadratic(name: str, k: int) -> list[str]:
    return [
        f"{name}a = Mul (S1, c{k})",
        f"{name}b = Mul (S2, c{k + 1})",
        f"{name}c = Mul (S3, c{k + 2})",
        f"{name} = Sum ({name}a, {name}b, {name}c)",
    ]


def _squaring(i: int) -> list[str]:
    return [
        f"D{i} = Mul (F{i}, c_two)",
        f"G{i} = MatMul (F{i}, F{i})",
        f"F{i + 1} = Add (D{i}, G{i})",
    ]
