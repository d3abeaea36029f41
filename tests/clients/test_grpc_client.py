"""The gRPC client, against a server on loopback that answers what HTTP's canned pages say."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from clients import answers
from clients.errors import ConnectionFailed, ServerError
from clients.grpc_client import GrpcClient
from clients.results import (
    Chunk,
    ModelInfo,
    ScoreResult,
    Structure,
    join_completion,
    join_pair,
    to_json,
)
from serve.wire import torsor_pb2 as pb
from serve.wire.codec import from_json
from serve.wire.torsor_pb2_grpc import TorsorServicer, add_TorsorServicer_to_server

USAGE = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
EDITS = {"edits": [{"target": "recurrent", "op": "schur", "alpha": 0.9, "zero": ["CC"]}]}
REMOVED = [{"target": "recurrent", "op": "schur", "mass": 0.25, "n_R": 4, "warnings": []}]
ABLATION = {"name": "no-CC", "hash": "00ff", **EDITS, "removed": REMOVED}
MODEL = {
    "id": "osm",
    "object": "model",
    "created": 0,
    "owned_by": "torsor",
    "root": "osm",
    "max_model_len": 1000,
    "symbols": "characters",
    "family": "osm-rnn",
    "config": {"d": 16, "gain": 0.5},
    "num_parameters": 77_000,
    "vocabulary_size": 65,
    "task": None,
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
HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 5, "model": "osm"}
COMPLETION = {
    **HEAD,
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


def part(first: int, last: int) -> dict[str, Any]:
    return {key: value[first:last] for key, value in LOGPROBS.items()}


def event(text: str, logprobs: Any, **last: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": logprobs, "seed": SEED, **last}
    return {**HEAD, "choices": [choice], "ablation": ABLATION}


COMPLETION_EVENTS = [
    event("a", part(0, 1)),
    event("b\u2028", part(1, 3), finish_reason="stop", stop_string="!"),
    {**HEAD, "choices": [], "usage": USAGE, "ablation": ABLATION},
]
PAIR_EVENTS = [
    {"branch": "baseline", "text": "ab", "finish_reason": None},
    {"branch": "ablated", "text": "ax", "finish_reason": "length"},
    {"branch": "baseline", "text": "c", "finish_reason": "length"},
    {"summary": PAIR_SUMMARY},
]


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


@pytest.fixture
def servicer() -> Service:
    return Service()


@pytest.fixture
def client(servicer: Service) -> Iterator[GrpcClient]:
    server = grpc.server(ThreadPoolExecutor(2))
    add_TorsorServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with GrpcClient(f"127.0.0.1:{port}") as client:
        yield client
    server.stop(None).wait()


def over_http() -> list[Any]:
    read = answers.CompletionEvents().read
    streamed = [chunk for event in COMPLETION_EVENTS for chunk in read(event)]
    pair = [chunk for event in PAIR_EVENTS for chunk in answers.read_pair_event(event)]
    return [
        (from_json(ModelInfo, MODEL),),
        from_json(Structure, STRUCTURE),
        answers.read_completion(COMPLETION),
        join_completion(streamed),
        join_pair(pair),
        from_json(ScoreResult, SCORE),
    ]


def over_grpc(client: GrpcClient) -> list[Any]:
    return [
        client.models(),
        client.structure(),
        client.complete("x", logprobs=2, stop="!", ablation=EDITS),
        join_completion(client.generate("x", logprobs=2, stop=["!"], ablation=EDITS)),
        join_pair(client.generate_pair("x", EDITS, seed=3, logit_bias={"1": -100})),
        client.score("ab", EDITS, detail=True, unknown="skip"),
    ]


def test_grpc_and_http_give_equal_results(client: GrpcClient) -> None:
    pages = over_http()
    assert over_grpc(client) == pages
    assert pages[2] == pages[3]  # at once and streamed


def test_results_hold_what_the_wire_said() -> None:
    (model,), structure, completion, _, pair, score = over_http()
    assert (model.test_bpc, model.targets) == (2.125, ("recurrent", "readout"))
    assert structure.targets[0].spectrum.eigenvalues[1] == 1 - 1.118j
    assert structure.targets[1].spectrum is None
    assert completion.text == "ab\u2028" and completion.choices[0].seed == SEED
    assert [c.logprob for c in completion.choices[0].characters] == [None, -0.5, -1.5]
    assert completion.ablation["removed"][0]["mass"] == 0.25
    assert (pair.baseline.text, pair.ablated.text, pair.first_difference) == ("abc", "ax", 1)
    assert (pair.seed, score.delta_bpc, score.kl) == (SEED, 0.5, (0.125, 0.375))
    assert json.loads(to_json(structure))["targets"][0]["spectrum"]["eigenvalues"][0] == [1, 1.118]


def test_both_transports_print_alike(client: GrpcClient) -> None:
    for mine, other in zip(over_grpc(client), over_http(), strict=True):
        assert json.loads(to_json(mine)) == json.loads(to_json(other))
        assert len(to_json(mine)) == len(to_json(other))  # 1000, not 1000.0; order may differ


def test_requests_hold_only_what_was_given(client: GrpcClient, servicer: Service) -> None:
    client.complete("x", seed=SEED, stop="!", temperature=None, ablation=EDITS)
    ablation = json_format.ParseDict(EDITS, pb.Ablation())
    request = pb.GenerateRequest(prompt="x", seed=SEED, stop=["!"], ablation=ablation)
    assert servicer.requests == [request]


def test_closing_a_grpc_stream_early_cancels_the_call(
    client: GrpcClient, servicer: Service
) -> None:
    servicer.gone = gone = threading.Event()
    for chunk in client.generate("x"):
        assert chunk.text == "a"
        break
    assert gone.wait(2)


def test_grpc_errors_become_server_errors(client: GrpcClient, servicer: Service) -> None:
    status = grpc.StatusCode.INVALID_ARGUMENT
    servicer.refusal = (status, "ablation: füge", "invalid_request", "ablation.edits[0].target")
    for ask in (client.models, lambda: list(client.generate("x"))):
        with pytest.raises(ServerError, match="ablation: füge") as caught:
            ask()
        assert (caught.value.code, caught.value.field) == (
            "invalid_request",
            "ablation.edits[0].target",
        )


def test_a_missing_server_is_named_with_the_remedy() -> None:
    with GrpcClient("127.0.0.1:1") as client, pytest.raises(ConnectionFailed, match="serve"):
        client.models()


def test_an_address_of_another_kind_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        GrpcClient("http://127.0.0.1:3001")


def test_a_deadline_is_a_timeout(client: GrpcClient, servicer: Service) -> None:
    servicer.gone = threading.Event()
    with GrpcClient(client.target, deadline_s=0.05) as hasty:
        with pytest.raises(ServerError, match="deadline_s") as caught:
            list(hasty.generate("x"))
    assert caught.value.code == "timeout"


def test_joining_half_a_stream_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no summary"):
        join_completion([Chunk(text="a")])
