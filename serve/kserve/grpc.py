"""The Open Inference Protocol (KServe v2) over gRPC, beside our own service."""

from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from serve.grpc_api.servicer import Context, or_abort
from serve.kserve.infer import MODEL_VERSION, infer, model_metadata, served, server_metadata
from serve.kserve.tensors import datatype_of, from_bytes, from_numbers, to_bytes
from serve.models import Models
from serve.wire import open_inference_pb2 as pb
from serve.wire import open_inference_pb2_grpc as rpc
from serve.wire.codec import to_json
from serve.wire.errors import invalid
from serve.wire.limits import MAX_TENSORS

SERVICE = "inference.GRPCInferenceService"
SLICE = 1 << 15  # elements that are converted at once
CONTENTS = {"FP32": "fp32_contents", "INT64": "int64_contents"}
Array = NDArray[Any]
Arrays = dict[str, Array]


class InferenceServicer(rpc.GRPCInferenceServiceServicer):
    """Answers the calls; errors carry code and field in the trailing metadata."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def ServerLive(self, request: Any, context: Context) -> pb.ServerLiveResponse:
        """Whether the engine's loop runs."""
        del request, context
        return pb.ServerLiveResponse(live=self._models.engine.alive)

    async def ServerReady(self, request: Any, context: Context) -> pb.ServerReadyResponse:
        """Whether requests are taken."""
        del request, context
        return pb.ServerReadyResponse(ready=self._models.readiness().ready)

    async def ModelReady(
        self, request: pb.ModelReadyRequest, context: Context
    ) -> pb.ModelReadyResponse:
        """Whether requests to this model are taken."""

        async def answer() -> pb.ModelReadyResponse:
            bundle = served(self._models, request.name, request.version)
            return pb.ModelReadyResponse(ready=self._models.is_ready(bundle))

        return await or_abort(context, answer)

    async def ServerMetadata(self, request: Any, context: Context) -> pb.ServerMetadataResponse:
        """The server's name, version and extensions."""
        del request, context
        return pb.ServerMetadataResponse(**to_json(server_metadata([])))

    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        """The inputs and outputs of a model's graph."""

        async def answer() -> pb.ModelMetadataResponse:
            bundle = served(self._models, request.name, request.version)
            return pb.ModelMetadataResponse(**to_json(model_metadata(bundle)))

        return await or_abort(context, answer)

    async def ModelInfer(
        self, request: pb.ModelInferRequest, context: Context
    ) -> pb.ModelInferResponse:
        """One run; the answer's tensors are raw where the request's were."""

        async def answer() -> pb.ModelInferResponse:
            bundle = served(self._models, request.model_name, request.model_version)
            _check_counts(request)
            _check_parameters(request)
            wanted = [output.name for output in request.outputs]
            outputs = await infer(self._models, bundle, lambda: _decode(request), wanted)
            raw = bool(request.raw_input_contents) or not request.inputs
            return pb.ModelInferResponse(
                model_name=bundle.name,
                model_version=MODEL_VERSION,
                id=request.id,
                outputs=[_tensor(name, value, raw) for name, value in outputs.items()],
                raw_output_contents=map(to_bytes, outputs.values()) if raw else [],
            )

        return await or_abort(context, answer)


def add_open_inference(server: grpc.aio.Server, models: Models) -> str:
    """Add the service to a server; its name."""
    rpc.add_GRPCInferenceServiceServicer_to_server(  # type: ignore[no-untyped-call]
        InferenceServicer(models), server
    )
    return SERVICE


def _check_counts(request: pb.ModelInferRequest) -> None:
    for name in ("inputs", "outputs"):
        if (found := len(getattr(request, name))) > MAX_TENSORS:
            raise invalid(name, f"found {found} entries, expected at most {MAX_TENSORS}")


def _check_parameters(request: pb.ModelInferRequest) -> None:
    """What is not honoured is refused; what says that tensors are bytes is so on this wire."""
    holders: Sequence[tuple[Any, str]] = (
        (request, "binary_data_output"),
        *((tensor, "binary_data_size") for tensor in request.inputs),
        *((tensor, "binary_data") for tensor in request.outputs),
    )
    for holder, known in holders:
        for name in holder.parameters:
            if name != known:
                raise invalid(f"parameters.{name}", "unknown parameter; remove it")
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=False):
        size = tensor.parameters["binary_data_size"].int64_param if tensor.parameters else len(raw)
        if size != len(raw):
            found = f"found {size} for {len(raw)} bytes of {tensor.name}, expected their number"
            raise invalid("parameters.binary_data_size", f"{found}; leave it out")


def _decode(request: pb.ModelInferRequest) -> Arrays:
    raw, inputs = request.raw_input_contents, request.inputs
    if raw and len(raw) != len(inputs):
        found = f"found {len(raw)} entries, expected one an input, {len(inputs)}"
        raise invalid("raw_input_contents", found)
    arrays: Arrays = {}
    for i, tensor in enumerate(inputs):
        name = tensor.name
        if name in arrays:
            raise invalid(name, "found twice, expected every input once")
        if raw and tensor.HasField("contents"):
            raise invalid(name, "found contents beside raw_input_contents, expected one of them")
        if raw:
            arrays[name] = from_bytes(name, tensor.datatype, tensor.shape, raw[i])
            continue
        kinds = [field.name for field, _ in tensor.contents.ListFields()]
        if kinds not in ([], [CONTENTS.get(tensor.datatype)]):
            expected = CONTENTS.get(tensor.datatype, "datatype FP32 or INT64")
            raise invalid(name, f"found {', '.join(kinds)}, expected {expected}")
        numbers: Any = _numbers(getattr(tensor.contents, kinds[0])) if kinds else []
        arrays[name] = from_numbers(name, tensor.datatype, tensor.shape, numbers)
    return arrays


def _numbers(contents: Sequence[Any]) -> Array:
    """Numbers as an array, in slices: each holds the interpreter's lock."""
    starts = range(0, len(contents), SLICE)
    return np.concatenate([np.asarray(contents[i : i + SLICE]) for i in starts])


def _tensor(name: str, value: Array, raw: bool) -> pb.ModelInferResponse.InferOutputTensor:
    datatype = datatype_of(value)
    tensor = pb.ModelInferResponse.InferOutputTensor(
        name=name, datatype=datatype, shape=value.shape
    )
    if not raw:
        numbers = {CONTENTS[datatype]: value.ravel().tolist()}
        tensor.contents.CopyFrom(pb.InferTensorContents(**numbers))
    return tensor
