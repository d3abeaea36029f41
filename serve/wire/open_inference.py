"""The bodies of the Open Inference Protocol over HTTP, with its extension for binary tensors."""

from typing import Annotated, Any

from pydantic import Field

from serve.wire.limits import MAX_AXES, MAX_TENSORS
from serve.wire.validation import Strict

HEADER_LENGTH = "Inference-Header-Content-Length"  # bytes of JSON before binary tensors
BINARY_EXTENSION = "binary_tensor_data"

Size = Annotated[int, Field(ge=0, le=2**31)]


class InputParameters(Strict):
    """Of one input tensor."""

    binary_data_size: int | None = Field(default=None, ge=0, description="bytes after the JSON")


class InputTensor(Strict):
    """A tensor that the client sends: `data` in row-major order, nested or flat, or binary."""

    name: str
    shape: list[Size] = Field(max_length=MAX_AXES)
    datatype: str = Field(description="FP32 or INT64")
    parameters: InputParameters = Field(default_factory=InputParameters)
    data: list[Any] | None = None


class OutputParameters(Strict):
    """Of one output tensor."""

    binary_data: bool | None = None


class OutputTensor(Strict):
    """A tensor that the client wants."""

    name: str
    parameters: OutputParameters = Field(default_factory=OutputParameters)


class InferParameters(Strict):
    """Of the whole request."""

    binary_data_output: bool = Field(default=False, description="outputs are bytes after the JSON")


class InferRequest(Strict):
    """The body of `POST /v2/models/{model}/infer`: one run of the model's graph `advance`."""

    id: str = Field(default="", max_length=200)
    parameters: InferParameters = Field(default_factory=InferParameters)
    inputs: list[InputTensor] = Field(max_length=MAX_TENSORS)
    outputs: list[OutputTensor] = Field([], max_length=MAX_TENSORS, description="left out: all")
