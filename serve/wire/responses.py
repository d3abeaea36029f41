"""Responses over HTTP: their schemas, used for /docs.json only. They may come to have more keys.

Text is measured in characters; log-probabilities are natural logarithms.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Page(BaseModel):
    """The schema of an answer; made when somebody asks for it, not at every start."""

    model_config = ConfigDict(defer_build=True)


Json = dict[str, Any]


class ModelPage(Page):
    """One entry of `GET /v1/models`."""

    id: str
    object: str
    created: int
    owned_by: str
    root: str
    max_model_len: int  # characters that a request may take, of prompt and text together
    family: str
    config: Json
    num_parameters: int
    symbols: str  # "characters" or "bytes"
    vocabulary_size: int
    task: Json | None
    device: str
    provider: str
    kernels: str
    targets: list[str]
    training: Json


class ModelsPage(Page):
    """`GET /v1/models`."""

    object: str
    data: list[ModelPage]


class UnloadedPage(Page):
    """A model that is served no more."""

    id: str
    unloaded: bool


class TargetPage(Page):
    """What edits may name; square targets also show their spectrum."""

    name: str
    weight: str
    meaning: str
    shape: list[int]
    ops: list[str]
    norm: float


class SymmetryPage(Page):
    """What edits of op "symmetry" may name, and the weights that it moves."""

    name: str
    group: str
    size: int
    meaning: str
    weights: list[str]


class StructurePage(Page):
    """`GET /v1/models/{model}/structure`."""

    model: str
    targets: list[TargetPage]
    symmetries: list[SymmetryPage]


class LimitsPage(Page):
    """`GET /v1/limits`: seconds and counts by name; and those of the key that asks."""

    limits: dict[str, float]
    key: Json | None


class CachedPage(Page):
    """Characters of prompts that the cache of states knew."""

    cached_tokens: int


class UsagePage(Page):
    """Characters read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedPage


class LogprobsPage(Page):
    """Characters one by one; the first of an echo has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class ChoicePage(Page):
    """One text."""

    index: int
    text: str
    finish_reason: str | None
    stop_string: str | None
    seed: int
    logprobs: LogprobsPage | None
    state: str = ""  # only where save_state asked for it


class CompletionPage(Page):
    """`POST /v1/completions`."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChoicePage]
    usage: UsagePage
    ablation: Json | None


class BranchPage(Page):
    """The text of one branch of a pair."""

    text: str
    finish_reason: str


class PairPage(Page):
    """`POST /v1/ablations/generate`."""

    model: str
    seed: int
    ablation: Json
    first_difference: int | None
    usage: UsagePage
    baseline: BranchPage
    ablated: BranchPage


class TokenizerPage(Page):
    """`GET /tokenizer_info`."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: None
    eos_token: None
    pad_token: None


class TokensPage(Page):
    """`POST /tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class PromptPage(Page):
    """`POST /detokenize`."""

    prompt: str


class RunningModelPage(Page):
    """What really runs a model."""

    id: str
    device: str
    provider: str
    kernels: str


class ReadinessPage(Page):
    """`GET /livez`, `GET /readyz`."""

    ready: bool
    models: list[RunningModelPage]


class ProblemPage(Page):
    """What went wrong: serve/wire/errors.py."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorPage(Page):
    """Every error, but for those of the Open Inference Protocol."""

    error: ProblemPage


class TensorMetadataPage(Page):
    """A tensor of the Open Inference Protocol; -1: any size."""

    name: str
    datatype: str
    shape: list[int]


class ServerMetadataPage(Page):
    """`GET /v2`."""

    name: str
    version: str
    extensions: list[str]


class ModelMetadataPage(Page):
    """`GET /v2/models/{model}`."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadataPage]
    outputs: list[TensorMetadataPage]


class LivePage(Page):
    """`GET /v2/health/live`."""

    live: bool


class ReadyPage(Page):
    """`GET /v2/health/ready`."""

    ready: bool


class ModelReadyPage(Page):
    """`GET /v2/models/{model}/ready`."""

    name: str
    ready: bool


class OutputTensorPage(Page):
    """A tensor of an answer, its data in row-major order."""

    name: str
    datatype: str
    shape: list[int]
    data: list[float]


class InferPage(Page):
    """`POST /v2/models/{model}/infer`."""

    model_name: str
    model_version: str
    id: str = ""
    outputs: list[OutputTensorPage]


class InferenceErrorPage(Page):
    """An error of the Open Inference Protocol over HTTP."""

    error: str
