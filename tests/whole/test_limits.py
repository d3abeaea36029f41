"""The limits of a server: each is named in the error that it ends in, over HTTP and gRPC."""

import ast
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from clients.errors import ServerError
from clients.grpc_client import GrpcClient
from clients.http_client import HttpClient
from serve.engine.engine import Engine
from serve.engine.limits import EngineLimits
from serve.engine.stream import Life, Stream
from serve.native.connections import max_connections
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.settings import SHIPPED
from serve.wire import limits
from serve.wire import torsor_pb2 as pb
from serve.wire import torsor_pb2_grpc as rpc
from serve.wire.limits import LIMITS, MAX_MESSAGE_BYTES, all_limits
from serve.wire.validation import LIMIT_OF

ROOT = Path(__file__).parent.parent.parent

TANH = "tanh-rnn-shakespeare"
OWN = {**asdict(EngineLimits()), "max_connections": max_connections()}  # of a server
LONG = "a" * (limits.MAX_PROMPT_CHARACTERS + 1)
OVER: dict[str, tuple[str, dict[str, Any]]] = {  # limit: what is beyond it
    "max_prompt_characters": ("prompt", {"prompt": LONG}),
    "max_tokens": ("max_tokens", {"max_tokens": limits.MAX_TOKENS + 1}),
    "max_choices": ("n", {"n": limits.MAX_CHOICES + 1}),
    "max_stops": ("stop", {"stop": ["a"] * (limits.MAX_STOPS + 1)}),
    "max_stop_characters": ("stop", {"stop": ["a" * (limits.MAX_STOP_CHARACTERS + 1)]}),
    "max_logprobs": ("logprobs", {"logprobs": limits.MAX_LOGPROBS + 1}),
    "max_logprobs_total": ("logprobs", {"logprobs": 20, "max_tokens": 100_000}),
}


@pytest.fixture(scope="module")
def tanh() -> Bundle:
    return Bundle(SHIPPED / TANH, Device("cpu", 1))


def ask_grpc(address: str, request: pb.GenerateRequest) -> grpc.Call:
    """The failed call; bare, because our own client would refuse before it asks."""
    with grpc.insecure_channel(address) as channel:
        stub: Any = rpc.TorsorStub(channel)  # type: ignore[no-untyped-call]  # generated
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(request, timeout=60))
    assert isinstance(caught.value, grpc.Call)
    return caught.value


@pytest.mark.parametrize("limit", OVER)
def test_what_is_beyond_a_limit_names_it(server: Any, limit: str) -> None:
    field, body = OVER[limit]
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=60)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == field
    assert f"({limit})" in error["message"] and str(LIMITS[limit]) in error["message"]
    call = ask_grpc(server.grpc_address, pb.GenerateRequest(**body))
    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT and call.details() == error["message"]


def test_a_text_to_score_has_the_limits_of_a_prompt_and_of_detail(server: Any) -> None:
    for text, limit in ((LONG, "max_prompt_characters"), (LONG[:100_001], "max_detailed")):
        body = {"text": text, "detail": True}
        answer = httpx.post(server.url + "/v1/ablations/score", json=body, timeout=60)
        assert answer.status_code == 400 and f"({limit})" in answer.json()["error"]["message"]


def test_a_body_and_a_message_that_are_too_large_name_their_limit(server: Any) -> None:
    prompt = "a" * (MAX_MESSAGE_BYTES + 1)
    answer = httpx.post(server.url + "/v1/completions", json={"prompt": prompt}, timeout=60)
    assert answer.status_code == 413
    assert "(max_body_bytes)" in answer.json()["error"]["message"]
    call = ask_grpc(server.grpc_address, pb.GenerateRequest(prompt=prompt))
    assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "(max_message_bytes)" in str(call.details())
    assert dict(call.trailing_metadata() or ())["torsor-code"] == "too_large"


