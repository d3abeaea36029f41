"""The graph `advance`: K steps of B streams in one run, sampling inside.

One way for every text family. The torch model's readout and update are exported once, with the
effective weights as named inputs; their nodes become the body of a Scan, with the sampler between
them; what depends on weights alone moves out of the loop. `serve.manifest` is the page that says
what the graph's inputs and outputs mean.

Letters: B batch, K steps, V vocabulary.
"""

from collections.abc import Iterable, Sequence

import onnx
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from export.operators import operator_functions
from export.sampler import outcome_nodes, sampler_nodes
from export.step import STEP, Piece, export_correction, export_step
from serve.manifest import DOMAIN, IR_VERSION, OPSET, VERSION
from train.model import Model, State, Weights

MAX_STEPS = 16  # K that runs are cut into: as good as 64, and four times as prompt


def build_advance(model: Model, weights: Weights, squarings: int) -> onnx.ModelProto:
    """The whole model file, its weights still named inputs without values."""
    piece = export_step(model, weights)
    state = {name: value[:1] for name, value in model.init_state(1).items()}
    V = int(model.readout(weights, state).shape[-1])
    hoisted, body = scan_body(piece, state, V)
    correction = export_correction(model, state) if model.correct_every else None
    graph = _main_graph(state, V, model.correct_every, correction, hoisted, body, piece.constants)
    return model_file(graph, squarings)


def model_file(graph: GraphProto, squarings: int) -> onnx.ModelProto:
    """The file around a graph: versions, and the bodies of the operators of ours that it uses."""
    functions = operator_functions(_all_nodes(graph), squarings)
    versions = {"": OPSET} | ({DOMAIN: VERSION} if functions else {})
    return helper.make_model(
        graph,
        functions=functions,
        opset_imports=[helper.make_opsetid(*version) for version in versions.items()],
        ir_version=IR_VERSION,
        producer_name="torsor",
    )


def scan_body(piece: Piece, state: State, V: int) -> tuple[list[NodeProto], GraphProto]:
    """Nodes that depend on weights alone, and the Scan's body over everything else."""
    moving = {f"{STEP}state_{name}" for name in state} | {f"{STEP}token"}
    hoisted, inside = split_nodes(piece, moving)
    logits, *new_states = piece.outputs
    inside += sampler_nodes(logits, f"{STEP}token")
    inside += [
        n for name, new in zip(state, new_states, strict=True) for n in keep_nodes(name, new, state)
    ]
    nodes = sort_nodes(inside)
    body = helper.make_graph(nodes, "step", _body_inputs(state), _body_outputs(state, V, logits))
    return hoisted, body


def split_nodes(piece: Piece, moving: set[str]) -> tuple[list[NodeProto], list[NodeProto]]:
    """Nodes that depend on weights alone, and those that `moving` values reach."""
    moving, hoisted, inside = {*moving}, list[NodeProto](), list[NodeProto]()
    for node in piece.nodes:
        if moving.intersection(node.input):
            moving.update(node.output)
            inside.append(node)
        else:
            hoisted.append(node)
    return hoisted, inside


