"""The Open Inference Protocol (KServe v2) over HTTP; its errors are `{"error": sentence}`.

Tensors stand in the JSON, or, by the protocol's extension, as bytes after it.
"""

from typing import Any

from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serve.http_api.body import parse_body, read_body
from serve.http_api.disconnect import cancel_on_disconnect
from serve.http_api.responses import json_response, json_text
from serve.http_api.routes import ModelsOf, Route
from serve.kserve.infer import MODEL_VERSION, infer, model_metadata, served, server_metadata
from serve.kserve.tensors import datatype_of, from_bytes, from_numbers, to_bytes
from serve.wire import responses as pages
from serve.wire.errors import invalid
from serve.wire.open_inference import (
    BINARY_EXTENSION,
    HEADER_LENGTH,
    InferRequest,
    InputTensor,
)

MAX_DIGITS = 20  # of a header's number; int() takes no more than a few thousand

Array = NDArray[Any]
Arrays = dict[str, Array]
Json = dict[str, Any]


async def server(models_of: ModelsOf, http: Request) -> Response:
    """What the server is."""
    del models_of, http
    return JSONResponse(server_metadata([BINARY_EXTENSION]))


async def live(models_of: ModelsOf, http: Request) -> Response:
    """Whether the engine's loop runs."""
    del http
    alive = models_of().engine.alive
    return JSONResponse({"live": alive}, 200 if alive else 503)


async def ready(models_of: ModelsOf, http: Request) -> Response:
    """Whether requests are taken."""
    del http
    answer = models_of().readiness()["ready"]
    return JSONResponse({"ready": answer}, 200 if answer else 503)


async def metadata(models_of: ModelsOf, http: Request) -> Response:
    """What a model takes and gives."""
    return JSONResponse(model_metadata(served(models_of(), http.path_params["model"], "")))


async def model_ready(models_of: ModelsOf, http: Request) -> Response:
    """Whether requests to a model are taken."""
    name = served(models_of(), http.path_params["model"], "").name
    answer = models_of().readiness()["ready"]
    return JSONResponse({"name": name, "ready": answer}, 200 if answer else 503)


async def run(models_of: ModelsOf, http: Request) -> Response:
    """One run of the graph `advance`."""
    models = models_of()
    bundle = served(models, http.path_params["model"], "")
    request, binary = await _parse(await read_body(http), http.headers.get(HEADER_LENGTH))
    wanted = [output.name for output in request.outputs]
    work = infer(models, bundle, lambda: _decode(request.inputs, binary), wanted)
    return await _answer(bundle.name, request, await cancel_on_disconnect(http, work))


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
    tensors, contents = list[Json](), list[bytes]()
    for name, value in outputs.items():
        page: Json = {"name": name, "datatype": datatype_of(value), "shape": list(value.shape)}
        chosen = as_bytes.get(name)
        if request.parameters.binary_data_output if chosen is None else chosen:
            contents.append(to_bytes(value))
            page["parameters"] = {"binary_data_size": len(contents[-1])}
        else:
            page["data"] = value.ravel().tolist()
        tensors.append(page)
    head = {"model_name": model, "model_version": MODEL_VERSION, "outputs": tensors}
    if request.id:
        head["id"] = request.id
    if not contents:
        return await json_response(head)
    text = (await json_text(head)).encode()
    headers = {HEADER_LENGTH: str(len(text))}
    return Response(b"".join([text, *contents]), 200, headers, "application/octet-stream")


MODEL = "/v2/models/{model}"
ROUTES = (
    Route("GET", "/v2", server, answers=pages.ServerMetadataPage),
    Route("GET", "/v2/health/live", live, answers=pages.LivePage),
    Route("GET", "/v2/health/ready", ready, answers=pages.ReadyPage),
    Route("GET", MODEL, metadata, answers=pages.ModelMetadataPage),
    Route("GET", f"{MODEL}/ready", model_ready, answers=pages.ModelReadyPage),
    Route("POST", f"{MODEL}/infer", run, asks=InferRequest, answers=pages.InferPage),
)
