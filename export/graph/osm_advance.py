"""The operator `torsor.OsmAdvance`, version 1: the whole `advance` of an OSM-RNN as one node.

    next.H, tokens, logprob, logits = OsmAdvance(state.H, weights, correct_every, settings)

Its body is the graph as it was, with its Scan, so a stock runtime runs what it always ran; a native
kernel keeps streams and weights in the cache and pays for no node. Which graphs these are is read
off the graphs themselves: those on SO(d) or O(d) with full mixing.

Letters: B batch, K steps, V vocabulary.
"""

from collections.abc import Iterable

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, helper

from export.graph.step import STEP
from serve.manifest.page import DOMAIN, OPSET, VERSION

NAME = "OsmAdvance"
WEIGHTS = ("input", "mixing", "readout.prototypes", "readout.temperature", "readout.bias")
SETTINGS = ("position", "forced", "num_steps", "uniform", "temperature", "top_k", "top_p", "bias")
INPUTS = ("state.H", *WEIGHTS, "correct_every", *SETTINGS)
OUTPUTS = ("next.H", "tokens", "logprob", "logits")

_STATE, _TOKEN = f"{STEP}state_H", f"{STEP}token"
_DOTS = "MatMul(Reshape(H), Transpose(Reshape(readout.prototypes)))"
_LOGITS = f"Add(Mul(readout.temperature, {_DOTS}), readout.bias)"
_MOVED = "MixStep(H, Gather(input, Reshape(token)), Transpose(mixing))"
_KEPT = f"Where(Unsqueeze(Less(k, num_steps)), {_MOVED}, H)"
_CORRECTED = "Sub(Mul(H), MatMul(Mul(H), MatMul(Transpose(H), H)))"


def fold(model: ModelProto) -> None:
    """Make one node of a graph that is an OSM-RNN's; others are left as they are."""
    graph = model.graph
    if not _is_osm(graph):
        return
    function = _function(graph)
    outside = [node for node in graph.node if list(node.output) == ["correct_every"]]
    whole = helper.make_node(NAME, INPUTS, OUTPUTS, domain=DOMAIN)
    weights = [value for value in graph.initializer if value.name in WEIGHTS]
    del graph.node[:], graph.initializer[:]
    graph.node.extend([*outside, whole])
    graph.initializer.extend(weights)
    model.functions.append(function)


def unfold(model: ModelProto) -> None:
    """Put the nodes back that `fold` took away."""
    functions = {function.name: function for function in model.functions}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        model.graph.node.extend(functions[NAME].node if node.op_type == NAME else [node])
    if NAME in functions:
        model.functions.remove(functions[NAME])


def _function(graph: GraphProto) -> FunctionProto:
    constants = [
        helper.make_node("Constant", [], [value.name], value=value)
        for value in graph.initializer
        if value.name not in WEIGHTS
    ]
    inside = [node for node in graph.node if list(node.output) != ["correct_every"]]
    versions = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, VERSION)]
    nodes = [*constants, *inside]
    return helper.make_function(DOMAIN, NAME, INPUTS, OUTPUTS, nodes, versions)


def _is_osm(graph: GraphProto) -> bool:
    scans = [node for node in graph.node if node.op_type == "Scan"]
    names = ({value.name for value in values} for values in (graph.input, graph.output))
    if len(scans) != 1 or [*names] != [{"state.H", *SETTINGS}, {*OUTPUTS}]:
        return False
    body = next(helper.get_attribute_value(a) for a in scans[0].attribute if a.name == "body")
    start, [next_H, _, logits] = scans[0].input[0], [value.name for value in body.output]
    step = _Writer([*graph.node, *body.node], {_STATE: "H", _TOKEN: "token", f"{STEP}k": "k"})
    outside = _Writer(graph.node, {"state.H": "H"})
    return (step.write(next_H), step.write(logits)) == (_KEPT, _LOGITS) and outside.write(
        start
    ) == f"Where(Unsqueeze({_due()}), {_CORRECTED}, H)"


def _due() -> str:
    return "And(Equal(Mod(position)), Greater(num_steps))"


class _Writer:
    """Writes a value as an expression of what it is made of; constants and shapes are left out."""

    def __init__(self, nodes: Iterable[NodeProto], names: dict[str, str]) -> None:
        self._made_by = {output: node for node in nodes for output in node.output}
        self._names = names

    def write(self, value: str) -> str:
        if value in self._names:
            return self._names[value]
        node = self._made_by.get(value)
        if node is None:
            return "" if value.startswith((STEP, "correct.")) else value
        if node.op_type == "Constant":
            return ""
        parts = [part for part in map(self.write, node.input) if part]
        return f"{node.op_type}({', '.join(parts)})"
