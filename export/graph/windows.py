"""Windows in the graph `advance`: opened before the loop, read in it, closed after it.

    state.* -> opening -> past.*, own.*, unseen -> Scan(state, own; entries) -> closing -> next.*

`train.layers.sliding_window` says what these are. The past comes to the loop's body from outside of
it, so whatever of it doesn't depend on the step is computed once, like what depends on weights
alone.

Letters: B batch, K steps, N places of a block.
"""

from dataclasses import dataclass, field
from typing import TypeGuard

import torch
from onnx import NodeProto, parser
from torch import Tensor

from export.graph.step import STEP, Piece, export_step, trace
from train.layers.sliding_window import BLOCK, SEEN, Windowed, block_at, close_window, open_block
from train.model import Model, State, Weights

NOTHING = Piece([], [], [])
BATCH = {0: "B"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What the graph of a family with windows has besides; all empty where there are none."""

    windows: tuple[str, ...] = ()  # state tensors that the loop doesn't carry
    own: State = field(default_factory=dict)  # (1, N, ...) each: what it carries instead
    entries: State = field(default_factory=dict)  # (1, ...) each: what every step puts out
    opening: Piece = NOTHING
    closing: Piece = NOTHING

    def place_nodes(self) -> list[NodeProto]:
        """`block_where` (K, B, 2): each row at each step, and where in its block it stands."""
        lines = (
            f"block_size = Constant <value_int: int = {BLOCK}> ()",
            f"block_last = Constant <value_int: int = {BLOCK - 1}> ()",
            "block_first = Mod (position, block_size)",
            "block_k = Unsqueeze (k, column)",
            "block_after = Add (block_k, block_first)",
            "block_place = Min (block_after, block_last)",  # rows that rest stay inside
            "block_run = Shape (block_place)",
            "block_batch = Shape <start: int = 0, end: int = 1> (position)",
            "block_end = Squeeze (block_batch, first_axis)",
            "block_rows = Range (zero_i, block_end, one_i)",
            "block_row = Expand (block_rows, block_run)",
            "block_row_3 = Unsqueeze (block_row, third)",
            "block_place_3 = Unsqueeze (block_place, third)",
            "block_where = Concat <axis: int = 2> (block_row_3, block_place_3)",
        )
        return [parser.parse_node(line) for line in lines] if self.windows else []


class Open(torch.nn.Module):
    """(windows, position, weights) -> past, own, unseen."""

    def __init__(self, model: Windowed) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, windows: State, position: Tensor, weights: Weights
    ) -> tuple[State, State, Tensor]:
        """`train.layers.sliding_window.open_block`."""
        return open_block(self.model, weights, windows, position)


class ReadoutThenUpdateInBlock(torch.nn.Module):
    """(state, past, own, unseen, where, x, weights) -> logits before x, then what x leaves."""

    def __init__(self, model: Windowed) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        state: State,
        past: State,
        own: State,
        unseen: Tensor,
        where: Tensor,
        x: Tensor,
        weights: Weights,
    ) -> tuple[Tensor, State, State, State]:
        """What one step of `advance` needs of a family with windows."""
        logits = self.model.readout(weights, state)
        block = block_at(past, own, unseen, where, self.model.config.context)
        update = self.model.update_in_block(weights, state, block, x)
        return (
            logits,
            {name: update.state[name] for name in state},
            {name: update.own[name] for name in own},
            {name: update.entries[name] for name in self.model.windows() if name != SEEN},
        )


class Close(torch.nn.Module):
    """(windows, entries, num_steps) -> windows."""

    def forward(self, windows: State, entries: State, num_steps: Tensor) -> State:
        """`train.layers.sliding_window.close_window` of each; what was taken was seen."""
        some = next(iter(entries.values()))
        entries = entries | {SEEN: some.new_ones(some.shape[:2])}
        return {n: close_window(value, entries[n], num_steps) for n, value in windows.items()}


def has_windows(model: Model) -> TypeGuard[Windowed]:
    """Whether the graph of a model is made with blocks."""
    return isinstance(model, Windowed) and bool(model.windows())


def export_loop(model: Model, weights: Weights, start: str) -> tuple[Piece, Blocks]:
    """A step, and what stands around the loop over it; `start` is the prefix of the first state.

    The step's outputs in order: logits, the state but for its windows, own, entries.
    """
    if not has_windows(model):
        return export_step(model, weights), Blocks()
    state, names = model.init_state(3), model.windows()
    windows = {name: state.pop(name) for name in names}
    entries = {name: value[:, 0] for name, value in windows.items() if name != SEEN}
    opening, past, own = _export_opening(model, weights, windows, start)
    blocks = Blocks(
        windows=names,
        own={name: value[:1] for name, value in own.items()},
        entries={name: value[:1] for name, value in entries.items()},
        opening=opening,
        closing=_export_closing(windows, entries, start),
    )
    return _export_step(model, weights, state, past, own), blocks


def _export_opening(
    model: Windowed, weights: Weights, windows: State, start: str
) -> tuple[Piece, State, State]:
    position = torch.tensor([0, 1, 2])
    past, own, _ = open_block(model, weights, windows, position)
    piece = trace(
        Open(model),
        (windows, position, weights, {}),
        (dict.fromkeys(windows, BATCH), BATCH, dict.fromkeys(weights)),
        [*(start + name for name in windows), "position", *weights],
        "opening.",
        [*(f"past.{name}" for name in past), *(f"own.{name}" for name in own), "unseen"],
    )
    past, own = ({n: v.contiguous() for n, v in part.items()} for part in (past, own))
    return piece, past, own


def _export_step(model: Windowed, weights: Weights, state: State, past: State, own: State) -> Piece:
    where, x = torch.tensor([[0, 0], [1, 1], [2, 2]]), torch.tensor([0, 1, 0])
    unseen = torch.zeros(3, 1, next(iter(past.values())).shape[1] + BLOCK)
    tensors = [dict.fromkeys(value, BATCH) for value in (state, past, own)]
    return trace(
        ReadoutThenUpdateInBlock(model),
        (state, past, own, unseen, where, x, weights, {}),
        (*tensors, BATCH, BATCH, BATCH, dict.fromkeys(weights)),
        [
            *(f"{STEP}state_{name}" for name in state),
            *(f"past.{name}" for name in past),
            *(f"{STEP}own_{name}" for name in own),
            *("unseen", f"{STEP}where", f"{STEP}token", *weights),
        ],
        STEP,
    )


def _export_closing(windows: State, entries: State, start: str) -> Piece:
    run = {name: value.expand(2, *value.shape).clone() for name, value in entries.items()}
    steps = dict.fromkeys(entries, {0: "K", 1: "B"})
    return trace(
        Close(),
        (windows, run, torch.tensor([0, 1, 2]), {}),
        (dict.fromkeys(windows, BATCH), steps, BATCH),
        [
            *(start + name for name in windows),
            *(f"entries.{name}" for name in entries),
            "num_steps",
        ],
        "closing.",
        [f"next.{name}" for name in windows],
    )