def sort_nodes(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """Nodes in an order in which each follows those whose outputs it reads."""
    waiting, produced = list(nodes), {o for node in nodes for o in node.output}
    done, order = set[str](), list[NodeProto]()
    while waiting:
        ready = [n for n in waiting if all(i in done or i not in produced for i in _reads(n))]
        assert ready, "the step's graph has a circle"
        order += ready
        done.update(output for node in ready for output in node.output)
        waiting = [node for node in waiting if node not in ready]
    return order


def _all_nodes(graph: GraphProto) -> Iterable[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _all_nodes(attribute.g)


def _reads(node: NodeProto) -> list[str]:
    branches = [a.g for a in node.attribute if a.HasField("g")]
    return [*node.input, *(name for g in branches for inner in g.node for name in _reads(inner))]


def keep_nodes(name: str, new: str, state: State) -> list[NodeProto]:
    """A row that has taken its steps keeps its state: active (B) against (B, ...)."""
    ones, mask, out = f"{STEP}ones_{name}", f"{STEP}active_{name}", f"{STEP}next_{name}"
    old = f"{STEP}state_{name}"
    axes = list(range(1, state[name].ndim))
    return [
        helper.make_node("Constant", [], [ones], value_ints=axes),
        helper.make_node("Unsqueeze", [f"{STEP}active", ones], [mask]),
        helper.make_node("Where", [mask, new, old], [out]),
    ]


def _body_inputs(state: State) -> list[ValueInfoProto]:
    states = [
        _value(f"{STEP}state_{n}", TensorProto.FLOAT, ["B", *v.shape[1:]]) for n, v in state.items()
    ]
    return [
        *states,
        _value(f"{STEP}k", TensorProto.INT64, []),
        _value(f"{STEP}forced", TensorProto.INT64, ["B"]),
        _value(f"{STEP}uniform", TensorProto.FLOAT, ["B", 1]),
    ]


def _body_outputs(state: State, V: int, logits: str) -> list[ValueInfoProto]:
    states = [
        _value(f"{STEP}next_{n}", TensorProto.FLOAT, ["B", *v.shape[1:]]) for n, v in state.items()
    ]
    return [
        *states,
        _value(f"{STEP}token", TensorProto.INT64, ["B"]),
        _value(logits, TensorProto.FLOAT, ["B", V]),
    ]


def _main_graph(
    state: State,
    V: int,
    correct_every: int,
    correction: Piece | None,
    hoisted: list[NodeProto],
    body: GraphProto,
    constants: list[TensorProto],
) -> GraphProto:
    start, nodes = {name: f"state.{name}" for name in state}, [*hoisted]
    if correction is not None:
        nodes += correction_nodes(state, correct_every, correction)
        start = {name: f"start.{name}" for name in state}
    scan = helper.make_node(
        "Scan",
        [*start.values(), "k", "forced", "uniforms"],
        [*(f"next.{name}" for name in state), "all_tokens", "logits"],
        body=body,
        num_scan_inputs=3,
    )
    return helper.make_graph(
        [*nodes, *_setting_nodes(V), scan, *outcome_nodes("all_tokens", "logits", V)],
        "advance",
        _main_inputs(state, V),
        _main_outputs(state, V),
        [*constants, *(correction.constants if correction else [])],
    )


def correction_nodes(state: State, correct_every: int, correction: Piece) -> list[NodeProto]:
    """`start.NAME`: the corrected state where that is due, else `state.NAME`."""
    nodes = [
        helper.make_node("Constant", [], ["correct_every"], value_int=correct_every),
        helper.make_node("Mod", ["position", "correct_every"], ["phase"]),
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("Equal", ["phase", "zero"], ["at_multiple"]),
        helper.make_node("Greater", ["num_steps", "zero"], ["moves"]),
        helper.make_node("And", ["at_multiple", "moves"], ["due"]),  # a row that rests is kept
        *correction.nodes,
    ]
    for (name, value), corrected in zip(state.items(), correction.outputs, strict=True):
        axes, due = f"axes.{name}", f"due.{name}"
        nodes += [
            helper.make_node("Constant", [], [axes], value_ints=list(range(1, value.ndim))),
            helper.make_node("Unsqueeze", ["due", axes], [due]),
            helper.make_node("Where", [due, corrected, f"state.{name}"], [f"start.{name}"]),
        ]
    return nodes


def _setting_nodes(V: int) -> list[NodeProto]:
    """What the sampler needs once a run: limits as columns (B, 1), neutral where a row has none."""
    parse = onnx.parser.parse_node
    return [
        parse(line)
        for line in (
            "num_k = Shape <start: int = 0, end: int = 1> (forced)",
            "zero_i = Constant <value_int: int = 0> ()",
            "one_i = Constant <value_int: int = 1> ()",
            "first_axis = Constant <value_ints: ints = [0]> ()",
            "column = Constant <value_ints: ints = [1]> ()",
            "zero_f = Constant <value_float: float = 0.0> ()",
            "one_f = Constant <value_float: float = 1.0> ()",
            "num_k_scalar = Squeeze (num_k, first_axis)",
            "k = Range (zero_i, num_k_scalar, one_i)",
            "is_greedy = LessOrEqual (temperature, zero_f)",
            "tiny_f = Constant <value_float: float = 1e-30> ()",  # no row divides by less
            "warm = Max (temperature, tiny_f)",
            "divisor_row = Where (is_greedy, one_f, warm)",
            "divisor = Unsqueeze (divisor_row, column)",
            f"all_k = Constant <value_int: int = {V}> ()",
            "keeps_k = LessOrEqual (top_k, zero_i)",
            "most_k_row = Where (keeps_k, all_k, top_k)",
            "most_k = Unsqueeze (most_k_row, column)",
            "all_p = Constant <value_float: float = 2.0> ()",  # more than any rounding of 1
            "keeps_p = GreaterOrEqual (top_p, one_f)",
            "some_p = Max (top_p, tiny_f)",  # the most probable character always stays
            "most_p_row = Where (keeps_p, all_p, some_p)",
            "most_p = Unsqueeze (most_p_row, column)",
            "third = Constant <value_ints: ints = [2]> ()",
            "uniforms = Unsqueeze (uniform, third)",  # (K, B, 1)
        )
    ]


def _main_inputs(state: State, V: int) -> list[ValueInfoProto]:
    FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
    states = [_value(f"state.{n}", FLOAT, ["B", *v.shape[1:]]) for n, v in state.items()]
    return [
        *states,
        _value("position", INT64, ["B"]),
        _value("forced", INT64, ["K", "B"]),
        _value("num_steps", INT64, ["B"]),
        _value("uniform", FLOAT, ["K", "B"]),
        _value("temperature", FLOAT, ["B"]),
        _value("top_k", INT64, ["B"]),
        _value("top_p", FLOAT, ["B"]),
        _value("bias", FLOAT, ["B", V]),
    ]


def _main_outputs(state: State, V: int) -> list[ValueInfoProto]:
    FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
    states = [_value(f"next.{n}", FLOAT, ["B", *v.shape[1:]]) for n, v in state.items()]
    return [
        *states,
        _value("tokens", INT64, ["K", "B"]),
        _value("logprob", FLOAT, ["K", "B"]),
        _value("logits", FLOAT, ["K", "B", V]),
    ]


def _value(name: str, dtype: int, shape: Sequence[int | str]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))
