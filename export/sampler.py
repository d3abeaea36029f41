"""The sampler inside the loop: one character from logits and one uniform number.

    q = softmax((logits + bias) / temperature), cut to top-k and top-p
    sampled = #{ v : q_0 + ... + q_v <= u · sum q }          (inverse CDF in vocabulary order)
    token = forced if forced >= 0, else argmax at temperature 0, else sampled

One uniform a character makes a stream a function of its seed. The cut sorts, so it runs only when
a row of the run asks for it; rows that don't ask are multiplied by one there, which changes no bit.

Letters: B batch, V vocabulary.
"""

import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper

P = "step_"  # prefix of names inside the loop


def sampler_nodes(logits: str, token: str, V: int) -> list[NodeProto]:
    """From (B, V) logits to `token` (B), and `step_active` (B): whether the row takes this step."""
    lines = (
        "active = Less (k, num_steps)",
        f"scores = Add ({logits}, bias)",
        "greedy = ArgMax <axis: int = 1, keepdims: int = 0> (scores)",
        "scaled = Div (scores, divisor)",
        "q = Softmax <axis: int = 1> (scaled)",
        "cumulative = CumSum (cut, axis)",
        "total = Gather <axis: int = 1> (cumulative, last)",
        "threshold = Mul (uniform, total)",
        "passed = LessOrEqual (cumulative, threshold)",
        "passed_i = Cast <to: int = 7> (passed)",
        "count = ReduceSum <keepdims: int = 0> (passed_i, column)",
        "sampled = Min (count, last_i)",
        "chosen = Where (is_greedy, greedy, sampled)",
        "is_forced = GreaterOrEqual (forced, zero_i)",
        f"{token} = Where (is_forced, forced, chosen)",
    )
    constants = [
        helper.make_node("Constant", [], [P + "axis"], value_int=1),
        helper.make_node("Constant", [], [P + "last"], value_ints=[V - 1]),
        helper.make_node("Constant", [], [P + "last_i"], value_int=V - 1),
    ]
    branch = helper.make_node(
        "If", ["any_limits"], [P + "cut"], then_branch=_cut(V), else_branch=_no_cut()
    )
    return [*constants, *(_prefixed(line, {logits, token}) for line in lines), branch]


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


OUTER = {  # made once a run, outside the loop
    "num_steps", "bias", "divisor", "is_greedy", "zero_i", "column",
}  # fmt: skip


def _prefixed(line: str, given: set[str]) -> NodeProto:
    node = onnx.parser.parse_node(line)
    for names in (node.input, node.output):
        names[:] = [name if name in given | OUTER else P + name for name in names]
    return node


def _cut(V: int) -> GraphProto:
    """q (B, V) with everything outside the row's top-k and top-p set to zero."""
    lines = (
        f"size = Constant <value_ints: ints = [{V}]> ()",
        "ranks_from = Constant <value_int: int = 0> ()",
        f"ranks_to = Constant <value_int: int = {V}> ()",
        "ranks_by = Constant <value_int: int = 1> ()",
        "rank = Range (ranks_from, ranks_to, ranks_by)",
        "values, places = TopK <axis: int = 1> (step_q, size)",
        "before = CumSum <exclusive: int = 1> (values, ranks_by)",
        "below_k = Less (rank, top_k_column)",
        "in_k = Or (below_k, keeps_k)",
        "below_p = Less (before, top_p_column)",
        "in_p = Or (below_p, keeps_p)",
        "kept = And (in_k, in_p)",
        "kept_f = Cast <to: int = 1> (kept)",
        "nothing = Sub (step_q, step_q)",
        "mask = ScatterElements <axis: int = 1> (nothing, places, kept_f)",
        "step_cut_then = Mul (step_q, mask)",
    )
    return _branch("cut", [onnx.parser.parse_node(line) for line in lines], "step_cut_then")


def _no_cut() -> GraphProto:
    node = helper.make_node("Identity", ["step_q"], ["step_cut_else"])
    return _branch("no_cut", [node], "step_cut_else")


def _branch(name: str, nodes: list[NodeProto], output: str) -> GraphProto:
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["B", None])
    return helper.make_graph(nodes, name, [], [value])
