"""Text: predict every character from those before it.

Trials are random windows of the training part. The first character of a window is predicted from
the initial state, as a stream's first character will be.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from train.data import text as data
from train.evaluate import bits_per_character, write_text
from train.model import Model, predict
from train.settings import Settings
from train.tasks.task import Part, Scores, Source, Task, Trials

VALID_LANES = 64
SAMPLE_CHARACTERS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """Text has no options of its own: which one, and the window, are settings of the run."""


class Text(Task):
    """Characters in, logits of the next character out; scored in bits per character (BPC)."""

    name = "text"
    Config = TextConfig
    takes: ClassVar[Literal["characters", "vectors"]] = "characters"
    headline = "bpc"

    def __init__(self, config: TextConfig, settings: Settings) -> None:
        self.config, self.window = config, settings.window
        text = data.load_text(settings.data, settings.symbols)
        self.vocabulary = data.make_vocabulary(text.text)
        self.input_size = self.output_size = len(self.vocabulary)
        self.source = Source(text.name, text.sha256, len(text.text))
        ids = data.encode(text.text, self.vocabulary)
        self.splits = data.split(ids, settings.window, text.parts)
        self.notes = (*text.notes, *data.describe_unseen(self.splits, self.vocabulary))

    def sample(self, num_trials: int, generator: torch.Generator) -> Trials:
        """Random windows of the training text; targets (T + 1, B) begin with their first."""
        ids = self.splits.train
        starts = torch.randint(len(ids) - self.window, (num_trials,), generator=generator)
        xs = ids[torch.arange(self.window + 1).unsqueeze(-1) + starts]  # (T + 1, B)
        return Trials(xs[:-1], xs, torch.ones(xs.shape))

    def loss(self, model: Model, trials: Trials) -> Tensor:
        """Mean negative log-likelihood (nats) of all characters, the first from a fresh state."""
        return window_loss(model, trials.targets)

    def evaluate(self, model: Model, part: Part) -> Scores:
        """BPC: the test part as one stream, the validation part in `VALID_LANES` lanes."""
        if part == "test":
            return {"bpc": bits_per_character(model, self.splits.test)}
        return {"bpc": bits_per_character(model, self.splits.valid, VALID_LANES)}

    def probe(self, num_trials: int, num_steps: int) -> Tensor:
        """Windows that stand evenly in the validation part."""
        ids = self.splits.valid
        T = min(num_steps, len(ids))
        starts = torch.linspace(0, len(ids) - T, num_trials).long()
        return ids[torch.arange(T).unsqueeze(-1) + starts]

    def write(self, model: Model, seed: int) -> str:
        """A text sampled from the initial state."""
        written = write_text(model, SAMPLE_CHARACTERS, seed)
        return "".join(self.vocabulary[i] for i in written)


def text_protocol(settings: Settings) -> dict[str, str]:
    """Which parts a run's text was cut into, and how its scores came about, in words."""
    symbol = settings.symbols.removesuffix("s")
    return {
        "split": data.describe_split(settings.data, settings.symbols),
        "protocol": f"mean -log2 p over every {symbol} of the split, state carried throughout; the "
        f"test as one stream from its start, the validation in {VALID_LANES} lanes",
    }


def window_loss(model: Model, xs: Tensor) -> Tensor:
    """Mean negative log-likelihood (nats) of all xs (T + 1, B); the first from a fresh state."""
    _, logits = predict(model, model.weights(), model.init_state(xs.shape[1]), xs[:-1])
    return cross_entropy(logits.flatten(0, 1), xs.flatten())
