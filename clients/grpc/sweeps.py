"""Sweeps over gRPC: the verbs of clients/http/sweeps.py."""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, Unpack

from clients.errors import ServerError
from clients.grpc.proto_json import fill, json_of
from clients.options import SweepOptions, sweep_body
from clients.sweep_results import (
    Sweep,
    SweepPoint,
    SweepPoints,
    read_event,
)
from serve.wire import torsor_pb2 as pb
from serve.wire.codec import from_json

Item = SweepPoint | Sweep


class GrpcSweeps:
    """The sweeps of a server."""

    def __init__(
        self,
        stub: Any,
        ask: Callable[[Any, Any], Any],
        read: Callable[[Any, Any, Callable[[Any], Item]], Generator[Item, None, None]],
    ) -> None:
        self._stub, self._ask, self._read = stub, ask, read

    def start(self, **options: Unpack[SweepOptions]) -> Sweep:
        """Start one; it is queued behind those that are there."""
        body = sweep_body(options)
        if (grid := body.get("grid")) is not None:
            grid.setdefault("order", list(grid.get("axes", ())))  # which this wire doesn't keep
        return _sweep(self._ask(self._stub.StartSweep, fill(pb.SweepRequest(), body)))

    def list(self) -> tuple[Sweep, ...]:
        """The sweeps that the key may see, the newest first."""
        reply: pb.ListSweepsReply = self._ask(self._stub.ListSweeps, pb.ListSweepsRequest())
        return tuple(from_json(Sweep, json_of(sweep)) for sweep in reply.sweeps)

    def get(self, id: str) -> Sweep:
        """One of them."""
        found = [sweep for sweep in self.list() if sweep.id == id]
        if not found:
            expected = "the id of one; GET /v1/sweeps lists them"
            sentence = f"id: found no sweep {id!r:.80}, expected {expected}"
            raise ServerError("not_found", sentence, "id")
        return found[0]

    def watch(self, id: str, start: int = 0) -> Generator[Item, None, None]:
        """Points from number `start` on as they are done, in order; the last item is the sweep."""
        request = pb.WatchSweepRequest(id=id, start=start)
        return self._read(self._stub.WatchSweep, request, _item)

    def points(self, id: str) -> SweepPoints:
        """The points that are done; of a sweep that runs those that stand in order.

        This wire shows points to those who watch only, so it may wait for the one that is next.
        """
        found, most = list[SweepPoint](), self.get(id).num_done
        with closing(self.watch(id)) as items:
            while len(found) < most and isinstance(item := next(items), SweepPoint):
                found.append(item)
        return SweepPoints(found)

    def cancel(self, id: str) -> Sweep:
        """End a sweep, whose points stay; one that has ended is forgotten: `deleted` says so."""
        return _sweep(self._ask(self._stub.CancelSweep, pb.CancelSweepRequest(id=id)))


def _sweep(reply: pb.SweepReply) -> Sweep:
    return from_json(Sweep, json_of(reply.sweep))


def _item(event: pb.SweepEvent) -> Item:
    which = "sweep" if event.HasField("sweep") else "point"
    return read_event({which: json_of(getattr(event, which))})[0]
