"""Tasks made of trials: sequences with a target a step, or one target for all.

A task says what its trials look like; the loss and the scores follow from whether its targets are
classes or vectors.

    classes: mean cross-entropy (nats) where the mask is 1;  accuracy
    vectors: mean squared error there;  FVU = Σ‖y - target‖² / Σ‖target - mean target‖²

Pooled outputs are averaged over the steps where the mask is 1, so a mask with a single 1 takes the
output of that step.
"""

import functools
import hashlib
import json
from abc import abstractmethod
from dataclasses import asdict
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from train.model import Model
from train.settings import Settings
from train.tasks.task import Part, Scores, Source, Task, Trials

HELD_OUT_SEED = {"valid": 1_000_003, "test": 1_000_033}
HELD_OUT_TRIALS = 1024
EVALUATION_BATCH = 128


class TrialTask(Task):
    """A task whose trials are seen whole."""

    targets: ClassVar[Literal["classes", "vectors"]]
    pooled: ClassVar[bool] = False

    def __init__(self, config: Any, settings: Settings) -> None:
        del settings  # a generator needs none of them
        self.config = config
        self.source = self.describe()

    def describe(self, size: int = 0, **facts: Any) -> Source:
        """The source of trials that follow from the task's options and these facts."""
        page = json.dumps({"task": self.name, **asdict(self.config), **facts}, sort_keys=True)
        return Source(self.name, hashlib.sha256(page.encode()).hexdigest(), size)

    @abstractmethod
    def sample(self, num_trials: int, generator: torch.Generator) -> Trials:
        """Trials to train on."""

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def held_out(self, part: Part) -> Trials:
        """Trials that no run trains on, the same for every run: from a seed of their own."""
        return self.draw_held_out(part, torch.Generator().manual_seed(HELD_OUT_SEED[part]))

    def draw_held_out(self, part: Part, generator: torch.Generator) -> Trials:
        """The held-out trials, made; by default they are like those to train on."""
        del part
        return self.sample(HELD_OUT_TRIALS, generator)

    def loss(self, model: Model, trials: Trials) -> Tensor:
        """Mean cross-entropy (nats), or mean squared error, where the mask is 1."""
        outputs = self.outputs(model, trials)
        errors = self._errors(outputs, trials.targets)  # (T, B)
        weight = torch.ones_like(errors) if self.pooled else trials.mask
        return (errors * weight).sum() / weight.sum()

    def outputs(self, model: Model, trials: Trials) -> Tensor:
        """What a model answers: (T, B, Y), or pooled (1, B, Y)."""
        state = model.init_state(trials.inputs.shape[1])
        _, ys = model.scan(model.weights(), state, trials.inputs)
        if not self.pooled:
            return ys
        mask = trials.mask.unsqueeze(-1)
        return (ys * mask).sum(0, keepdim=True) / mask.sum(0, keepdim=True)

    @torch.no_grad()
    def evaluate(self, model: Model, part: Part) -> Scores:
        """Loss and the task's scores over all held-out trials."""
        trials = self.held_out(part).to(model.device)
        pieces = zip(*(torch.split(x, EVALUATION_BATCH, dim=1) for x in trials), strict=True)
        outputs = torch.cat([self.outputs(model, Trials(*piece)) for piece in pieces], dim=1)
        return self.score(outputs, trials)

    def probe(self, num_trials: int, num_steps: int) -> Tensor:
        """The first of the held-out trials."""
        return self.held_out("valid").inputs[:num_steps, :num_trials]

    def score(self, outputs: Tensor, trials: Trials) -> Scores:
        """Scores of outputs (T, B, Y) or (1, B, Y) against the trials' targets."""
        weight = torch.ones(outputs.shape[:2]).to(outputs) if self.pooled else trials.mask
        errors = self._errors(outputs, trials.targets)
        scores = {"loss": float((errors * weight).sum() / weight.sum())}
        if self.targets == "classes":
            hits = (outputs.argmax(-1) == trials.targets).to(weight)
            return scores | {"accuracy": float((hits * weight).sum() / weight.sum())}
        return scores | {"fvu": unexplained_variance(outputs, trials.targets, weight)}

    def _errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.targets == "classes":
            errors = cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
            return errors.view(targets.shape)
        return (outputs - targets).square().mean(-1)


def unexplained_variance(outputs: Tensor, targets: Tensor, weight: Tensor) -> float:
    """FVU = Σ‖y - target‖² / Σ‖target - mean target‖² over steps of weight 1 (T, B)."""
    kept = weight.unsqueeze(-1).double()
    mean = (targets * kept).sum((0, 1)) / kept.sum()
    missed = ((outputs - targets).square() * kept).sum()
    return float(missed / ((targets - mean).square() * kept).sum())
