"""Sine: a constant input says how fast, the output swings.

Frequency-cued sine generation of Sussillo and Barak (2013), 50 steps as in Draeger, arXiv
2606.18457. The paper leaves scales open. Ours: a trial's angular frequency ω is uniform between
`slowest` and `fastest` (radians a step); the input is the same number at every step, from 0.25 for
the slowest to 1.25 for the fastest, in proportion; the output at step t, from 0, is sin(ω (t + 1)).
"""

import math
from dataclasses import dataclass, field

import torch

from train.settings import Settings, check_range
from train.tasks.task import Trials
from train.tasks.trial_task import TrialTask

LEAST_CUE, CUES = 0.25, 1.0  # cue of the slowest; distance to the fastest's


@dataclass(frozen=True, slots=True, kw_only=True)
class SineConfig:
    """Sizes of the sine task."""

    length: int = field(default=50, metadata={"help": "steps of a trial"})
    slowest: float = field(default=0.1, metadata={"help": "least frequency, radians a step"})
    fastest: float = field(default=0.6, metadata={"help": "largest frequency, radians a step"})

    def __post_init__(self) -> None:
        check_range("length", self.length, 1, 65_536)
        if not 0.0 < self.slowest < self.fastest <= math.pi:
            raise ValueError(
                f"slowest, fastest: found {self.slowest} and {self.fastest}, "
                "expected 0 < slowest < fastest <= pi"
            )


class Sine(TrialTask):
    """Fraction of variance unexplained (FVU) of the wave."""

    name = "sine"
    Config = SineConfig
    targets = "vectors"
    headline = "fvu"

    def __init__(self, config: SineConfig, settings: Settings) -> None:
        super().__init__(config, settings)
        self.input_size = self.output_size = 1

    def sample(self, num_trials: int, generator: torch.Generator) -> Trials:
        """Cues, and the waves they ask for."""
        length, slowest = self.config.length, self.config.slowest
        share = torch.rand(num_trials, generator=generator)  # of the way to the fastest
        frequency = slowest + share * (self.config.fastest - slowest)
        steps = torch.arange(1, length + 1).unsqueeze(-1)
        return Trials(
            (LEAST_CUE + CUES * share).expand(length, num_trials).unsqueeze(-1).contiguous(),
            torch.sin(frequency * steps).unsqueeze(-1),
            torch.ones(length, num_trials),
        )
