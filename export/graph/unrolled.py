"""The unrolled form of `advance`: its K = `MAX_STEPS` steps one after the other, no loop.

CUDA graphs refuse loops, so on a GPU every run takes all K steps, and rows that are done rest. The
steps are the Scan's own body, so the unrolled form computes the same; B stays free, and a server
uses it for a few batch sizes, each captured once.

Letters: B batch, K steps.
"""

from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper

from export.graph.advance import MAX_STEPS
from export.graph.osm_advance import unfold
from serve.manifest.page import GRAPH_FILE, UNROLLED_FILE


def write_unrolled(folder: Path) -> bool:
    """Write the unrolled form beside the graph of a bundle's folder; False if that has no loop."""
    unrolled = unroll(onnx.load(folder / GRAPH_FILE, load_external_data=False))
    if unrolled is None:
        return False
    path = folder / UNROLLED_FILE
    path.write_bytes(unrolled.SerializeToString(deterministic=True))
    onnx.checker.check_model(path, full_check=True)
    return True


def unroll(model: ModelProto) -> ModelProto | None:
    """The same file with every step of its Scan written out: it takes `MAX_STEPS`, no other K.

    None where there is no Scan, not even within `OsmAdvance`.
    """
    unrolled, nodes = ModelProto(), list[NodeProto]()
    unrolled.CopyFrom(model)
    unfold(unrolled)
    graph = unrolled.graph
    if not any(node.op_type == "Scan" for node in graph.node):
        return None
    for node in graph.node:
        nodes += _steps_of(node) if node.op_type == "Scan" else [node]
    del graph.node[:]
    graph.node.extend(nodes)
    return unrolled


def _steps_of(scan: NodeProto) -> list[NodeProto]:
    attributes = {a.name: helper.get_attribute_value(a) for a in scan.attribute}
    body, num_scanned = attributes["body"], int(attributes["num_scan_inputs"])
    num_states = len(scan.input) - num_scanned
    states, scanned = list(scan.input[:num_states]), scan.input[num_states:]
    nodes, rows = [], [list[str]() for _ in scan.output[num_states:]]
    for k in range(MAX_STEPS):
        index = f"step{k}.index"
        nodes.append(helper.make_node("Constant", [], [index], value_int=k))
        taken = [f"step{k}.{name}" for name in scanned]
        for name, row in zip(scanned, taken, strict=True):
            nodes.append(helper.make_node("Gather", [name, index], [row], axis=0))
        step, outputs = _step(body, k, [*states, *taken])
        nodes += step
        states = outputs[:num_states]
        for places, name in zip(rows, outputs[num_states:], strict=True):
            places.append(name)
    return nodes + _collect(scan, states, rows)


def _step(body: GraphProto, k: int, given: list[str]) -> tuple[list[NodeProto], list[str]]:
    """The body's nodes as step k, and the names of what it returns."""
    names = {value.name: name for value, name in zip(body.input, given, strict=True)}
    names |= {o: f"step{k}.{o}" for node in body.node for o in node.output if o}
    nodes = []
    for node in body.node:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = f"step{k}.{node.name or node.output[0]}"
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        nodes.append(copy)
    return nodes, [names[value.name] for value in body.output]


def _collect(scan: NodeProto, states: list[str], rows: list[list[str]]) -> list[NodeProto]:
    """The Scan's own outputs: the last states, and what every step returned, K first."""
    axis = "unrolled.axis"
    nodes = [helper.make_node("Constant", [], [axis], value_ints=[0])]
    for name, out in zip(states, scan.output, strict=False):
        nodes.append(helper.make_node("Identity", [name], [out]))
    for places, out in zip(rows, scan.output[len(states) :], strict=True):
        lifted = [f"{place}.row" for place in places]
        for place, row in zip(places, lifted, strict=True):
            nodes.append(helper.make_node("Unsqueeze", [place, axis], [row]))
        nodes.append(helper.make_node("Concat", lifted, [out], axis=0))
    return nodes
