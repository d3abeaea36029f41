"""Evaluation of a trained model: bits per character, and text it writes.

One protocol for all: the state is carried through the whole text (no windows), every character is
predicted, the first of each lane from the initial state, and the state is corrected at the
positions that the family asks for. Bits per character = mean negative log-likelihood / ln 2.

Letters: B batch (here: lanes), T time, V vocabulary.
"""

import math

import torch
from torch import Tensor

from train.model import Model, State, Weights, predict

CHUNK = 64  # characters between two looks at memory, for families that need no correction


@torch.no_grad()
def bits_per_character(model: Model, ids: Tensor, lanes: int = 1) -> float:
    """BPC of `ids` (characters), cut into `lanes` contiguous pieces that are read side by side.

    One lane is one stream from start to end; more lanes are faster and start afresh as often.
    """
    weights, length = model.weights(), len(ids) // lanes
    ids = ids.to(model.device)
    whole = ids[: lanes * length].view(lanes, length).T  # (T, B)
    rest = ids[lanes * length :].unsqueeze(-1)  # (T, 1), fewer than `lanes` characters
    taken = [log_probabilities(model, weights, xs) for xs in (whole, rest) if len(xs)]
    total = sum(scores.double().sum().item() for scores in taken)
    return -total / len(ids) / math.log(2.0)


def log_probabilities(model: Model, weights: Weights, xs: Tensor) -> Tensor:
    """ln p of each character given those before it: (T, B) -> (T, B)."""
    state, taken = model.init_state(xs.shape[1]), []
    for chunk in torch.split(xs, model.correct_every or CHUNK):
        state = model.correct(state) if model.correct_every else state
        state, logits = predict(model, weights, state, chunk)
        scores = logits[:-1].log_softmax(-1)  # (T, B, V)
        taken.append(scores.gather(-1, chunk.unsqueeze(-1)).squeeze(-1))
    return torch.cat(taken)


@torch.no_grad()
def write_text(model: Model, num_characters: int, seed: int) -> list[int]:
    """Indices of a text sampled from the initial state at temperature 1."""
    weights, state = model.weights(), model.init_state(1)
    generator, written = torch.Generator().manual_seed(seed), list[int]()
    device = model.device
    for position in range(num_characters):
        state = _corrected(model, state, position)
        probabilities = model.readout(weights, state).softmax(-1).cpu()  # (1, V)
        x = torch.multinomial(probabilities, 1, generator=generator).squeeze(-1)  # (1)
        written.append(int(x))
        state = model.update(weights, state, x.to(device))
    return written


def _corrected(model: Model, state: State, position: int) -> State:
    due = model.correct_every and position % model.correct_every == 0
    return model.correct(state) if due else state
