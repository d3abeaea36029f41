"""Servers on loopback that answer what a test scripts: HTTP by path, gRPC the same answers."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from google.protobuf import json_format

from serve.wire import torsor_pb2 as pb
from serve.wire.torsor_pb2_grpc import TorsorServicer

USAGE = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
EDITS = {"edits": [{"target": "recurrent", "op": "schur", "alpha": 0.9, "zero": ["CC"]}]}
REMOVED = [{"target": "recurrent", "op": "schur", "mass": 0.25, "n_R": 4, "warnings": []}]
ABLATION = {"name": "no-CC", "hash": "00ff", **EDITS, "removed": REMOVED}
MODEL = {
    "id": "osm",
    "object": "model",
    "created": 0,
    "owned_by": "torsor",
    "family": "osm-rnn",
    "config": {"d": 16, "gain": 0.5},
    "num_parameters": 77_000,
    "vocabulary_size": 65,
    "device": "cpu",
    "provider": "CPUExecutionProvider",
    "kernels": "standard operators",
    "targets": ["recurrent", "readout"],
    "training": {"dataset": "shakespeare", "test_bpc": 2.125, "iterations": 1000},
}
SPECTRUM = {
    "alpha": 0.9,
    "n_R": 2,
    "n_C": 1,
    "rho": 1.5,
    "eigenvalues": [[1.0, 1.118], [1.0, -1.118], [0.5, 0.0]],
    "block_sizes": [2, 1],
    "masses": {"RR": 0.0, "C→R": 0.125, "CC": 0.0},
    "backward_error": 1e-16,
    "warnings": ["a tie"],
}
TARGET = {"weight": "w", "shape": [3, 3], "ops": ["schur"], "meaning": "m", "norm": 2.0}
STRUCTURE = {
    "model": "osm",
    "targets": [
        {"name": "recurrent", **TARGET, **SPECTRUM},
        {"name": "readout", **TARGET, "shape": [3, 65], "ops": ["zero"]},
    ],
}
SCORE = {
    "model": "osm",
    "num_characters": 2,
    "baseline": {"bpc": 2.0, "logprobs": [-1.5, -1.25]},
    "ablated": {"bpc": 2.5, "logprobs": [-2.0, -1.5]},
    "delta_bpc": 0.5,
    "mean_kl": 0.25,
    "kl": [0.125, 0.375],
    "ablation": ABLATION,
}
LOGPROBS: dict[str, list[Any]] = {
    "tokens": ["a", "b", "\u2028"],
    "token_logprobs": [None, -0.5, -1.5],
    "top_logprobs": [None, {"b": -0.5, "c": -1.0}, {"a": -0.25}],
    "text_offset": [0, 1, 2],
}
SEED = 2**63 - 1  # larger than a double holds
CHOICE = {"index": 0, "finish_reason": "stop", "seed": SEED, "stop_string": "!"}
COMPLETION = {
    "id": "cmpl-1",
    "model": "osm",
    "choices": [{**CHOICE, "text": "ab\u2028", "logprobs": LOGPROBS}],
    "usage": USAGE,
    "ablation": ABLATION,
}
PAIR_SUMMARY = {
    "model": "osm",
    "seed": SEED,
    "ablation": ABLATION,
    "first_difference": 1,
    "usage": USAGE,
}
FULL = {"message": "queue: found 256 waiting, expected fewer: try again", "type": "server_error"}
Answer = Callable[[BaseHTTPRequestHandler], None]


def sse(*pages: Any) -> bytes:
    """Pages as events; a str stands for itself."""
    texts = (p if isinstance(p, str) else json.dumps(p, ensure_ascii=False) for p in pages)
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def cut(text: str, logprobs: Any, **last: Any) -> dict[str, Any]:
    """A streamed completion's event with one choice."""
    choice = {"index": 0, "text": text, "finish_reason": None, "logprobs": logprobs, **last}
    return {"model": "osm", "choices": [choice], "usage": None, "ablation": None}


def part(first: int, last: int) -> dict[str, Any]:
    return {key: value[first:last] for key, value in LOGPROBS.items()}


