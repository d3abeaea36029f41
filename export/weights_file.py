"""The weights file, and how model.onnx points into it.

One file serves everybody: to safetensors it is a safetensors file, to the graph it is external
data, by offset and length.
"""

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, TensorProto, numpy_helper

ALIGNMENT = 64  # bytes; where the data of weights.safetensors begins

Arrays = dict[str, np.ndarray]


def write_weights(path: Path, tensors: Arrays) -> dict[str, int]:
    """Write a safetensors file whose data begins at a multiple of `ALIGNMENT`.

    Returns where each tensor's bytes begin in the file. Largest tensors first: their sizes keep
    more of the others aligned.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].nbytes, name))
    header, offset = dict[str, Any](), 0
    for name in order:
        end = offset + tensors[name].nbytes
        shape = list(tensors[name].shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            stream.write(np.ascontiguousarray(tensors[name], dtype="<f4").tobytes())
    return {name: 8 + len(text) + header[name]["data_offsets"][0] for name in order}


def set_weights(
    model: onnx.ModelProto, weights: dict[str, np.ndarray], location: str, offsets: dict[str, int]
) -> None:
    """Turn the weights into initialisers whose bytes lie in another file, at these offsets."""
    graphs = list(_all_graphs(model.graph))
    used = {name for graph in graphs for node in graph.node for name in node.input}
    ours = {name for graph in graphs for name in _names(graph)}
    for name, value in weights.items():
        if name not in used:
            raise ValueError(f"weight {name!r} is not used by the exported step")
        if name in ours:
            raise ValueError(f"weight {name!r} is called like a value of the graph; rename it")
        tensor = numpy_helper.from_array(np.empty(0, value.dtype), name)
        tensor.dims[:] = value.shape
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, entry in (
            ("location", location),
            ("offset", offsets[name]),
            ("length", value.nbytes),
        ):
            tensor.external_data.add(key=key, value=str(entry))
        model.graph.initializer.append(tensor)


def _all_graphs(graph: GraphProto) -> Iterable[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_graphs(attribute.g)


def _names(graph: GraphProto) -> set[str]:
    values = {value.name for value in graph.input} | {value.name for value in graph.initializer}
    return values | {name for node in graph.node for name in node.output}
