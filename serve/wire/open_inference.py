"""Requests and responses of the Open Inference Protocol, with its extension for binary tensors."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from serve.wire.codec import left_out
from serve.wire.limits import MAX_AXES, MAX_TENSORS
from serve.wire.validation import Strict

HEADER_LENGTH = "Inference-Header-Content-Length"  # bytes of JSON before binary tensors
BINARY_EXTENSION = "binary_tensor_data"

Size = Annotated[int, Field(ge=0, le=2**31)]


class InputParameters(Strict):
    """Parameters of one input tensor."""

    binary_data_size: int | None = Field(default=None, ge=0, description="bytes after the JSON")


class InputTensor(Strict):
    """A tensor that the client sends: `data` in row-major order, nested or flat, or binary."""

    name: str
    shape: list[Size] = Field(max_length=MAX_AXES)
    datatype: str = Field(description="FP32 or INT64")
    parameters: InputParameters = Field(default_factory=InputParameters)
    data: list[Any] | None = None


class OutputParameters(Strict):
    """Parameters of one output tensor."""

    binary_data: bool | None = None


class WantedOutput(Strict):
    """A tensor that the client wants."""

    name: str
    parameters: OutputParameters = Field(default_factory=OutputParameters)


class InferParameters(Strict):
    """Parameters of the whole request."""

    binary_data_output: bool = Field(default=False, description="outputs are bytes after the JSON")


class InferRequest(Strict):
    """The body of `POST /v2/models/{model}/infer`: one run of the model's graph `advance`."""

    id: str = Field(default="", max_length=200)
    model_name: str | None = Field(default=None, description="as in the path")
    model_version: str | None = Field(default=None, description="as in the path, or the one")
    parameters: InferParameters = Field(default_factory=InferParameters)
    inputs: list[InputTensor] = Field(max_length=MAX_TENSORS)
    outputs: list[WantedOutput] = Field([], max_length=MAX_TENSORS, description="left out: all")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMetadata:
    """A tensor of the Open Inference Protocol; -1: any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetadata:
    """`GET /v2`."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """`GET /v2/models/{model}`."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLive:
    """`GET /v2/health/live`."""

    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReady:
    """`GET /v2/health/ready`."""

    ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReady:
    """`GET /v2/models/{model}/ready`."""

    name: str
    ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTensor:
    """A tensor of an answer: its data in row-major order, or how many bytes of it follow."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any] | None = left_out(None)  # binary_data_size
    data: tuple[float, ...] | None = left_out(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """`POST /v2/models/{model}/infer`."""

    model_name: str
    model_version: str
    id: str = left_out("")  # as the request has it
    outputs: tuple[OutputTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceFailure:
    """An error of the Open Inference Protocol over HTTP."""

    error: str