COMPLETION_EVENTS = sse(
    cut("a", part(0, 1), seed=SEED),
    cut("b\u2028", part(1, 3), finish_reason="stop", stop_string="!", seed=SEED),
    {"model": "osm", "choices": [], "usage": USAGE, "ablation": ABLATION},
    "[DONE]",
)
PAIR_EVENTS = sse(
    {"branch": "baseline", "text": "ab", "finish_reason": None},
    {"branch": "ablated", "text": "ax", "finish_reason": "length"},
    {"branch": "baseline", "text": "c", "finish_reason": "length"},
    {"summary": PAIR_SUMMARY},
    "[DONE]",
)


class Stub(ThreadingHTTPServer):
    """Answers each path as `answers` says, and keeps the bodies it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Answer] = {}
        self.bodies: list[Any] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_GET(self) -> None:
        self.server.answers[self.path](self)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(json.loads(content))
        self.server.answers[self.path](self)

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


def answer(page: Any, status: int = 200, **headers: str) -> Answer:
    """One whole answer; bytes stand for themselves."""
    content = page if isinstance(page, bytes) else json.dumps(page).encode()

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)

    return send


def pour(gone: threading.Event) -> Answer:
    """An endless stream; `gone` is set when the client has left."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while not gone.wait(0.002):
                handler.wfile.write(sse(cut("a", None)))
        except OSError:
            gone.set()

    return send


class Service(TorsorServicer):
    """The same answers over gRPC."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.refusal: tuple[grpc.StatusCode, str, str, str] | None = None
        self.gone: threading.Event | None = None

    def _receive(self, request: Any, context: grpc.ServicerContext) -> None:
        self.requests.append(request)
        if self.refusal:
            code, details, torsor_code, field = self.refusal
            context.set_trailing_metadata((("torsor-code", torsor_code), ("torsor-field", field)))
            context.abort(code, details)

    def Models(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._receive(request, context)
        details = {key: value for key, value in MODEL.items() if key != "id"}
        page = {"models": [{"id": MODEL["id"], "details": details}]}
        return json_format.ParseDict(page, pb.ModelsReply())

    def Structure(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._receive(request, context)
        return json_format.ParseDict(STRUCTURE, pb.StructureReply())

    def Score(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._receive(request, context)
        return json_format.ParseDict(SCORE, pb.ScoreReply())

    def Generate(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self._receive(request, context)
        if self.gone:
            context.add_callback(self.gone.set)
            while not self.gone.wait(0.002):
                yield pb.GenerateChunk(text="a")
            return
        yield from _pair_chunks() if request.paired else _completion_chunks()


def _completion_chunks() -> Iterator[pb.GenerateChunk]:
    a = pb.Character(text="a")
    b = pb.Character(text="b", logprob=-0.5, top_logprobs={"b": -0.5, "c": -1.0})
    c = pb.Character(text="\u2028", logprob=-1.5, top_logprobs={"a": -0.25})
    yield pb.GenerateChunk(text="a", characters=[a], seed=SEED)
    yield pb.GenerateChunk(text="b\u2028", characters=[b, c], finish_reason="stop", stop="!")
    yield _grpc_summary({})


def _pair_chunks() -> Iterator[pb.GenerateChunk]:
    yield pb.GenerateChunk(branch="baseline", text="ab", seed=SEED)
    yield pb.GenerateChunk(branch="ablated", text="ax", finish_reason="length", seed=SEED)
    yield pb.GenerateChunk(branch="baseline", text="c", finish_reason="length")
    yield _grpc_summary({"first_difference": 1})


def _grpc_summary(more: dict[str, Any]) -> pb.GenerateChunk:
    page = {"summary": {"model": "osm", "usage": USAGE, "ablation": ABLATION, **more}}
    return json_format.ParseDict(page, pb.GenerateChunk())


def script(stub: Stub) -> None:
    """The whole server's answers."""

    def complete(handler: BaseHTTPRequestHandler) -> None:
        streams = stub.bodies[-1].get("stream")
        answer(COMPLETION_EVENTS if streams else COMPLETION)(handler)

    stub.answers = {
        "/v1/models": answer({"object": "list", "data": [MODEL]}),
        "/v1/models/osm/structure": answer(STRUCTURE),
        "/v1/completions": complete,
        "/v1/ablations/generate": answer(PAIR_EVENTS),
        "/v1/ablations/score": answer(SCORE),
    }
