"""The sampler inside the loop: one character from logits and one uniform number.

    q = softmax((logits + bias) / temperature), cut to top-k and top-p
    sampled = #{ v : q_0 + ... + q_v <= u · sum q }          (inverse CDF in vocabulary order)
    token = forced if forced >= 0, else argmax at temperature 0, else sampled

One uniform a character makes a stream a function of its seed. The cut sorts, so it runs only when
a row of the run asks for it; rows that don't ask are multiplied by one there, which changes no bit.

Letters: B batch, V vocabulary.
"""

import onnx
from onnx import FunctionProto, NodeProto, helper

from serve.manifest.page import DOMAIN, OPSET


def sampler_nodes(logits: str, token: str) -> list[NodeProto]:
    """From (B, V) logits to `token` (B), and `step_active` (B): whether the row takes this step."""
    given = [logits, "bias", "divisor", "is_greedy", "most_k", "most_p", "step_uniform"]
    return [
        helper.make_node("Less", ["step_k", "num_steps"], ["step_active"]),
        helper.make_node("SampleToken", [*given, "step_forced"], [token], domain=DOMAIN),
    ]


def sample_token_function() -> FunctionProto:
    """`SampleToken` of B rows.

    | input             | shape  | dtype   |                                                    |
    |-------------------|--------|---------|----------------------------------------------------|
    | `logits`, `bias`  | (B, V) | float32 | added up                                           |
    | `divisor`         | (B, 1) | float32 | temperature, positive                              |
    | `greedy`          | (B)    | bool    | take the largest, lowest index on ties             |
    | `top_k`           | (B, 1) | int64   | V or more keeps all                                |
    | `top_p`           | (B, 1) | float32 | 2 or more keeps all                                |
    | `uniform`         | (B, 1) | float32 |                                                    |
    | `forced`          | (B)    | int64   | -1: none                                           |
    | `token` (output)  | (B)    | int64   |                                                    |
    """
    lines = (
        "scores = Add (logits, bias)",
        "best = ArgMax <axis: int = 1, keepdims: int = 0> (scores)",
        "scaled = Div (scores, divisor)",
        "q = Softmax <axis: int = 1> (scaled)",
        "sizes = Shape <start: int = 1, end: int = 2> (logits)",
        "V = Squeeze (sizes)",
        "limits_k = Less (top_k, V)",
        "limits_p = Less (top_p, two)",
        "limits = Or (limits_k, limits_p)",
        "limits_i = Cast <to: int = 6> (limits)",
        "limits_any = ReduceMax <keepdims: int = 0> (limits_i)",
        "any = Cast <to: int = 9> (limits_any)",
        "cut = If (any) <then_branch = cut () => (float[B, N] kept_q) {",
        *_CUT,
        "}, else_branch = no_cut () => (float[B, N] all_q) { all_q = Identity (q) }>",
        "cumulative = CumSum (cut, one)",
        "last = Sub (V, one)",
        "last_1 = Unsqueeze (last, axis_0)",
        "total = Gather <axis: int = 1> (cumulative, last_1)",
        "threshold = Mul (uniform, total)",
        "passed = LessOrEqual (cumulative, threshold)",
        "passed_i = Cast <to: int = 7> (passed)",
        "count = ReduceSum <keepdims: int = 0> (passed_i, axis_1)",
        "sampled = Min (count, last)",
        "chosen = Where (greedy, best, sampled)",
        "is_forced = GreaterOrEqual (forced, zero)",
        "token = Where (is_forced, forced, chosen)",
    )
    head = f'<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>\n'
    head += "SampleToken (logits, bias, divisor, greedy, top_k, top_p, uniform, forced) => (token)"
    function = onnx.parser.parse_function(head + "\n{\n" + "\n".join(lines) + "\n}")
    for name, number in (("zero", 0), ("one", 1)):
        function.node.insert(0, helper.make_node("Constant", [], [name], value_int=number))
        axis = helper.make_node("Constant", [], [f"axis_{number}"], value_ints=[number])
        function.node.insert(0, axis)
    function.node.insert(0, helper.make_node("Constant", [], ["two"], value_float=2.0))
    return function


_CUT = (  # q (B, V) with everything outside the row's top-k and top-p set to zero
    "rank = Range (zero, V, one)",
    "values, places = TopK <axis: int = 1> (q, sizes)",
    "before = CumSum <exclusive: int = 1> (values, one)",
    "in_k = Less (rank, top_k)",
    "in_p = Less (before, top_p)",
    "kept = And (in_k, in_p)",
    "kept_f = Cast <to: int = 1> (kept)",
    "none = Sub (q, q)",
    "mask = ScatterElements <axis: int = 1> (none, places, kept_f)",
    "kept_q = Mul (q, mask)",
)


def outcome_nodes(all_tokens: str, logits: str, V: int) -> list[NodeProto]:
    """After the loop: `tokens` and `logprob` (K, B) from what each step took and its logits.

    log-probabilities are under the raw distribution, logsoftmax(logits); rows that rest show -1, 0.
    """
    lines = (
        "k_column = Unsqueeze (k, column)",
        "active = Less (k_column, num_steps)",
        "rest = Constant <value_int: int = -1> ()",
        f"tokens = Where (active, {all_tokens}, rest)",
        # In two dimensions: onnx's evaluator gathers along a third axis from 64 symbols at most.
        f"row_shape = Constant <value_ints: ints = [-1, {V}]> ()",
        f"rows = Reshape ({logits}, row_shape)",
        "log_q = LogSoftmax <axis: int = 1> (rows)",
        "cell_shape = Constant <value_ints: ints = [-1, 1]> ()",
        f"cells = Reshape ({all_tokens}, cell_shape)",
        "logprob_cells = GatherElements <axis: int = 1> (log_q, cells)",
        f"run_shape = Shape ({all_tokens})",
        "logprob_all = Reshape (logprob_cells, run_shape)",
        "logprob = Where (active, logprob_all, zero_f)",
    )
    return [onnx.parser.parse_node(line) for line in lines]
