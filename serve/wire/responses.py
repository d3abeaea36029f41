"""Responses about models, texts and tokens: each shape once, for both wires.

The server builds them, `serve/wire/codec.py` writes and reads them, /docs.json shows their schemas,
the clients hand them out. They may come to have more keys. Text is measured in characters;
log-probabilities are natural logarithms.
"""

from dataclasses import dataclass

from serve.wire.codec import JsonObject, flat, inside, left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One entry of `GET /v1/models`."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "torsor"
    root: str
    max_model_len: int  # characters that a request may take, of prompt and text together
    family: str
    config: JsonObject  # sizes of the family
    num_parameters: int
    symbols: str  # "characters" or "bytes"
    vocabulary_size: int  # 0 of models of a task
    task: JsonObject | None  # what goes in and what is owed; null: text
    device: str  # "cpu" or "cuda"
    provider: str  # of the runtime, the one really in use
    kernels: str
    targets: tuple[str, ...]  # what edits may name
    training: JsonObject  # provenance: dataset, iterations, seed, test_bpc, ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """`GET /v1/models`."""

    object: str = "list"
    data: tuple[Model, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """A model that is served no more."""

    id: str
    unloaded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """The ordered real Schur form T of a square target, split at `alpha`."""

    alpha: float
    n_R: int
    n_C: int
    rho: float  # spectral radius
    eigenvalues: tuple[complex, ...]  # in row order, by non-increasing modulus
    block_sizes: tuple[int, ...]  # 1: real eigenvalue, 2: complex pair
    masses: dict[str, float]  # ||N_x||_F / ||T||_F of RR, C→R, CC
    backward_error: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A weight, or a slice of it, that edits may name; square targets also show their spectrum."""

    name: str
    weight: str
    meaning: str
    shape: tuple[int, ...]
    ops: tuple[str, ...]
    norm: float  # Frobenius
    spectrum: Spectrum | None = flat()


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetry:
    """A symmetry that edits of op "symmetry" may name: it moves weights, and not the function."""

    name: str
    group: str
    size: int
    meaning: str
    weights: tuple[str, ...]  # that it moves


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """`GET /v1/models/{model}/structure`: what can be ablated in a model."""

    model: str
    targets: tuple[Target, ...]
    symmetries: tuple[Symmetry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`GET /v1/limits`: seconds and counts by name; and those of the key that asks."""

    limits: dict[str, float]
    key: JsonObject | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownCharacters:
    """The characters of a text that the model lacks: how often each, and what became of them."""

    policy: str  # "skip" or "replace"
    counts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Characters read and written; cached ones, of the prompt, were known and not run again."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int = inside("prompt_tokens_details", 0)
    unknown: UnknownCharacters | None = left_out(None)  # only where the prompt had some


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Characters one by one; the first of an echo has no log-probability."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[dict[str, float] | None, ...] | None
    text_offset: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionChoice:
    """One text, or in an event some more of it."""

    index: int
    text: str
    finish_reason: str | None = None  # of an event: null until its text's last
    stop_string: str | None = None  # that ended it
    seed: int
    logprobs: Logprobs | None = None
    state: str | None = left_out(None)  # only where save_state asked for it


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionHead:
    """The fields that all events of a completion begin with."""

    id: str
    object: str = "text_completion"
    created: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(CompletionHead):
    """`POST /v1/completions`."""

    choices: tuple[CompletionChoice, ...]
    usage: Usage
    ablation: JsonObject | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionEvent(CompletionHead):
    """An event of `POST /v1/completions`; usage comes last, where asked for, with no choice."""

    choices: tuple[CompletionChoice, ...]
    usage: Usage | None = None
    ablation: JsonObject | None = None  # in the first event


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The text of one branch of a pair."""

    text: str
    finish_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSummary:
    """The fields that the two branches of a pair have in common."""

    model: str
    seed: int
    ablation: JsonObject
    first_difference: int | None  # character at which the texts part; null if they don't
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(PairSummary):
    """`POST /v1/ablations/generate`: both texts, under the same random numbers."""

    baseline: Branch
    ablated: Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvent:
    """An event of `POST /v1/ablations/generate`: some more text of a branch, or the summary."""

    index: int = 0
    branch: str = ""  # "baseline" or "ablated"
    text: str = ""
    finish_reason: str | None = None
    stop_string: str | None = None
    seed: int | None = None
    summary: PairSummary | None = left_out(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """`GET /tokenizer_info`."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: None = None
    eos_token: None = None
    pad_token: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """`POST /tokenize`."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None
    unknown: UnknownCharacters | None = left_out(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """`POST /detokenize`."""

    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningModel:
    """The device, runtime provider and kernels in use for a model."""

    id: str
    device: str
    provider: str
    kernels: str
    threads: int  # of one run on the CPU
    ready: bool
    reason: str | None = left_out(None)  # why it isn't


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenModel:
    """A model that could not be loaded, by its folder's name, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """`GET /livez`, `GET /readyz`."""

    ready: bool  # whether requests are taken, for one model at least
    models: tuple[RunningModel, ...] = ()
    broken: tuple[BrokenModel, ...] = left_out(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The error of a request: serve/wire/errors.py."""

    message: str
    type: str
    param: str | None
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Every error, but for those of the Open Inference Protocol."""

    error: Problem
