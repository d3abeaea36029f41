"""Adding: the sum of the two numbers that a marker points at.

The memory task of the unitary-RNN literature. Input 0 is uniform in [0, 1) at every step; input 1
is 0 but for two 1s, one in each half of the trial. The output after the last step is the sum of the
two marked numbers. Who always says 1 has a mean squared error of 1/6.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from train.settings import Settings, check_range
from train.tasks.task import Scores, Trials
from train.tasks.trial_task import TrialTask


@dataclass(frozen=True, slots=True, kw_only=True)
class AddingConfig:
    """Sizes of the adding task."""

    length: int = field(default=200, metadata={"help": "steps of a trial"})

    def __post_init__(self) -> None:
        check_range("length", self.length, 2, 65_536)


class Adding(TrialTask):
    """Mean squared error (MSE) of the sum; 1/6 without looking."""

    name = "adding"
    Config = AddingConfig
    targets, pooled = "vectors", True
    headline = "mse"

    def __init__(self, config: AddingConfig, settings: Settings) -> None:
        super().__init__(config, settings)
        self.input_size, self.output_size = 2, 1

    def sample(self, num_trials: int, generator: torch.Generator) -> Trials:
        """Numbers and markers; the sum of the marked numbers, owed at the last step."""
        length, half = self.config.length, self.config.length // 2
        numbers = torch.rand(length, num_trials, generator=generator)
        first = torch.randint(half, (num_trials,), generator=generator)
        second = torch.randint(half, length, (num_trials,), generator=generator)
        markers = (one_hot(first, length) + one_hot(second, length)).float().mT  # (T, B)
        mask = torch.zeros(length, num_trials)
        mask[-1] = 1.0
        targets = (numbers * markers).sum(0).view(1, num_trials, 1)
        return Trials(torch.stack([numbers, markers], dim=-1), targets, mask)

    def score(self, outputs: Tensor, trials: Trials) -> Scores:
        """Loss, FVU and MSE, which is the loss."""
        scores = super().score(outputs, trials)
        return scores | {"mse": scores["loss"]}
