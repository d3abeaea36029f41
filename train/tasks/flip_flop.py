"""Flip-flop: remember the sign of the last pulse of every channel.

The k-bit memory of Sussillo and Barak (2013), as Draeger, arXiv 2606.18457, asks for it: 3 bits, 25
steps. The paper leaves the pulses open. Ours: on every channel and step, apart from all others, a
pulse comes with probability `rate` and is -1 or 1 with equal chances; between pulses the input is
0. The output is the sign of the channel's last pulse, this step's included, and 0 before the first.
"""

from dataclasses import dataclass, field

import torch

from train.settings import Settings, check_range
from train.tasks.task import Trials
from train.tasks.trial_task import TrialTask


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipFlopConfig:
    """Sizes of the flip-flop task."""

    bits: int = field(default=3, metadata={"help": "channels, each with a bit to remember"})
    length: int = field(default=25, metadata={"help": "steps of a trial"})
    rate: float = field(default=0.2, metadata={"help": "chance of a pulse, a step and channel"})

    def __post_init__(self) -> None:
        check_range("bits", self.bits, 1, 4096)
        check_range("length", self.length, 1, 65_536)
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f"rate: found {self.rate}, expected a chance above 0 and up to 1")


class FlipFlop(TrialTask):
    """Fraction of variance unexplained (FVU) of the remembered signs."""

    name = "flip-flop"
    Config = FlipFlopConfig
    targets = "vectors"
    headline = "fvu"

    def __init__(self, config: FlipFlopConfig, settings: Settings) -> None:
        super().__init__(config, settings)
        self.input_size = self.output_size = config.bits

    def sample(self, num_trials: int, generator: torch.Generator) -> Trials:
        """Pulses, and the last one's sign."""
        shape = (self.config.length, num_trials, self.config.bits)
        signs = 2.0 * torch.randint(2, shape, generator=generator) - 1.0
        pulsed = torch.rand(shape, generator=generator) < self.config.rate
        steps = torch.arange(1, len(pulsed) + 1).view(-1, 1, 1)
        latest = (steps * pulsed).cummax(0).values  # step of the last pulse, from 1; 0: none yet
        targets = signs.gather(0, (latest - 1).clamp(min=0)) * (latest > 0)
        return Trials(signs * pulsed, targets, torch.ones(shape[:2]))