def test_our_client_names_the_limit_where_grpc_itself_refuses(server: Any) -> None:
    ablation = {"name": "a" * (2 * MAX_MESSAGE_BYTES), "edits": []}
    with GrpcClient(server.grpc_address) as client, pytest.raises(ServerError) as caught:
        client.score("To be", ablation)
    assert caught.value.code == "too_large" and "(max_message_bytes)" in caught.value.message


def test_all_limits_are_shown_from_one_place(server: Any) -> None:
    page = httpx.get(server.url + "/v1/limits").json()
    assert page == {"limits": all_limits(OWN), "key": None}
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub: Any = rpc.TorsorStub(channel)  # type: ignore[no-untyped-call]  # generated
        models = stub.Models(pb.ModelsRequest()).models
    assert [dict(model.details["limits"]) for model in models] == [page["limits"]] * len(models)
    assert set(OVER) < set(page["limits"])


# --- time -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with one slot and little time."""
    arguments = [str(SHIPPED / TANH), "--max-streams", "1", "--queue-timeout-s", "0.2"]
    arguments += ["--first-timeout-s", "0.5", "--total-timeout-s", "1.5"]
    with start_server(tmp_path_factory.mktemp("hasty"), *arguments) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_a_limit_of_time_is_named(hasty: Any, wire: str) -> None:
    client = HttpClient(hasty.url) if wire == "http" else GrpcClient(hasty.grpc_address)
    with client:
        with pytest.raises(ServerError) as too_long:
            client.complete("a" * 900_000, max_tokens=1)
        running = client.generate("A", max_tokens=900_000)
        assert next(running)
        with pytest.raises(ServerError) as waited:
            client.complete("A", max_tokens=1)
        with pytest.raises(ServerError) as ran:
            list(running)
    for caught, limit in (
        (too_long, "first_timeout_s"),
        (waited, "queue_timeout_s"),
        (ran, "total_timeout_s"),
    ):
        error = caught.value
        assert error.code == "timeout" and f"({limit})" in error.message
        assert f"expected at most {all_limits_of(hasty)[limit]} s" in error.message


def all_limits_of(server: Any) -> dict[str, float]:
    found: dict[str, float] = httpx.get(server.url + "/v1/limits").json()["limits"]
    return found


def end_of(
    bundle: Bundle, limits: EngineLimits, num_forced: int, max_tokens: int, waited_s: float
) -> Any:
    """A stream that the engine has ended, after it had waited for so long to be admitted."""
    forced = np.zeros(num_forced, np.int64)
    stream = Stream(bundle, bundle.plain.session, forced, max_tokens=max_tokens, seed=1)
    stream.created -= waited_s
    engine = Engine([bundle], limits)
    engine.submit([stream])
    while stream.life is not Life.FINISHED:
        engine.tick()
    return stream


def test_the_first_character_is_awaited_from_the_slot_on(
    tanh: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.engine.engine.LOOK_S", 0.0)
    limits = EngineLimits(first_timeout_s=0.0)
    late = end_of(tanh, limits, 2_000, 5, waited_s=0)
    assert late.error.code == "timeout" and "(first_timeout_s)" in late.error.message
    patient = EngineLimits(first_timeout_s=5.0)  # what it waited for a slot does not count
    assert end_of(tanh, patient, 10, 5, waited_s=20).finish_reason == "length"


def test_scoring_awaits_no_first_character(tanh: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.engine.engine.LOOK_S", 0.0)
    assert (
        end_of(tanh, EngineLimits(first_timeout_s=0.0), 2_000, 0, waited_s=0).finish_reason
        == "length"
    )


def test_every_limit_that_an_error_can_name_is_shown() -> None:
    named = set[str]()
    for path in sorted((ROOT / "serve").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named |= set(re.findall(r"\b(max_\w+|\w+_timeout_s)\)", node.value))
                named |= set(re.findall(r"^(?:max_queued_\w+|max_json_\w+)$", node.value))
    named |= set(LIMIT_OF.values())
    of_keys = {"max_concurrent"}  # shown beside, as those of the key that asks
    assert {"max_grid_bytes", "max_points", "total_timeout_s", "max_top"} < named
    assert named - of_keys <= set(all_limits(OWN))
