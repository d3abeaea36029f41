"""One step of a family from torch: its nodes, under names that the graph gives them.

`torch.onnx.export` traces the model's own readout, update and correction, with the effective
weights as named inputs, so what is served is what was trained, whatever the family.
"""

import functools
import gc
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from onnx import GraphProto, NodeProto, TensorProto
from torch import Tensor

from serve.manifest.page import OPSET
from train.model import Model, State, Weights

STEP = "step_"  # prefix of everything inside the loop, so no weight's name can clash


class Piece(NamedTuple):
    """Nodes and constants of an exported function, under prefixed names."""

    nodes: list[NodeProto]
    constants: list[TensorProto]
    outputs: list[str]


class ReadoutThenUpdate(torch.nn.Module):
    """(state, x, weights) -> logits before x, then the state after x."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, state: State, x: Tensor, weights: Weights) -> tuple[Tensor, State]:
        """What one step of `advance` needs of a family."""
        new = self.model.update(weights, state, x)
        return self.model.readout(weights, state), {name: new[name] for name in state}


class UpdateThenReadout(torch.nn.Module):
    """(state, x, weights) -> outputs after x, then the state after x."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, state: State, x: Tensor, weights: Weights) -> tuple[Tensor, State]:
        """What one step of a task's `advance` needs of a family."""
        new, y = self.model.step(weights, state, x)
        return y, {name: new[name] for name in state}


class Correct(torch.nn.Module):
    """(state) -> corrected state."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, state: State) -> State:
        """`Model.correct`."""
        return self.model.correct(state)


def export_step(model: Model, weights: Weights) -> Piece:
    """Readout and update, from torch: inputs `step_state_*`, `step_token` and the weights' names.

    Outputs in order: logits, then the new state tensors.
    """
    return _export_fold(ReadoutThenUpdate(model), model, weights, torch.tensor([0, 1, 0]), "token")


def export_task_step(model: Model, weights: Weights, characters: bool) -> Piece:
    """Update and readout, from torch: inputs `step_state_*`, `step_input` and the weights' names.

    `step_input` is (B) characters, or (B, X) vectors. Outputs in order: y, the new state tensors.
    """
    xs = torch.tensor([0, 1, 0]) if characters else torch.ones(3, model.config.input_size)
    return _export_fold(UpdateThenReadout(model), model, weights, xs, "input")


def export_correction(model: Model, state: State) -> Piece:
    """`Model.correct`, from torch: inputs `state.*`."""
    batch = {name: value.expand(3, *value.shape[1:]).clone() for name, value in state.items()}
    dynamic, given = ({name: {0: "B"} for name in state},), [f"state.{name}" for name in state]
    return trace(Correct(model), (batch, {}), dynamic, given, "correct.")


def trace(
    module: torch.nn.Module,
    inputs: tuple[object, ...],
    shapes: object,
    given: Sequence[str],
    prefix: str,
    results: Sequence[str] = (),
) -> Piece:
    """A module's nodes: inputs are called as `given`, outputs as `results`, all else `prefix`ed."""
    graph = _export(module, inputs, shapes)
    used = {i.name: name for i, name in zip(graph.input, given, strict=True)}
    if results:
        used |= {o.name: name for o, name in zip(graph.output, results, strict=True)}
    return _rename(graph, used, prefix)


def _export_fold(
    module: torch.nn.Module, model: Model, weights: Weights, x: Tensor, name: str
) -> Piece:
    state = model.init_state(len(x))
    dynamic = ({name: {0: "B"} for name in state}, {0: "B"}, {name: None for name in weights})
    given = [f"{STEP}state_{name}" for name in state] + [f"{STEP}{name}", *weights]
    return trace(module, (state, x, weights, {}), dynamic, given, STEP)


@functools.cache
def _keep_translations() -> None:
    """Let torch read its table of translations once a process, not once an export: half the time.

    Nothing is ever added to the table: our operators need no translation.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    once = functools.cache(ONNXRegistry.from_torchlib)
    ONNXRegistry.from_torchlib = staticmethod(once)  # type: ignore[method-assign]


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: it walks over all that a trace keeps, for a fifth of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _export(module: torch.nn.Module, inputs: tuple[object, ...], shapes: object) -> GraphProto:
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    registration.setLevel(logging.ERROR)  # it reports that torchvision is absent
    _keep_translations()
    with warnings.catch_warnings(), _uncollected():
        # torch's own deprecations, and a note that the batch axes of all inputs are one
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", "# The axis name", UserWarning)
        program = torch.onnx.export(
            module.eval(),
            inputs,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=shapes,  # type: ignore[arg-type]
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    assert not proto.functions
    return proto.graph


def _rename(graph: GraphProto, used: dict[str, str], prefix: str) -> Piece:
    def new(name: str) -> str:
        return used.get(name, prefix + name) if name else ""

    for node in graph.node:
        node.input[:] = [new(name) for name in node.input]
        node.output[:] = [new(name) for name in node.output]
        node.name = prefix + node.name
        del node.metadata_props[:]
        node.doc_string = ""
    for constant in graph.initializer:
        constant.name = new(constant.name)
    return Piece(list(graph.node), list(graph.initializer), [new(o.name) for o in graph.output])
