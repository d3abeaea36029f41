"""Sizes by a budget of parameters: the largest model of a family that stays within it.

Every parameter counts, embeddings, biases and fixed ones too.
"""

from typing import Any

import torch

from train.model import family

BUDGETS = {f"{hundreds}00k": hundreds * 100_000 for hundreds in range(1, 6)}
MOST_APART = 1024  # between two sizes that a family can have, such as multiples of its heads


def fit_sizes(name: str, sizes: dict[str, Any], budget: int) -> dict[str, Any]:
    """`sizes` (with input_size and output_size) and the largest `grows` within the budget.

    Raises `ValueError` if even the smallest model is larger, or if another size is impossible.
    """
    kind = family(name)

    def fitting(least: int) -> int | None:
        """The first size from `least` on that the family can have, if it is within the budget."""
        for size in range(least, least + MOST_APART):
            if (count := count_parameters(name, {**sizes, kind.grows: size})) is not None:
                return size if count <= budget else None
        return None

    if (best := fitting(1)) is None:
        kind.Config(**sizes)  # the other sizes may be what is impossible: that says so itself
        raise ValueError(
            f"preset: found no {kind.grows} of {name} with at most {budget:,} parameters; choose "
            "a larger --preset or smaller other sizes"
        )
    step = 1  # the number of parameters grows with the size: double the step, then halve it
    while (found := fitting(best + step)) is not None:
        best, step = found, 2 * step
    while step > 1:
        step //= 2
        best = fitting(best + step) or best
    return {**sizes, kind.grows: best}


def count_parameters(name: str, sizes: dict[str, Any]) -> int | None:
    """Parameters of a model of these sizes, made without memory; None if there is no such one."""
    kind = family(name)
    try:
        config = kind.Config(**sizes)
    except ValueError:
        return None
    with torch.device("meta"):
        return kind(config).num_parameters()
