"""Integration: add up the one of two noisy stimuli that the context names.

Context-dependent integration of Mante et al. (2013) in the discrete form of Maheswaranathan et al.
(2019), 48 steps as in Draeger, arXiv 2606.18457. The paper leaves scales open. Ours: inputs 0 and 1
are the stimuli, at every step a trial's own drift (uniform in [-`drift`, `drift`]) plus normal
noise of standard deviation `noise`; inputs 2 and 3 are the context, 1 for the stimulus that counts
and 0 for the other, the same at every step. The output is the sum of that stimulus up to this step,
this one included, times 1 / sqrt(length).
"""

import math
from dataclasses import dataclass, field

import torch
from torch.nn.functional import one_hot

from train.settings import Settings, check_range
from train.tasks.task import Trials
from train.tasks.trial_task import TrialTask

STIMULI = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrationConfig:
    """Sizes of the integration task."""

    length: int = field(default=48, metadata={"help": "steps of a trial"})
    drift: float = field(default=0.1, metadata={"help": "largest mean of a stimulus"})
    noise: float = field(default=0.5, metadata={"help": "standard deviation around the mean"})

    def __post_init__(self) -> None:
        check_range("length", self.length, 1, 65_536)
        for name in ("drift", "noise"):
            if not 0.0 <= (found := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: found {found}, expected 0 or more")
        if self.drift == self.noise == 0.0:
            raise ValueError("drift, noise: found 0 and 0, expected one above 0")


class Integration(TrialTask):
    """Fraction of variance unexplained (FVU) of the running sum."""

    name = "integration"
    Config = IntegrationConfig
    targets = "vectors"
    headline = "fvu"

    def __init__(self, config: IntegrationConfig, settings: Settings) -> None:
        super().__init__(config, settings)
        self.input_size, self.output_size = 2 * STIMULI, 1

    def sample(self, num_trials: int, generator: torch.Generator) -> Trials:
        """Two stimuli and a context; the sum of the stimulus that the context names."""
        length, drift, noise = self.config.length, self.config.drift, self.config.noise
        means = drift * (2.0 * torch.rand(num_trials, STIMULI, generator=generator) - 1.0)
        shape = (length, num_trials, STIMULI)
        stimuli = means + noise * torch.randn(shape, generator=generator)
        chosen = torch.randint(STIMULI, (num_trials,), generator=generator)
        context = one_hot(chosen, STIMULI).float().expand(shape)
        sums = (stimuli * context).sum(-1, keepdim=True).cumsum(0)
        return Trials(
            torch.cat([stimuli, context], dim=-1),
            sums * length**-0.5,
            torch.ones(shape[:2]),
        )
