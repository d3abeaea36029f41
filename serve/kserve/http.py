"""The Open Inference Protocol (KServe v2) over HTTP; its errors are `{"error": sentence}`.

Tensors stand in the JSON, or, by the protocol's extension, as bytes after it.
"""

from typing import Any

from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from serve.http_api.body import parse_body, read_body
from serve.http_api.disconnect import cancel_on_disconnect
from serve.http_api.responses import json_response, json_text
from serve.http_api.routes import ModelsOf, Route
from serve.kserve.infer import MODEL_VERSION, infer, model_metadata, served, server_metadata
from serve.kserve.tensors import datatype_of, from_bytes, from_numbers, to_bytes
from serve.models import Models
from serve.runtime.bundle import Bundle
from serve.wire.codec import JsonObject
from serve.wire.errors import invalid
from serve.wire.open_inference import (
    BINARY_EXTENSION,
    HEADER_LENGTH,
    Inference,
    InferRequest,
    InputTensor,
    ModelMetadata,
    ModelReady,
    OutputTensor,
    ServerLive,
    ServerMetadata,
    ServerReady,
)
from serve.wire.preview import shown

MAX_DIGITS = 20  # of a header's number; int() takes no more than a few thousand

Array = NDArray[Any]
Arrays = dict[str, Array]


async def server(models_of: ModelsOf, http: Request) -> Response:
    """The server's name, version and extensions."""
    del models_of, http
    return await json_response(server_metadata([BINARY_EXTENSION]))


async def live(models_of: ModelsOf, http: Request) -> Response:
    """Whether the engine's loop runs."""
    del http
    alive = models_of().engine.alive
    return await json_response(ServerLive(live=alive), 200 if alive else 503)


async def ready(models_of: ModelsOf, http: Request) -> Response:
    """Whether requests are taken."""
    del http
    is_ready = models_of().readiness().ready
    return await json_response(ServerReady(ready=is_ready), 200 if is_ready else 503)


async def metadata(models_of: ModelsOf, http: Request) -> Response:
    """The inputs and outputs of a model's graph."""
    return await json_response(model_metadata(asked_bundle(models_of(), http)))


async def model_ready(models_of: ModelsOf, http: Request) -> Response:
    """Whether requests to a model are taken."""
    bundle = asked_bundle(models_of(), http)
    is_ready, name = models_of().is_ready(bundle), bundle.name
    return await json_response(ModelReady(name=name, ready=is_ready), 200 if is_ready else 503)


async def run(models_of: ModelsOf, http: Request) -> Response:
    """One run of the graph `advance`."""
    models = models_of()
    bundle = asked_bundle(models, http)
    request, binary = await _parse(await read_body(http), http.headers.get(HEADER_LENGTH))
    _check_names(request, bundle.name)
    wanted = [output.name for output in request.outputs]
    work = infer(models, bundle, lambda: _decode(request.inputs, binary), wanted)
    return await _answer(bundle.name, request, await cancel_on_disconnect(http, work))


def asked_bundle(models: Models, http: Request) -> Bundle:
    """The bundle of the model, and perhaps the version, in the path; `RequestError`."""
    return served(models, http.path_params["model"], http.path_params.get("version", ""))


def _check_names(request: InferRequest, name: str) -> None:
    if request.model_name not in (None, "", name):
        found = f"found {shown(request.model_name, 80)} in the body, {name!r} in the path"
        raise invalid("model_name", f"{found}, expected one name; leave it out of the body")
    if request.model_version not in (None, "", MODEL_VERSION):
        found = f"found {shown(request.model_version, 80)}"
        raise invalid("model_version", f"{found}, expected {MODEL_VERSION!r}, or none")


async def _parse(body: bytes, json_length: str | None) -> tuple[InferRequest, bytes]:
    """The request, and the bytes of its binary tensors."""
    if json_length is None:
        return await parse_body(body, InferRequest), b""
    is_number = json_length.isascii() and json_length.isdigit() and len(json_length) <= MAX_DIGITS
    if not is_number or int(json_length) > len(body):
        found = f"found {json_length!r:.80}, expected a number up to the body's {len(body)} bytes"
        raise invalid(HEADER_LENGTH, found)
    size = int(json_length)
    return await parse_body(body[:size], InferRequest), body[size:]


def _decode(tensors: list[InputTensor], binary: bytes) -> Arrays:
    arrays: Arrays = {}
    for tensor in tensors:
        name, size = tensor.name, tensor.parameters.binary_data_size
        if name in arrays:
            raise invalid(name, "found twice, expected every input once")
        if (size is None) == (tensor.data is None):
            raise invalid(name, "expected either data, or binary_data_size among its parameters")
        if size is None:
            arrays[name] = from_numbers(name, tensor.datatype, tensor.shape, tensor.data)
            continue
        content, binary = binary[:size], binary[size:]
        arrays[name] = from_bytes(name, tensor.datatype, tensor.shape, content)
    if binary:
        raise invalid("body", f"found {len(binary)} bytes after the tensors, expected none")
    return arrays


async def _answer(model: str, request: InferRequest, outputs: Arrays) -> Response:
    as_bytes = {output.name: output.parameters.binary_data for output in request.outputs}
    tensors, contents = list[OutputTensor](), list[bytes]()
    for name, value in outputs.items():
        chosen = as_bytes.get(name)
        if request.parameters.binary_data_output if chosen is None else chosen:
            contents.append(to_bytes(value))
            told: JsonObject = {"parameters": {"binary_data_size": len(contents[-1])}}
        else:
            told = {"data": tuple(value.ravel().tolist())}
        kind, shape = datatype_of(value), tuple(value.shape)
        tensors.append(OutputTensor(name=name, datatype=kind, shape=shape, **told))
    head = Inference(
        model_name=model,
        model_version=MODEL_VERSION,
        id=request.id or "",
        outputs=tuple(tensors),
    )
    if not contents:
        return await json_response(head)
    text = (await json_text(head)).encode()
    headers = {HEADER_LENGTH: str(len(text))}
    return Response(b"".join([text, *contents]), 200, headers, "application/octet-stream")


MODEL = "/v2/models/{model}"
ROUTES = (
    Route("GET", "/v2", server, answers=ServerMetadata),
    Route("GET", "/v2/health/live", live, answers=ServerLive),
    Route("GET", "/v2/health/ready", ready, answers=ServerReady),
    *(
        route
        for path in (MODEL, f"{MODEL}/versions/{{version}}")
        for route in (
            Route("GET", path, metadata, answers=ModelMetadata),
            Route("GET", f"{path}/ready", model_ready, answers=ModelReady),
            Route("POST", f"{path}/infer", run, asks=InferRequest, answers=Inference),
        )
    ),
)
