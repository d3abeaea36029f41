"""The Open Inference Protocol (KServe v2) over HTTP; its errors are `{"error": sentence}`.

Tensors stand in the JSON, or, by the protocol's extension, as bytes after it.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from numpy.typing import NDArray

from serve.gateway.request_log import note_error
from serve.http_api.app import METHODS
from serve.http_api.body import parse_body, read_body
from serve.http_api.disconnect import cancel_on_disconnect
from serve.http_api.openapi import documented
from serve.http_api.responses import (
    allow_header,
    allowed_methods,
    error_response,
    json_response,
    json_text,
    missing,
)
from serve.kserve.infer import MODEL_VERSION, infer, model_metadata, served, server_metadata
from serve.kserve.tensors import datatype_of, from_bytes, from_numbers, to_bytes
from serve.models import Models
from serve.wire import responses as pages
from serve.wire.errors import RequestError, invalid
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
Handler = Callable[..., Awaitable[Response]]


def add_open_inference_paths(app: FastAPI, models_of: Callable[[], Models]) -> None:
    """Add the paths to the app."""

    @app.get("/v2", **_documented(pages.ServerMetadataPage))
    @_in_words
    async def server() -> Response:
        return JSONResponse(server_metadata([BINARY_EXTENSION]))

    @app.get("/v2/health/live", **_documented(pages.LivePage))
    @_in_words
    async def live() -> Response:
        alive = models_of().engine.alive
        return JSONResponse({"live": alive}, 200 if alive else 503)

    @app.get("/v2/health/ready", **_documented(pages.ReadyPage))
    @_in_words
    async def ready() -> Response:
        answer = models_of().readiness()["ready"]
        return JSONResponse({"ready": answer}, 200 if answer else 503)

    @app.get("/v2/models/{model}", **_documented(pages.ModelMetadataPage))
    @_in_words
    async def metadata(model: str) -> Response:
        return JSONResponse(model_metadata(served(models_of(), model, "")))

    @app.get("/v2/models/{model}/ready", **_documented(pages.ModelReadyPage))
    @_in_words
    async def model_ready(model: str) -> Response:
        name, answer = served(models_of(), model, "").name, models_of().readiness()["ready"]
        return JSONResponse({"name": name, "ready": answer}, 200 if answer else 503)

    @app.post("/v2/models/{model}/infer", **_documented(pages.InferPage, InferRequest))
    @_in_words
    async def run(model: str, http: Request) -> Response:
        bundle = served(models_of(), model, "")
        request, binary = await _parse(await read_body(http), http.headers.get(HEADER_LENGTH))
        wanted = [output.name for output in request.outputs]
        work = infer(models_of(), bundle, lambda: _decode(request.inputs, binary), wanted)
        return await _answer(bundle.name, request, await cancel_on_disconnect(http, work))

    @app.api_route("/v2/{path:path}", methods=METHODS, include_in_schema=False)
    @_in_words
    async def nothing(path: str, http: Request) -> Response:
        allowed = allowed_methods(http)
        error = missing(http.method, http.url.path, allowed)
        note_error(error.code)
        return JSONResponse({"error": error.message}, error.http_status, allow_header(allowed))


def _documented(answer: Any, asked: Any = None) -> Json:
    return documented(answer, asked, error=pages.InferenceErrorPage)


def _in_words(handler: Handler) -> Handler:
    """The handler, with errors as this protocol has them."""

    @functools.wraps(handler)
    async def guarded(*arguments: Any, **fields: Any) -> Response:
        try:
            return await handler(*arguments, **fields)
        except RequestError as error:
            answer = error_response(error)
            return JSONResponse({"error": error.message}, answer.status_code, _retry(answer))

    return guarded


def _retry(answer: Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name == "retry-after"}


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
