"""Sparse XOR: of many bits two decide, and nobody says which.

Han and Ghoshdastidar, arXiv 2502.07553: x is uniform in {-1, +1}^d and y = -x_i x_j for two places
i and j that never change; here `support_seed` draws them. A trial is one step whose input is x.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from train.settings import Settings, check_range
from train.tasks.task import Scores, Trials
from train.tasks.trial_task import TrialTask


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseXorConfig:
    """Sizes of the sparse XOR task."""

    d: int = field(default=64, metadata={"help": "bits of x"})
    support_seed: int = field(default=0, metadata={"help": "decides which two bits count"})

    def __post_init__(self) -> None:
        check_range("d", self.d, 2, 65_536)
        check_range("support_seed", self.support_seed, 0, 2**63 - 1)


class SparseXor(TrialTask):
    """Accuracy: the share of trials whose sign is right; chance is 0.5."""

    name = "sparse-xor"
    Config = SparseXorConfig
    targets = "vectors"
    headline = "accuracy"
    better = "higher"

    def __init__(self, config: SparseXorConfig, settings: Settings) -> None:
        super().__init__(config, settings)
        self.input_size, self.output_size = config.d, 1
        generator = torch.Generator().manual_seed(config.support_seed)
        self.support: list[int] = torch.randperm(config.d, generator=generator)[:2].tolist()

    def sample(self, num_trials: int, generator: torch.Generator) -> Trials:
        """Random bits, and the negated product of the two that count: (1, B, 1)."""
        coins = torch.randint(2, (1, num_trials, self.config.d), generator=generator)
        bits = 2.0 * coins - 1.0
        targets = -bits[..., self.support].prod(-1, keepdim=True)
        return Trials(bits, targets, torch.ones(1, num_trials))

    def score(self, outputs: Tensor, trials: Trials) -> Scores:
        """Loss, FVU and accuracy."""
        right = (outputs.sign() == trials.targets).to(outputs)
        return super().score(outputs, trials) | {"accuracy": float(right.mean())}
