"""What the queries about ablations answer over HTTP: schemas of /docs.json. Pages may come to have
more keys."""

from typing import Any

from serve.wire.page import Page

Json = dict[str, Any]
Scores = dict[str, float | None]  # null: not finite
Bounds = dict[str, list[float] | None]  # lower and upper end; null: undefined


class SchemaPage(Page):
    """`GET /v1/ablations/schema`: the JSON Schema of an ablation."""

    title: str
    type: str
    properties: Json


class BranchScorePage(Page):
    """The score of one branch; `logprobs` where detail was asked for."""

    bpc: float
    logprobs: list[float] = []


class ScorePage(Page):
    """`POST /v1/ablations/score`."""

    model: str
    num_characters: int
    baseline: BranchScorePage
    ablated: BranchScorePage | None
    delta_bpc: float | None
    mean_kl: float | None
    kl: list[float] | None
    ablation: Json | None


class ProbabilityPage(Page):
    """A character that may come next."""

    character: str
    probability: float
    logprob: float  # natural logarithm


class DistributionPage(Page):
    """What may come next: the most probable characters."""

    entropy_bits: float
    top: list[ProbabilityPage]


class ComparedPage(DistributionPage):
    """What may come next under an ablation; `probabilities`: of the baseline's top characters."""

    ablation: Json
    kl_bits: float  # KL(baseline || ablated)
    total_variation: float
    probabilities: list[float]


class ComparePage(Page):
    """`POST /v1/ablations/compare`."""

    model: str
    num_characters: int  # of the prompt
    baseline: DistributionPage
    ablations: list[ComparedPage]  # in the request's order


class IntervalsPage(Page):
    """Paired percentile bootstrap over trials: [lower, upper] by the names of the scores."""

    level: float
    resamples: int
    seed: int
    baseline: Bounds
    ablated: Bounds | None
    delta: Bounds | None
    s_delta_t: list[float] | None


class TrialsPage(Page):
    """`POST /v1/ablations/trials`.

    Scores by name: loss; fvu of vectors; accuracy or replay_accuracy where the task has it. `delta`
    and `per_mass`, which is that over the removed mass, have delta_NAME.
    """

    model: str
    num_trials: int
    num_steps: int
    counted: float  # sum of the mask; pooled: trials
    baseline: Scores
    ablated: Scores | None
    delta: Scores | None
    mass: float | None
    s_delta_t: float | None  # delta_fvu / mass
    per_mass: Scores | None
    intervals: IntervalsPage | None
    warnings: list[str]
    ablation: Json | None
