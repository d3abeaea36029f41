"""Copy: take a few symbols in, then say them over and over from memory.

Fixed-delay copying of Draeger, arXiv 2606.18457: `symbols` vectors in {-1, +1}^bits come in, a step
each, then nothing (zero inputs) while the model goes on by itself. After lag l, from 1, it owes
symbol ((l - 1) mod symbols) + 1, so the target has the symbols' number as its period and the replay
begins right after the last symbol. The paper leaves open how many lags training asks for: ours are
`train_lags`. Held-out trials ask for `lags`.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from train.settings import Settings, check_range
from train.tasks.task import Part, Scores, Trials
from train.tasks.trial_task import HELD_OUT_TRIALS, TrialTask


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyConfig:
    """Sizes of the copy task."""

    symbols: int = field(default=8, metadata={"help": "symbols to remember"})
    bits: int = field(default=8, metadata={"help": "numbers, each -1 or 1, in a symbol"})
    train_lags: int = field(default=24, metadata={"help": "steps of replay in training"})
    lags: int = field(default=128, metadata={"help": "steps of replay in evaluation"})

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            check_range(name, getattr(self, name), 1, most)


MOST = {"symbols": 4096, "bits": 4096, "train_lags": 65_536, "lags": 65_536}


class Copy(TrialTask):
    """Replay accuracy: the share of bits of the replay whose sign is right; chance is 0.5."""

    name = "copy"
    Config = CopyConfig
    targets = "vectors"
    headline = "replay_accuracy"
    better = "higher"

    def __init__(self, config: CopyConfig, settings: Settings) -> None:
        super().__init__(config, settings)
        self.input_size = self.output_size = config.bits

    def sample(self, num_trials: int, generator: torch.Generator) -> Trials:
        """Trials of `train_lags` steps of replay."""
        return self._trials(num_trials, self.config.train_lags, generator)

    def draw_held_out(self, part: Part, generator: torch.Generator) -> Trials:
        """Trials of `lags` steps of replay."""
        del part
        return self._trials(HELD_OUT_TRIALS, self.config.lags, generator)

    def score(self, outputs: Tensor, trials: Trials) -> Scores:
        """Loss, FVU and replay accuracy."""
        right = (outputs.sign() == trials.targets).to(outputs).mean(-1)  # (T, B)
        accuracy = float((right * trials.mask).sum() / trials.mask.sum())
        return super().score(outputs, trials) | {"replay_accuracy": accuracy}

    def _trials(self, num_trials: int, lags: int, generator: torch.Generator) -> Trials:
        symbols, bits = self.config.symbols, self.config.bits
        coins = torch.randint(2, (symbols, num_trials, bits), generator=generator)
        said = 2.0 * coins - 1.0
        return Trials(
            torch.cat([said, torch.zeros(lags, num_trials, bits)]),
            torch.cat([torch.zeros_like(said), said[torch.arange(lags) % symbols]]),
            (torch.arange(symbols + lags) >= symbols).float().unsqueeze(-1).repeat(1, num_trials),
        )
