"""Gateway over gRPC: every call gets its id, is admitted by its key, and leaves a line in the log.

Metadata: `authorization` and `x-request-id` as over HTTP; the initial metadata answer the id.
Health and reflection are open to everybody and leave no line.

The fields of a message are counted before it is parsed: the parser can't be interrupted, and two
bytes make an object of a hundred, so 16 MB of empty messages would hold the event loop for seconds
and a gigabyte for good. Counting is plain Python, which lets other threads run. A packed list of
numbers is one field.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from serve.cancel import WriteTimeout
from serve.gateway.admission import Gateway
from serve.gateway.request_log import note_error
from serve.offload import offload_if_large
from serve.wire.errors import RequestError, invalid
from serve.wire.limits import MAX_MESSAGE_BYTES, MAX_MESSAGE_FIELDS

SMALL_MESSAGE = 1 << 14  # bytes, up to which a message is parsed at once
OPEN = ("/grpc.health.v1.Health/", "/grpc.reflection.")
Context = grpc.aio.ServicerContext[Any, Any]
Details = grpc.HandlerCallDetails
Parse = Callable[[bytes], Any]
Handler = Any  # grpc.RpcMethodHandler, whose generics exist in its stubs only


class GatewayInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of our own service."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def intercept_service(
        self, continuation: Callable[[Details], Awaitable[Handler]], details: Details
    ) -> Handler:
        """The handler of a call, with the gateway before it."""
        handler = await continuation(details)
        if handler is None or details.method.startswith(OPEN):
            return handler

        parse: Parse = handler.request_deserializer

        async def answer(content: bytes, context: Context) -> Any:
            headers = {key: str(value) for key, value in context.invocation_metadata() or ()}
            with self._gateway.open("grpc", details.method, headers) as call:
                call.route = details.method  # there is a handler of this name
                await context.send_initial_metadata((("x-request-id", call.request_id),))
                write_timeout = WriteTimeout(self._gateway.write_timeout_s)
                try:
                    with self._gateway.admit(headers) as call.key, write_timeout:
                        request = await parse_message(content, parse, details.method)
                        reply = await _answered(handler, request, context, write_timeout)
                        call.status = "OK"
                        return reply
                    # Nobody reads. Whoever comes back to it finds why; nobody waits for that here.
                    await asyncio.wait_for(abort(context, write_timeout.error()), 1.0)
                except RequestError as error:  # the gateway's; handlers end the call themselves
                    await abort(context, error)
                finally:
                    call.status = call.status or _status(context)

        make: Any = (
            grpc.unary_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        return make(answer, None, handler.response_serializer)  # the bytes come in as they are


def require_small(content: bytes) -> None:
    """`RequestError` for a message above the limit; gRPC itself refuses what is twice as large."""
    if (size := len(content)) > MAX_MESSAGE_BYTES:
        raise RequestError(
            "too_large",
            f"message: found {size} bytes, expected at most {MAX_MESSAGE_BYTES} "
            "(max_message_bytes); send less text",
        )


async def parse_message(content: bytes, parse: Parse, method: str) -> Any:
    """The request message of a call; `RequestError` if it is too large, or no message.

    What isn't small is looked at before it is parsed, both off the event loop.
    """
    require_small(content)
    return await offload_if_large(
        len(content), _parsed, content, parse, method, small=SMALL_MESSAGE
    )


def _parsed(content: bytes, parse: Parse, method: str) -> Any:
    if len(content) > SMALL_MESSAGE:
        require_few_fields(content, _asked_kind(method))
    try:
        return parse(content)
    except DecodeError as error:
        expected = f"expected a {_asked_kind(method).full_name}"
        raise invalid("message", f"found none in protobuf ({error}), {expected}") from None


def _asked_kind(method: str) -> Descriptor:
    """The request type of a method, "/package.Service/Method"."""
    _, service, name = method.split("/")
    found: Descriptor = (
        descriptor_pool.Default().FindServiceByName(service).methods_by_name[name].input_type
    )
    return found


async def abort(context: Context, error: RequestError) -> NoReturn:
    """End a call with an error's status, sentence, code, field and time to wait."""
    note_error(error.code)
    trailing = [("torsor-code", error.code)]
    if error.field is not None:
        trailing.append(("torsor-field", ascii(error.field)[1:-1]))  # metadata is ASCII
    if error.retry_after_s is not None:
        trailing.append(("torsor-retry-after-s", f"{error.retry_after_s:.3f}"))
    await context.abort(grpc.StatusCode[error.grpc_status], error.message, tuple(trailing))


async def _answered(
    handler: Any, request: Any, context: Context, write_timeout: WriteTimeout
) -> Any:
    if not handler.response_streaming:
        return await handler.unary_unary(request, context)
    # Written here, as gRPC itself would: a chunk passes no second generator
    async with aclosing(handler.unary_stream(request, context)) as replies:
        async for reply in replies:
            write_timeout.begin()
            await context.write(reply)
            write_timeout.end()


def _status(context: Context) -> str:
    code = context.code()  # set by an abort only
    return code.name if isinstance(code, grpc.StatusCode) else "CANCELLED"


MAX_VARINT_BYTES = 10
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # types of the wire; 3 and 4 are bare brackets


def require_few_fields(content: bytes, kind: Descriptor) -> None:
    """`RequestError` for a message of this kind with more fields than one may have.

    What is no message at all is left to the parser.
    """
    found, inner = 0, [(0, len(content), kind)]
    while inner:
        place, end, described = inner.pop()
        messages = _messages_of(described)
        while place < end:
            if (found := found + 1) > MAX_MESSAGE_FIELDS:
                sentence = f"found more than {MAX_MESSAGE_FIELDS} fields, expected fewer"
                raise invalid("message", f"{sentence} (max_message_fields); send less at once")
            tag, place = _varint(content, place, end)
            size = _FIXED.get(tag & 7)
            if size is None:
                size, place = _varint(content, place, end)
            if tag & 7 == VARINT:
                continue
            if tag & 7 == BYTES and size and (message := messages.get(tag >> 3)):
                inner.append((place, min(place + size, end), message))
            place += size


_FIXED = {FIXED64: 8, FIXED32: 4, 3: 0, 4: 0, 6: 0, 7: 0}  # bytes; 6 and 7 don't exist


@functools.cache
def _messages_of(kind: Descriptor) -> Mapping[int, Descriptor]:
    """The fields that hold messages, by their numbers; entries of maps included."""
    return {f.number: f.message_type for f in kind.fields if f.message_type is not None}


def _varint(content: bytes, place: int, end: int) -> tuple[int, int]:
    """A number and where it ends; one that is cut or too long leads past the end."""
    number = shift = 0
    for at in range(place, min(place + MAX_VARINT_BYTES, end)):
        byte = content[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at + 1
        shift += 7
    return 0, end
