"""Sweeps over gRPC: the same as serve/sweeps/http.py says over HTTP."""

import json
from collections.abc import AsyncIterator

from serve.gateway.request_log import current_key
from serve.grpc_api.interceptor import abort
from serve.grpc_api.servicer import Context, TorsorServicer, or_abort, read_asked, unexpected
from serve.grpc_api.structs import make_struct
from serve.sweeps.jobs import Sweeps, sweeps_of
from serve.wire import torsor_pb2 as pb
from serve.wire.errors import RequestError, invalid
from serve.wire.limits import MAX_GRID_BYTES, MAX_POINTS
from serve.wire.queries import SweepRequest
from serve.wire.query_responses import Sweep

PATIENCE_S = 60.0


class SweepServicer(TorsorServicer):
    """All calls of the contract, those of sweeps too."""

    async def StartSweep(self, request: pb.SweepRequest, context: Context) -> pb.SweepReply:
        """Take a sweep in."""

        async def answer() -> pb.SweepReply:
            if (size := request.grid.ByteSize()) > MAX_GRID_BYTES:
                expected = f"at most {MAX_GRID_BYTES} (max_grid_bytes)"
                raise invalid(
                    "grid", f"found {size} bytes, expected {expected}; send a smaller one"
                )
            asked = await read_asked(SweepRequest, request)
            if asked.grid is not None and asked.grid.order is None:
                asked.grid.order = sorted(asked.grid.axes)  # a Struct keeps none
            return await _reply(await self._sweeps.submit(asked, current_key()))

        return await or_abort(context, answer)

    async def ListSweeps(
        self, request: pb.ListSweepsRequest, context: Context
    ) -> pb.ListSweepsReply:
        """The sweeps that the key may see."""
        del request

        async def answer() -> pb.ListSweepsReply:
            known = await self._sweeps.every(current_key())
            return pb.ListSweepsReply(sweeps=[await make_struct(sweep) for sweep in known])

        return await or_abort(context, answer)

    async def CancelSweep(self, request: pb.CancelSweepRequest, context: Context) -> pb.SweepReply:
        """End a sweep, or forget one that has ended."""

        async def answer() -> pb.SweepReply:
            return await _reply(await self._sweeps.cancel(request.id, current_key()))

        return await or_abort(context, answer)

    async def WatchSweep(
        self, request: pb.WatchSweepRequest, context: Context
    ) -> AsyncIterator[pb.SweepEvent]:
        """Points as they are done, then the sweep."""
        try:
            if not 0 <= request.start <= MAX_POINTS:
                expected = f"a whole number, 0 to {MAX_POINTS}"
                raise invalid("start", f"found {request.start}, expected {expected}")
            watched = self._sweeps.watch(request.id, current_key(), request.start, PATIENCE_S)
            async for item in watched:
                if isinstance(item, Sweep):
                    yield pb.SweepEvent(sweep=await make_struct(item))
                elif item is not None:
                    yield pb.SweepEvent(point=await make_struct(json.loads(item[1])))
        except RequestError as error:
            await abort(context, error)
        except Exception:
            await abort(context, unexpected())

    @property
    def _sweeps(self) -> Sweeps:
        return sweeps_of(self._models)


async def _reply(sweep: Sweep) -> pb.SweepReply:
    return pb.SweepReply(sweep=await make_struct(sweep))
