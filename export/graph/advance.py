"""The graph `advance`: K steps of B streams in one run, sampling inside.

One way for every text family. The torch model's readout and update are exported once, with the
effective weights as named inputs; their nodes become the body of a Scan, with the sampler between
them; what depends on weights alone moves out of the loop, and so do windows of attention
(`export.graph.windows`). `serve.manifest.page` is the page that says what the graph's inputs and
outputs mean.

Letters: B batch, K steps, V vocabulary.
"""

from collections.abc import Iterable, Sequence

import onnx
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from export.graph.operators import operator_functions
from export.graph.osm_advance import fold
from export.graph.sampler import outcome_nodes, sampler_nodes
from export.graph.step import STEP, Piece, export_correction
from export.graph.windows import Blocks, export_loop, has_windows
from serve.manifest.page import DOMAIN, IR_VERSION, OPSET, VERSION
from train.layers.sliding_window import BLOCK
from train.model import Model, State, Weights

MAX_STEPS = 16  # K that runs are cut into: as good as 64, and four times as prompt


def build_advance(model: Model, weights: Weights, squarings: int) -> onnx.ModelProto:
    """The whole model file, its weights still named inputs without values."""
    piece, blocks = export_loop(model, weights, "start." if model.correct_every else "state.")
    state = {name: value[:1] for name, value in model.init_state(1).items()}
    V = int(model.readout(weights, state).shape[-1])
    carried = {name: value for name, value in state.items() if name not in blocks.windows}
    hoisted, body = scan_body(piece, carried, V, blocks)
    correction = export_correction(model, state) if model.correct_every else None
    graph = _main_graph(
        state, V, model.correct_every, correction, hoisted, body, piece.constants, blocks
    )
    file = model_file(graph, squarings)
    fold(file)
    return file


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


def runs_end_every(model: Model) -> int:
    """Positions that runs must not cross: multiples of this number; 0: there are none."""
    if not has_windows(model):
        return model.correct_every
    assert model.correct_every in (0, BLOCK), "corrections and blocks come at the same positions"
    return BLOCK


def scan_body(
    piece: Piece, state: State, V: int, blocks: Blocks
) -> tuple[list[NodeProto], GraphProto]:
    """Nodes that depend on nothing that moves, and the Scan's body over everything else."""
    moving = {f"{STEP}state_{name}" for name in state} | {f"{STEP}token", f"{STEP}where"}
    moving |= {f"{STEP}own_{name}" for name in blocks.own}
    hoisted, inside = split_nodes(piece, moving)
    logits, *others = piece.outputs
    new_states, block_outputs = others[: len(state)], others[len(state) :]
    inside += sampler_nodes(logits, f"{STEP}token")
    inside += [
        n for name, new in zip(state, new_states, strict=True) for n in keep_nodes(name, new, state)
    ]
    body = helper.make_graph(
        sort_nodes(inside),
        "step",
        _body_inputs(state, blocks),
        _body_outputs(state, V, logits, blocks, block_outputs),
    )
    return hoisted, body


def split_nodes(piece: Piece, moving: set[str]) -> tuple[list[NodeProto], list[NodeProto]]:
    """Nodes that depend on nothing that moves, and those that `moving` values reach."""
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


def _body_inputs(state: State, blocks: Blocks) -> list[ValueInfoProto]:
    return [
        *_floats(f"{STEP}state_", state),
        *_floats(f"{STEP}own_", blocks.own),
        _value(f"{STEP}k", TensorProto.INT64, []),
        _value(f"{STEP}forced", TensorProto.INT64, ["B"]),
        _value(f"{STEP}uniform", TensorProto.FLOAT, ["B", 1]),
        *([_value(f"{STEP}where", TensorProto.INT64, ["B", 2])] if blocks.windows else []),
    ]


def _body_outputs(
    state: State, V: int, logits: str, blocks: Blocks, block_outputs: Sequence[str]
) -> list[ValueInfoProto]:
    # A row that rests may leave anything in its block: it is closed after the steps it has taken.
    shapes = [value.shape[1:] for value in (*blocks.own.values(), *blocks.entries.values())]
    values = [
        _value(name, TensorProto.FLOAT, ["B", *shape])
        for name, shape in zip(block_outputs, shapes, strict=True)
    ]
    return [
        *_floats(f"{STEP}next_", state),
        *values[: len(blocks.own)],
        _value(f"{STEP}token", TensorProto.INT64, ["B"]),
        _value(logits, TensorProto.FLOAT, ["B", V]),
        *values[len(blocks.own) :],
    ]


def _main_graph(
    state: State,
    V: int,
    correct_every: int,
    correction: Piece | None,
    hoisted: list[NodeProto],
    body: GraphProto,
    constants: list[TensorProto],
    blocks: Blocks,
) -> GraphProto:
    start, nodes = {name: f"state.{name}" for name in state}, list[NodeProto]()
    if correction is not None:
        nodes += correction_nodes(state, correct_every, correction)
        start = {name: f"start.{name}" for name in state}
    carried, places = [name for name in state if name not in blocks.windows], blocks.place_nodes()
    scan = helper.make_node(
        "Scan",
        [
            *(start[name] for name in carried),
            *(f"own.{name}" for name in blocks.own),
            *("k", "forced", "uniforms", *(["block_where"] if places else [])),
        ],
        [
            *(f"next.{name}" for name in carried),
            *(f"own_after.{name}" for name in blocks.own),
            *("all_tokens", "logits"),
            *(f"entries.{name}" for name in blocks.entries),
        ],
        body=body,
        num_scan_inputs=4 if places else 3,
    )
    nodes += [*blocks.opening.nodes, *hoisted, *_setting_nodes(V), *places, scan]
    nodes += [*blocks.closing.nodes, *outcome_nodes("all_tokens", "logits", V)]
    inner = [*blocks.opening.constants, *blocks.closing.constants]
    return helper.make_graph(
        nodes,
        "advance",
        _main_inputs(state, V),
        _main_outputs(state, V),
        [*constants, *(correction.constants if correction else []), *inner],
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
    return [
        *_floats("state.", state),
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
    return [
        *_floats("next.", state),
        _value("tokens", INT64, ["K", "B"]),
        _value("logprob", FLOAT, ["K", "B"]),
        _value("logits", FLOAT, ["K", "B", V]),
    ]


def _floats(prefix: str, values: State) -> list[ValueInfoProto]:
    return [_value(prefix + n, TensorProto.FLOAT, ["B", *v.shape[1:]]) for n, v in values.items()]


def _value(name: str, dtype: int, shape: Sequence[int | str]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))
