"""What a model's state and weights look like while it trains.

| figure                | of                                                                    |
|-----------------------|-----------------------------------------------------------------------|
| `orthogonality_error` | max |HᵀH - I| of group-valued states after a probe, uncorrected       |
| `step_angles`         | eigen-angles (rad) of H_tᵀ H_{t+1}: minimum, quartiles, maximum       |
| `state_rms`           | root mean square of all state tensors after the probe                 |
"""

import torch
from torch import Tensor

from train.model import Model, State
from train.tasks.task import Task

PROBE_TRIALS, PROBE_STEPS, PROBE_SEED = 8, 64, 1
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@torch.no_grad()
def diagnose(model: Model, task: Task) -> dict[str, float | list[float]]:
    """The figures of a model over a few trials of its task."""
    generator = torch.Generator().manual_seed(PROBE_SEED)
    trials = task.sample(PROBE_TRIALS, generator).to(model.device)
    weights, state = model.weights(), model.init_state(PROBE_TRIALS)
    elements = [model.elements(state)]
    for x in trials.inputs[:PROBE_STEPS]:
        state = model.update(weights, state, x)
        elements.append(model.elements(state))
    figures: dict[str, float | list[float]] = {"state_rms": root_mean_square(state)}
    if (chain := [H for H in elements if H is not None]) and len(chain) == len(elements):
        figures |= _group_figures(torch.stack(chain))
    return figures


def root_mean_square(state: State) -> float:
    """Over all entries of all state tensors."""
    values = [value.flatten() for value in state.values()]
    return float(torch.cat(values).square().mean().sqrt()) if values else 0.0


def eigen_angles(R: Tensor) -> Tensor:
    """The angles (rad) in [0, π] of orthogonal matrices' eigenvalues: (..., n, n) -> (..., n)."""
    if not R.isfinite().all():
        return torch.full(R.shape[:-1], torch.nan)
    angles: Tensor = torch.linalg.eigvals(R.double().cpu()).angle().abs()
    return angles


def _group_figures(H: Tensor) -> dict[str, float | list[float]]:  # (T + 1, B, n, n)
    identity = torch.eye(H.shape[-1]).to(H)
    angles = eigen_angles(H[:-1].mT @ H[1:]).flatten()
    quantiles = torch.quantile(angles, torch.tensor(QUANTILES, dtype=angles.dtype))
    return {
        "orthogonality_error": float((H[-1].mT @ H[-1] - identity).abs().max()),
        "step_angles": [round(float(angle), 6) for angle in quantiles],
    }
