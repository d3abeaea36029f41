"""The optimiser and its rates over a run.

A run's rate is a function of its progress alone, so nothing of a schedule is stored.
"""

import math

import torch

from train.model import Model
from train.settings import Settings

START_RATE, END_RATE = 0.04, 4e-6  # of the peak, at the ends of the cycle
MOMENTUM = (0.85, 0.95)  # at the peak, at the ends
STEADY_MOMENTUM = 0.9
SECOND_MOMENTUM = 0.999


def make_optimizer(model: Model, settings: Settings) -> torch.optim.AdamW:
    """AdamW, a group a parameter: rates and decays as the family asks, decay on matrices only."""
    groups = [
        {
            "params": [parameter],
            "rate": settings.learning_rate * model.learning_rates.get(name, 1.0),
            "weight_decay": decay_of(model, name, parameter) * settings.weight_decay,
        }
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    return torch.optim.AdamW(groups, lr=0.0)


def decay_of(model: Model, name: str, parameter: torch.Tensor) -> float:
    """The multiple of the run's weight decay that a parameter takes: 1 for matrices, 0 for rest."""
    return model.weight_decays.get(name, 1.0 if parameter.ndim >= 2 else 0.0)


def set_rates(optimizer: torch.optim.Optimizer, progress: float, settings: Settings) -> None:
    """Rates and momenta for the iteration at a progress in [0, 1)."""
    cycle = one_cycle if settings.schedule == "one-cycle" else cosine
    share, momentum = cycle(progress, settings.warm_up)
    for group in optimizer.param_groups:
        group["lr"], group["betas"] = group["rate"] * share, (momentum, SECOND_MOMENTUM)


def one_cycle(progress: float, warm_up: float) -> tuple[float, float]:
    """Share of the peak rate, and AdamW's first momentum, at a progress in [0, 1].

    Half a cosine up from `START_RATE` while warming up, half a cosine down to `END_RATE`.
    """
    rising = progress < warm_up
    phase = progress / warm_up if rising else (progress - warm_up) / (1.0 - warm_up)
    height = 0.5 + (-0.5 if rising else 0.5) * math.cos(math.pi * phase)
    floor = START_RATE if rising else END_RATE
    return floor + (1.0 - floor) * height, MOMENTUM[1] + (MOMENTUM[0] - MOMENTUM[1]) * height


def cosine(progress: float, warm_up: float) -> tuple[float, float]:
    """The same two: a straight line up from 0, half a cosine down to 0; a steady momentum."""
    if progress < warm_up:
        return progress / warm_up, STEADY_MOMENTUM
    phase = (progress - warm_up) / (1.0 - warm_up)
    return 0.5 + 0.5 * math.cos(math.pi * phase), STEADY_MOMENTUM
