"""Diagnosis of a model's state and weights while it trains.

| figure                | of                                                                    |
|-----------------------|-----------------------------------------------------------------------|
| `orthogonality_error` | max |HᵀH - I| of group-valued states after a probe, uncorrected       |
| `step_angles`         | eigen-angles (rad) of H_tᵀ H_{t+1}: minimum, quartiles, maximum       |
| `state_rms`           | root mean square of all state tensors after the probe                 |
| `generator_norm_mean` | of ‖S‖_F / √2 (rad) over all tangents S by which steps move states    |
| `generator_norm_max`  | the largest of them                                                   |

Probed are the first steps of a few trials that validate.
"""

import torch
from torch import Tensor

from train.layers.mixing import observed_norms
from train.model import Model, State
from train.tasks.task import Task

PROBE_TRIALS, PROBE_STEPS = 8, 64
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@torch.no_grad()
def diagnose(model: Model, task: Task) -> dict[str, float | list[float]]:
    """The figures of a model over a few trials of its task."""
    xs = task.probe(PROBE_TRIALS, PROBE_STEPS).to(model.device)
    weights, state = model.weights(), model.init_state(xs.shape[1])
    elements = [model.elements(state)]
    with observed_norms() as norms:
        for x in xs:
            state = model.update(weights, state, x)
            elements.append(model.elements(state))
    figures: dict[str, float | list[float]] = {"state_rms": root_mean_square(state)}
    if (chain := [H for H in elements if H is not None]) and len(chain) == len(elements):
        figures |= _group_figures(torch.stack(chain))
    if norms:
        taken = torch.cat([norm.flatten() for norm in norms])
        figures |= {
            "generator_norm_mean": float(taken.mean()),
            "generator_norm_max": float(taken.max()),
        }
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
