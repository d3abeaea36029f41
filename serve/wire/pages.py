"""What answers over HTTP hold: the schemas of /docs.json. Pages may come to have more keys.

Text is measured in characters; log-probabilities are natural logarithms.
"""

from typing import Any

from pydantic import BaseModel

Json = dict[str, Any]


class ModelPage(BaseModel):
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


class ModelsPage(BaseModel):
    """`GET /v1/models`."""

    object: str
    data: list[ModelPage]


class UnloadedPage(BaseModel):
    """A model that is served no more."""

    id: str
    unloaded: bool


class TargetPage(BaseModel):
    """What edits may name; square targets also show their spectrum."""

    name: str
    weight: str
    meaning: str
    shape: list[int]
    ops: list[str]
    norm: float


class SymmetryPage(BaseModel):
    """What edits of op "symmetry" may name, and the weights that it moves."""

    name: str
    group: str
    size: int
    meaning: str
    weights: list[str]


class StructurePage(BaseModel):
    """`GET /v1/models/{model}/structure`."""

    model: str
    targets: list[TargetPage]
    symmetries: list[SymmetryPage]


class LimitsPage(BaseModel):
    """`GET /v1/limits`: seconds and counts by name; and those of the key that asks."""

    limits: dict[str, float]
    key: Json | None


class CachedPage(BaseModel):
    """Characters of prompts that the cache of states knew."""

    cached_tokens: int


class UsagePage(BaseModel):
    """Characters read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedPage


class LogprobsPage(BaseModel):
    """Characters one by one; the first of an echo has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class ChoicePage(BaseModel):
    """One text."""

    index: int
    text: str
    finish_reason: str | None
    stop_string: str | None
    seed: int
    logprobs: LogprobsPage | None
    state: str = ""  # only where save_state asked for it


class CompletionPage(BaseModel):
    """`POST /v1/completions`."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChoicePage]
    usage: UsagePage
    ablation: Json | None


class BranchPage(BaseModel):
    """The text of one branch of a pair."""

    text: str
    finish_reason: str


class PairPage(BaseModel):
    """`POST /v1/ablations/generate`."""

    model: str
    seed: int
    ablation: Json
    first_difference: int | None
    usage: UsagePage
    baseline: BranchPage
    ablated: BranchPage


class TokenizerPage(BaseModel):
    """`GET /tokenizer_info`."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: None
    eos_token: None
    pad_token: None


class TokensPage(BaseModel):
    """`POST /tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class PromptPage(BaseModel):
    """`POST /detokenize`."""

    prompt: str


class RunningModelPage(BaseModel):
    """What really runs a model."""

    id: str
    device: str
    provider: str
    kernels: str


class ReadinessPage(BaseModel):
    """`GET /livez`, `GET /readyz`."""

    ready: bool
    models: list[RunningModelPage]


class ProblemPage(BaseModel):
    """What went wrong: serve/wire/errors.py."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorPage(BaseModel):
    """Every error, but for those of the Open Inference Protocol."""

    error: ProblemPage


class BentoErrorPage(BaseModel):
    """A field of a native BentoML endpoint that isn't as expected, as BentoML says it."""

    error: str
    detail: list[Json]


class TensorMetadataPage(BaseModel):
    """A tensor of the Open Inference Protocol; -1: any size."""

    name: str
    datatype: str
    shape: list[int]


class ServerMetadataPage(BaseModel):
    """`GET /v2`."""

    name: str
    version: str
    extensions: list[str]


class ModelMetadataPage(BaseModel):
    """`GET /v2/models/{model}`."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadataPage]
    outputs: list[TensorMetadataPage]


class LivePage(BaseModel):
    """`GET /v2/health/live`."""

    live: bool


class ReadyPage(BaseModel):
    """`GET /v2/health/ready`."""

    ready: bool


class ModelReadyPage(BaseModel):
    """`GET /v2/models/{model}/ready`."""

    name: str
    ready: bool


class OutputTensorPage(BaseModel):
    """A tensor of an answer, its data in row-major order."""

    name: str
    datatype: str
    shape: list[int]
    data: list[float]


class InferPage(BaseModel):
    """`POST /v2/models/{model}/infer`."""

    model_name: str
    model_version: str
    id: str = ""
    outputs: list[OutputTensorPage]


class InferenceErrorPage(BaseModel):
    """An error of the Open Inference Protocol over HTTP."""

    error: str
