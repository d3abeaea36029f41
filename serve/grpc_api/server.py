"""gRPC server: the service, its health checks and its reflection, on one port.

BentoML's class services have no gRPC, so this is a server of our own in the same process.
"""

from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from serve.gateway.admission import Gateway
from serve.grpc_api.interceptor import GatewayInterceptor
from serve.grpc_api.servicer import TorsorServicer
from serve.models import Models
from serve.wire import torsor_pb2_grpc as rpc
from serve.wire.limits import MAX_MESSAGE_BYTES

SERVICE = "torsor.v1.Torsor"
PING_INTERVAL_MS = 500  # between a client's pings without data; faster ones end the connection
AddService = Callable[[grpc.aio.Server, Models], str]  # adds a service, and gives its name


async def start_grpc_server(
    models: Models,
    address: str,
    gateway: Gateway | None = None,
    credentials: grpc.ServerCredentials | None = None,
    more: Sequence[AddService] = (),
    servicer: type["TorsorServicer"] = TorsorServicer,
) -> tuple[grpc.aio.Server, Any]:
    """A started server at HOST:PORT with health and reflection; and its health servicer.

    `credentials`: of TLS; None: plain text. `more` services are added beside ours. Raises `OSError`
    if the address can't be bound.
    """
    server = grpc.aio.server(
        interceptors=[GatewayInterceptor(gateway or Gateway())],
        options=[
            ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
            ("grpc.max_receive_message_length", 2 * MAX_MESSAGE_BYTES),  # the interceptor says why
            # Meshes, Go's and Java's clients ping while they wait: for a long prompt, or at rest
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS),
        ],
    )
    rpc.add_TorsorServicer_to_server(  # type: ignore[no-untyped-call]
        servicer(models), server
    )
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    added = [add(server, models) for add in more]
    names = (SERVICE, *added, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    try:
        if credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise OSError(f"gRPC can't listen on {address}: {error}") from None
    await server.start()
    await set_serving(checks, True)
    return server, checks


async def set_serving(checks: Any, serving: bool) -> None:
    """Tell health checks whether new calls are taken."""
    status: Any = health_pb2.HealthCheckResponse  # its stubs lack the enum's values
    for name in ("", SERVICE):
        await checks.set(name, status.SERVING if serving else status.NOT_SERVING)
