"""Windows: attention over the last positions of a stream, read in blocks.

A window is a state tensor (B, S, ...) of what the last S positions left, the newest last. `update`
drops its oldest entry for the new one, and so copies it whole at every step. Here is the form that
doesn't: while a run takes up to `BLOCK` characters, windows stand still.

    place     0 ... S-1     S ... S + BLOCK - 1
    holds     the past      the block: positions from the last multiple of BLOCK on

`open_block` puts windows at their places, once a run; each `update_in_block` reads the past, which
stays as it is, and enters its own position in the block; `close_window` makes windows again, once.
A run MUST end where its block ends. Then the place of every entry, and with it the order in which
floats are added, is a function of the position alone, however a stream is cut into runs: the bits
are the same. Places only matter up to a shift: attention that knows lags, not positions, fits.

Letters: B batch, S places of the past, N = BLOCK, K steps of a run.
"""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from train.model import Model, State, Weights

BLOCK = 16  # positions; runs end at its multiples
UNSEEN = -1e30  # score of a place that holds nothing, or nothing that a position may look at
SEEN = "seen"  # the window (B, S) of ones, 0 where the stream had not begun


class Block(NamedTuple):
    """What a position looks at: `past` and `own`, as `Windowed.placed` gives them."""

    past: State  # (B, S, ...) each
    own: State  # (B, N, ...) each, entered up to the position before
    where: Tensor  # (B, 2): the row, and the position's own place in the block, 0 ... N-1
    hidden: Tensor  # (B, 1, S + N): 0 where it may look, at most `UNSEEN` where not

    def places(self) -> Tensor:
        """The position's own place among all: (B)."""
        return self.where[:, 1] + (self.hidden.shape[-1] - BLOCK)

    def enter(self, name: str, entry: Tensor) -> Tensor:
        """The block of one tensor with the position's own entry (B, ...): (B, N, ...)."""
        own = self.own[name]
        if torch.onnx.is_in_onnx_export():  # torch's way there is many nodes
            entered: Tensor = torch.onnx.ops.symbolic(
                "ScatterND", (own, self.where, entry), dtype=own.dtype, shape=own.shape
            )
            return entered
        return own.index_put((self.where[:, 0], self.where[:, 1]), entry)


class Update(NamedTuple):
    """What a position does to a block and to the state."""

    state: State  # all that is no window
    own: State  # (B, N, ...) each: the block with the position in it
    entries: State  # (B, ...) each: what joins the windows, but for `SEEN`


class Windowed(Model):
    """A family whose state holds windows: what it needs so that a run doesn't copy them.

    One of them is `SEEN`. `config.context` is the number of positions that one looks at, its own
    among them: S ≥ context - 1.
    """

    @abstractmethod
    def windows(self) -> tuple[str, ...]:
        """State tensors that are windows; none: this form isn't used."""

    @abstractmethod
    def placed(self, weights: Weights, entries: State, places: Tensor) -> State:
        """What attention reads of entries (B, M, ...) of the windows at places (M) or (B, M).

        Everything that depends on an entry and its place alone is done here, once: keys are turned.
        """

    @abstractmethod
    def update_in_block(self, weights: Weights, state: State, block: Block, x: Tensor) -> Update:
        """`update`, with the windows in a block; the state holds the rest."""


def open_block(
    model: Windowed, weights: Weights, state: State, position: Tensor
) -> tuple[State, State, Tensor]:
    """Past and block of streams after `position` (B) characters, and what is unseen (B, 1, S + N).

    Places that hold nothing repeat what a neighbour holds: attention doesn't look there.
    """
    S, places = state[SEEN].shape[1], torch.arange(state[SEEN].shape[1] + BLOCK)
    places = places.to(position.device)
    source = places - (position % BLOCK).unsqueeze(-1)  # (B, S + N)
    standing = {name: _pick(state[name], source.clamp(0, S - 1)) for name in model.windows()}
    begun = (standing.pop(SEEN) > 0.5) | (source >= S)
    placed = model.placed(weights, standing, places)
    past = {name: value[:, :S] for name, value in placed.items()}
    own = {name: value[:, S:] for name, value in placed.items()}
    return past, own, (~begun).to(state[SEEN]).unsqueeze(1) * UNSEEN


def block_at(past: State, own: State, unseen: Tensor, where: Tensor, context: int) -> Block:
    """What positions `where` (B, 2) look at, that see `context` positions and nothing `unseen`."""
    places = torch.arange(unseen.shape[-1], device=unseen.device)
    lag = places[-BLOCK:].unsqueeze(-1) - places  # (N, S + N)
    far = ((lag < 0) | (lag >= context)).to(unseen) * UNSEEN
    return Block(past, own, where, unseen + far.unsqueeze(1).index_select(0, where[:, 1]))


def close_window(window: Tensor, entries: Tensor, num_steps: Tensor) -> Tensor:
    """A window (B, S, ...) after the first `num_steps` (B) of entries (K, B, ...)."""
    both = torch.cat([window, entries.transpose(0, 1)], 1)  # (B, S + K, ...)
    kept = torch.arange(window.shape[1], device=window.device) + num_steps.unsqueeze(-1)
    return _pick(both, kept)


def scores(rows: Tensor, past: Tensor, own: Tensor) -> Tensor:
    """Products of rows (B, h, F) with keys (B, S, F) and (B, N, F): (B, h, S + N)."""
    return torch.cat([rows @ past.mT, rows @ own.mT], -1)


def mean(shares: Tensor, past: Tensor, own: Tensor) -> Tensor:
    """Sums of values (B, S, F) and (B, N, F) by shares (B, h, S + N): (B, h, F)."""
    of_past, of_own = torch.split(shares, [past.shape[1], own.shape[1]], -1)
    return of_past @ past + of_own @ own


def _pick(window: Tensor, at: Tensor) -> Tensor:
    """Entries `at` (B, M) of a window (B, S, ...): (B, M, ...)."""
    first = torch.arange(window.shape[0], device=at.device) * window.shape[1]
    return window.flatten(0, 1)[at + first.unsqueeze(-1)]
