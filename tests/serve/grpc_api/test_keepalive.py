"""Pings of clients and meshes that wait for a long prompt, or watch where nothing happens."""

import time
from typing import Any

import grpc

from serve.grpc_api.server import PING_INTERVAL_MS
from serve.wire import torsor_pb2 as pb
from serve.wire import torsor_pb2_grpc as rpc

PINGS = 5


def test_pings_without_data_do_not_end_a_quiet_stream(server: Any) -> None:
    options = [
        ("grpc.keepalive_time_ms", 2 * PING_INTERVAL_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
    with grpc.insecure_channel(server.grpc_address, options=options) as channel:
        stub: Any = rpc.TorsorStub(channel)  # type: ignore[no-untyped-call]  # generated
        text = "First Citizen:\n" * 2000
        ablations = [pb.Ablation(edits=[pb.Edit(target="mixing", op="identity")])] * 200
        started = stub.StartSweep(pb.SweepRequest(query="score", text=text, ablations=ablations))
        id = started.sweep["id"]
        try:
            # From a point that comes much later: nothing is said until then
            events = stub.WatchSweep(pb.WatchSweepRequest(id=id, start=199))
            time.sleep(PINGS * 2 * PING_INTERVAL_MS / 1000)
            assert events.is_active()
        finally:
            events.cancel()
            while stub.CancelSweep(pb.CancelSweepRequest(id=id)).sweep["state"] == "running":
                time.sleep(0.1)
        assert stub.Models(pb.ModelsRequest()).models
