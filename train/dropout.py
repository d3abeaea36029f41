"""Weight dropout: entries of effective weights left out for one iteration.

    w' = w ∘ mask / (1 - share),   mask ~ Bernoulli(1 - share), one for the whole batch and window

A regulariser for the weights that a family names in `dropped` (Wan et al. 2013; on recurrent
matrices Merity et al. 2017, arXiv 1708.02182).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from train.model import Model, Weights


@contextmanager
def dropped_weights(model: Model, share: float, generator: torch.Generator) -> Iterator[None]:
    """Let `model.weights()` leave out that share of the weights named in `model.dropped`."""
    if share == 0.0:
        yield
        return
    plain = model.weights

    def weights() -> Weights:
        found = plain()
        kept = {
            name: drop(found[name], share, generator) for name in model.dropped if name in found
        }
        return found | kept

    model.weights = weights  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.weights


def drop(weight: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A weight with that share of its entries 0 and the others larger by as much."""
    uniform = torch.rand(weight.shape, generator=generator).to(weight.device)
    return weight * (uniform >= share) / (1.0 - share)
