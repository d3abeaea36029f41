"""The graph `advance` of a task: K steps of B streams in one run, with real inputs and outputs.

Made like that of text: the torch model's update and readout, exported once, become the body of a
Scan. A family whose step reads no state needs no loop: its nodes take the whole input, all steps
of all streams as one batch. Either way rows that rest show 0.

Letters: B batch, K steps, X input size, Y output size.
"""

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, parser

from export.graph.advance import correction_nodes, keep_nodes, model_file, sort_nodes, split_nodes
from export.graph.step import STEP, Piece, export_correction, export_task_step
from train.model import Model, State, Weights

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def build_task_advance(
    model: Model, weights: Weights, squarings: int, characters: bool
) -> ModelProto:
    """The whole model file, its weights still named inputs without values.

    `characters` says what the inputs are: (K, B) characters, else (K, B, X) vectors.
    """
    piece = export_task_step(model, weights, characters)
    inputs = [] if characters else [model.config.input_size]
    given = _value("inputs", INT64 if characters else FLOAT, "K", "B", *inputs)
    state = {name: value[:1] for name, value in model.init_state(1).items()}
    if reads_no_state(piece, state):
        return model_file(_whole_graph(piece, given, model.config.output_size), squarings)
    return model_file(_loop_graph(piece, state, given, model), squarings)


def reads_no_state(piece: Piece, state: State) -> bool:
    """Whether a step is a function of its input alone."""
    read = {name for node in piece.nodes for name in node.input} | set(piece.outputs)
    return not read & _state_names(state)


def _loop_graph(piece: Piece, state: State, given: ValueInfoProto, model: Model) -> GraphProto:
    Y, constants = model.config.output_size, list(piece.constants)
    nodes, body = _scan_body(piece, state, given, Y)
    start = {name: f"state.{name}" for name in state}
    if model.correct_every:
        correction = export_correction(model, state)
        nodes += correction_nodes(state, model.correct_every, correction)
        constants += correction.constants
        start = {name: f"start.{name}" for name in state}
    scan = helper.make_node(
        "Scan",
        [*start.values(), "k", "inputs"],
        [*(f"next.{name}" for name in state), "all_outputs"],
        body=body,
        num_scan_inputs=2,
    )
    return helper.make_graph(
        [*nodes, *_number_nodes(), scan, *_mask_nodes("all_outputs")],
        "advance",
        [*_states("state.", state), *_common_inputs(given)],
        [*_states("next.", state), _value("outputs", FLOAT, "K", "B", Y)],
        constants,
    )


def _scan_body(
    piece: Piece, state: State, given: ValueInfoProto, Y: int
) -> tuple[list[NodeProto], GraphProto]:
    hoisted, inside = split_nodes(piece, _state_names(state) | {f"{STEP}input"})
    y, *new_states = piece.outputs
    inside.append(parser.parse_node(f"{STEP}active = Less ({STEP}k, num_steps)"))
    inside += [
        n for name, new in zip(state, new_states, strict=True) for n in keep_nodes(name, new, state)
    ]
    kind = given.type.tensor_type
    row: list[int | str] = ["B", *(d.dim_value for d in kind.shape.dim[2:])]
    taken = _value(f"{STEP}input", kind.elem_type, *row)
    body = helper.make_graph(
        sort_nodes(inside),
        "step",
        [*_states(f"{STEP}state_", state), _value(f"{STEP}k", INT64), taken],
        [*_states(f"{STEP}next_", state), _value(y, FLOAT, "B", Y)],
    )
    return hoisted, body


def _whole_graph(piece: Piece, given: ValueInfoProto, Y: int) -> GraphProto:
    size = [d.dim_value for d in given.type.tensor_type.shape.dim[2:]]
    before = (
        f"row_shape = Constant <value_ints: ints = {[-1, *size]}> ()",
        f"{STEP}input = Reshape (inputs, row_shape)",
    )
    after = (
        "run_shape = Shape <start: int = 0, end: int = 2> (inputs)",
        f"output_size = Constant <value_ints: ints = [{Y}]> ()",
        "output_shape = Concat <axis: int = 0> (run_shape, output_size)",
        f"all_outputs = Reshape ({piece.outputs[0]}, output_shape)",
    )
    nodes = [
        *map(parser.parse_node, before),
        *piece.nodes,
        *map(parser.parse_node, after),
        *_number_nodes(),
        *_mask_nodes("all_outputs"),
    ]
    return helper.make_graph(
        nodes,
        "advance",
        _common_inputs(given),
        [_value("outputs", FLOAT, "K", "B", Y)],
        piece.constants,
    )


def _number_nodes() -> list[NodeProto]:
    lines = (
        "num_k = Shape <start: int = 0, end: int = 1> (inputs)",
        "first_axis = Constant <value_ints: ints = [0]> ()",
        "zero_i = Constant <value_int: int = 0> ()",
        "one_i = Constant <value_int: int = 1> ()",
        "num_k_scalar = Squeeze (num_k, first_axis)",
        "k = Range (zero_i, num_k_scalar, one_i)",
    )
    return [parser.parse_node(line) for line in lines]


def _mask_nodes(all_outputs: str) -> list[NodeProto]:
    lines = (
        "inner_axes = Constant <value_ints: ints = [1, 2]> ()",
        "last_axis = Constant <value_ints: ints = [1]> ()",
        "zero_f = Constant <value_float: float = 0.0> ()",
        "k_block = Unsqueeze (k, inner_axes)",  # (K, 1, 1)
        "steps_block = Unsqueeze (num_steps, last_axis)",  # (B, 1)
        "active = Less (k_block, steps_block)",  # (K, B, 1)
        f"outputs = Where (active, {all_outputs}, zero_f)",
    )
    return [parser.parse_node(line) for line in lines]


def _common_inputs(given: ValueInfoProto) -> list[ValueInfoProto]:
    return [_value("position", INT64, "B"), given, _value("num_steps", INT64, "B")]


def _states(prefix: str, state: State) -> list[ValueInfoProto]:
    return [_value(prefix + n, FLOAT, "B", *v.shape[1:]) for n, v in state.items()]


def _state_names(state: State) -> set[str]:
    return {f"{STEP}state_{name}" for name in state}


def _value(name: str, dtype: int, *shape: int | str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))
