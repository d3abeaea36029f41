from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelsReply(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("id", "details")
    ID_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    id: str
    details: _struct_pb2.Struct
    def __init__(self, id: _Optional[str] = ..., details: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class StructureRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class StructureReply(_message.Message):
    __slots__ = ("model", "targets", "symmetries")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    SYMMETRIES_FIELD_NUMBER: _ClassVar[int]
    model: str
    targets: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    symmetries: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    def __init__(self, model: _Optional[str] = ..., targets: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ..., symmetries: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ...) -> None: ...

class Edit(_message.Message):
    __slots__ = ("target", "op", "alpha", "zero", "rows", "columns", "factor", "keep", "subspace", "like", "kind", "seed")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    ZERO_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    SUBSPACE_FIELD_NUMBER: _ClassVar[int]
    LIKE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    target: str
    op: str
    alpha: float
    zero: _containers.RepeatedScalarFieldContainer[str]
    rows: _containers.RepeatedScalarFieldContainer[int]
    columns: _containers.RepeatedScalarFieldContainer[int]
    factor: float
    keep: int
    subspace: str
    like: Edit
    kind: str
    seed: int
    def __init__(self, target: _Optional[str] = ..., op: _Optional[str] = ..., alpha: _Optional[float] = ..., zero: _Optional[_Iterable[str]] = ..., rows: _Optional[_Iterable[int]] = ..., columns: _Optional[_Iterable[int]] = ..., factor: _Optional[float] = ..., keep: _Optional[int] = ..., subspace: _Optional[str] = ..., like: _Optional[_Union[Edit, _Mapping]] = ..., kind: _Optional[str] = ..., seed: _Optional[int] = ...) -> None: ...

class Ablation(_message.Message):
    __slots__ = ("name", "edits")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    edits: _containers.RepeatedCompositeFieldContainer[Edit]
    def __init__(self, name: _Optional[str] = ..., edits: _Optional[_Iterable[_Union[Edit, _Mapping]]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("model", "prompt", "max_tokens", "temperature", "top_k", "top_p", "n", "seed", "stop", "logprobs", "echo", "logit_bias", "unknown", "ablation", "paired", "state", "save_state")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    ABLATION_FIELD_NUMBER: _ClassVar[int]
    PAIRED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SAVE_STATE_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt: str
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    n: int
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    logprobs: int
    echo: bool
    logit_bias: _containers.ScalarMap[str, float]
    unknown: str
    ablation: Ablation
    paired: bool
    state: str
    save_state: bool
    def __init__(self, model: _Optional[str] = ..., prompt: _Optional[str] = ..., max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., n: _Optional[int] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., logprobs: _Optional[int] = ..., echo: _Optional[bool] = ..., logit_bias: _Optional[_Mapping[str, float]] = ..., unknown: _Optional[str] = ..., ablation: _Optional[_Union[Ablation, _Mapping]] = ..., paired: _Optional[bool] = ..., state: _Optional[str] = ..., save_state: _Optional[bool] = ...) -> None: ...

class Character(_message.Message):
    __slots__ = ("text", "logprob", "top_logprobs")
    class TopLogprobsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    text: str
    logprob: float
    top_logprobs: _containers.ScalarMap[str, float]
    def __init__(self, text: _Optional[str] = ..., logprob: _Optional[float] = ..., top_logprobs: _Optional[_Mapping[str, float]] = ...) -> None: ...

class GenerateChunk(_message.Message):
    __slots__ = ("index", "branch", "text", "characters", "finish_reason", "stop", "seed", "summary", "state")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    index: int
    branch: str
    text: str
    characters: _containers.RepeatedCompositeFieldContainer[Character]
    finish_reason: str
    stop: str
    seed: int
    summary: Summary
    state: str
    def __init__(self, index: _Optional[int] = ..., branch: _Optional[str] = ..., text: _Optional[str] = ..., characters: _Optional[_Iterable[_Union[Character, _Mapping]]] = ..., finish_reason: _Optional[str] = ..., stop: _Optional[str] = ..., seed: _Optional[int] = ..., summary: _Optional[_Union[Summary, _Mapping]] = ..., state: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "unknown")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    unknown: UnknownCharacters
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., unknown: _Optional[_Union[UnknownCharacters, _Mapping]] = ...) -> None: ...

class UnknownCharacters(_message.Message):
    __slots__ = ("policy", "counts")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    POLICY_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    policy: str
    counts: _containers.ScalarMap[str, int]
    def __init__(self, policy: _Optional[str] = ..., counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Summary(_message.Message):
    __slots__ = ("model", "usage", "ablation", "first_difference")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ABLATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    model: str
    usage: Usage
    ablation: _struct_pb2.Struct
    first_difference: int
    def __init__(self, model: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., ablation: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., first_difference: _Optional[int] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("model", "text", "unknown", "ablation", "detail")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    ABLATION_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    unknown: str
    ablation: Ablation
    detail: bool
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., unknown: _Optional[str] = ..., ablation: _Optional[_Union[Ablation, _Mapping]] = ..., detail: _Optional[bool] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("bpc", "logprobs")
    BPC_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    bpc: float
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, bpc: _Optional[float] = ..., logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class ScoreReply(_message.Message):
    __slots__ = ("model", "num_characters", "baseline", "ablated", "delta_bpc", "mean_kl", "kl", "ablation", "unknown")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    ABLATED_FIELD_NUMBER: _ClassVar[int]
    DELTA_BPC_FIELD_NUMBER: _ClassVar[int]
    MEAN_KL_FIELD_NUMBER: _ClassVar[int]
    KL_FIELD_NUMBER: _ClassVar[int]
    ABLATION_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    model: str
    num_characters: int
    baseline: Score
    ablated: Score
    delta_bpc: float
    mean_kl: float
    kl: _containers.RepeatedScalarFieldContainer[float]
    ablation: _struct_pb2.Struct
    unknown: UnknownCharacters
    def __init__(self, model: _Optional[str] = ..., num_characters: _Optional[int] = ..., baseline: _Optional[_Union[Score, _Mapping]] = ..., ablated: _Optional[_Union[Score, _Mapping]] = ..., delta_bpc: _Optional[float] = ..., mean_kl: _Optional[float] = ..., kl: _Optional[_Iterable[float]] = ..., ablation: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., unknown: _Optional[_Union[UnknownCharacters, _Mapping]] = ...) -> None: ...

class CompareRequest(_message.Message):
    __slots__ = ("model", "prompt", "unknown", "ablations", "top")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    ABLATIONS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt: str
    unknown: str
    ablations: _containers.RepeatedCompositeFieldContainer[Ablation]
    top: int
    def __init__(self, model: _Optional[str] = ..., prompt: _Optional[str] = ..., unknown: _Optional[str] = ..., ablations: _Optional[_Iterable[_Union[Ablation, _Mapping]]] = ..., top: _Optional[int] = ...) -> None: ...

class CompareReply(_message.Message):
    __slots__ = ("page",)
    PAGE_FIELD_NUMBER: _ClassVar[int]
    page: _struct_pb2.Struct
    def __init__(self, page: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class TrialsRequest(_message.Message):
    __slots__ = ("model", "ablation", "trials", "resamples", "seed")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ABLATION_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    RESAMPLES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    model: str
    ablation: Ablation
    trials: bytes
    resamples: int
    seed: int
    def __init__(self, model: _Optional[str] = ..., ablation: _Optional[_Union[Ablation, _Mapping]] = ..., trials: _Optional[bytes] = ..., resamples: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class TrialsReply(_message.Message):
    __slots__ = ("page",)
    PAGE_FIELD_NUMBER: _ClassVar[int]
    page: _struct_pb2.Struct
    def __init__(self, page: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class SweepRequest(_message.Message):
    __slots__ = ("model", "query", "text", "unknown", "ablations", "grid", "controls", "seed")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    ABLATIONS_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    CONTROLS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    model: str
    query: str
    text: str
    unknown: str
    ablations: _containers.RepeatedCompositeFieldContainer[Ablation]
    grid: _struct_pb2.Struct
    controls: int
    seed: int
    def __init__(self, model: _Optional[str] = ..., query: _Optional[str] = ..., text: _Optional[str] = ..., unknown: _Optional[str] = ..., ablations: _Optional[_Iterable[_Union[Ablation, _Mapping]]] = ..., grid: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., controls: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class SweepReply(_message.Message):
    __slots__ = ("sweep",)
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    sweep: _struct_pb2.Struct
    def __init__(self, sweep: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class ListSweepsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSweepsReply(_message.Message):
    __slots__ = ("sweeps",)
    SWEEPS_FIELD_NUMBER: _ClassVar[int]
    sweeps: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    def __init__(self, sweeps: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ...) -> None: ...

class WatchSweepRequest(_message.Message):
    __slots__ = ("id", "start")
    ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    id: str
    start: int
    def __init__(self, id: _Optional[str] = ..., start: _Optional[int] = ...) -> None: ...

class SweepEvent(_message.Message):
    __slots__ = ("point", "sweep")
    POINT_FIELD_NUMBER: _ClassVar[int]
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    point: _struct_pb2.Struct
    sweep: _struct_pb2.Struct
    def __init__(self, point: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., sweep: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class CancelSweepRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...
