"""The way in over gRPC: every call gets its id, passes the gate, and leaves a line in the log.

Metadata: `authorization` and `x-request-id` as over HTTP; the initial metadata answer the id.
Health and reflection are open to everybody and leave no line.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message

from serve.call import note_error
from serve.entrance import Entrance
from serve.limits import MAX_MESSAGE_BYTES
from serve.wire.errors import RequestError

OPEN = ("/grpc.health.v1.Health/", "/grpc.reflection.")
Context = grpc.aio.ServicerContext[Any, Any]
Details = grpc.HandlerCallDetails
Handler = Any  # grpc.RpcMethodHandler, whose generics exist in its stubs only


class GrpcEntrance(grpc.aio.ServerInterceptor):
    """Wraps the handlers of our own service."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance

    async def intercept_service(
        self, continuation: Callable[[Details], Awaitable[Handler]], details: Details
    ) -> Handler:
        """The handler of a call, with the entrance before it."""
        handler = await continuation(details)
        if handler is None or details.method.startswith(OPEN):
            return handler

        async def answer(request: Message, context: Context) -> Any:
            headers = {key: str(value) for key, value in context.invocation_metadata() or ()}
            with self._entrance.open("grpc", details.method, headers) as call:
                call.route = details.method  # there is a handler of this name
                await context.send_initial_metadata((("x-request-id", call.request_id),))
                try:
                    with self._entrance.admit(call, headers, True):
                        require_small(request)
                        reply = await _answered(handler, request, context)
                        call.status = "OK"
                        return reply
                except RequestError as error:  # the gate's; handlers end the call themselves
                    await abort(context, error)
                finally:
                    call.status = call.status or _status(context)

        make: Any = (
            grpc.unary_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        return make(answer, handler.request_deserializer, handler.response_serializer)


def require_small(request: Message) -> None:
    """`RequestError` for a message above the limit; gRPC itself refuses what is twice as large."""
    if (size := request.ByteSize()) > MAX_MESSAGE_BYTES:
        raise RequestError(
            "too_large",
            f"message: found {size} bytes, expected at most {MAX_MESSAGE_BYTES} "
            "(max_message_bytes); send less text",
        )


async def abort(context: Context, error: RequestError) -> NoReturn:
    """End a call with an error's status, sentence, code, field and time to wait."""
    note_error(error.code)
    trailing = [("torsor-code", error.code)]
    if error.field is not None:
        trailing.append(("torsor-field", ascii(error.field)[1:-1]))  # metadata is ASCII
    if error.retry_after_s is not None:
        trailing.append(("torsor-retry-after-s", f"{error.retry_after_s:.3f}"))
    await context.abort(grpc.StatusCode[error.grpc_status], error.message, tuple(trailing))


async def _answered(handler: Any, request: Message, context: Context) -> Any:
    if not handler.response_streaming:
        return await handler.unary_unary(request, context)
    # Written here, as gRPC itself would: a chunk passes no second generator
    async with aclosing(handler.unary_stream(request, context)) as replies:
        async for reply in replies:
            await context.write(reply)


def _status(context: Context) -> str:
    code = context.code()  # set by an abort only
    return code.name if isinstance(code, grpc.StatusCode) else "CANCELLED"
