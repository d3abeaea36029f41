"""Errors of both wires, word for word: tests/whole/error_sentences.json holds them still.

TORSOR_RECORD=1 writes the file anew. Nothing of ours is imported but the generated modules, so the
file stands whatever is moved.
"""

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import httpx
from error_cases import KEYED, Case, grpc_cases, http_cases
from google.protobuf import json_format

from serve.wire import torsor_pb2 as pb
from serve.wire import torsor_pb2_grpc as rpc

GOLDEN = Path(__file__).with_name("error_sentences.json")
HEADERS = ("allow", "retry-after", "www-authenticate", "content-type")
MADE_UP = re.compile(r"\b(serve\.(\w+\.)+)(?=[A-Z])|/[\w./-]*/(?=[\w-]+/manifest\.json)")


def ask_http(client: httpx.Client, case: Case) -> Any:
    body = case.body
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **case.headers}
    answer = client.request(case.method, case.path, content=content, headers=headers)
    kept = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
    if answer.status_code < 400:
        return {"answered": answer.status_code}
    is_json = kept["content-type"] == "application/json"
    body = answer.json() if is_json else answer.text
    return {"status": answer.status_code, "headers": kept, "body": body}


def ask_grpc(channel: grpc.Channel, case: Case) -> Any:
    stub: Any = rpc.TorsorStub(channel)  # type: ignore[no-untyped-call]  # generated
    request = json_format.ParseDict(case.body, getattr(pb, case.path)())
    try:
        answer = getattr(stub, case.method)(request, timeout=60)
        return {"answered": len(list(answer)) if hasattr(answer, "__iter__") else 1}
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        trailers = {
            str(name): value
            for name, value in error.trailing_metadata() or ()
            if str(name).startswith("torsor-")
        }
        return {"status": error.code().name, "details": error.details(), "trailers": trailers}


def require_golden(group: str, cases: Iterable[Case], ask: Callable[[Case], Any]) -> None:
    """Every answer is that of the file; or, where it is recorded, becomes it."""
    found = {case.name: json.loads(MADE_UP.sub("", json.dumps(ask(case)))) for case in cases}
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("TORSOR_RECORD"):
        golden[group] = found
        GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=True, sort_keys=True) + "\n")
    assert found.keys() == golden[group].keys()
    wrong = {name: (golden[group][name], found[name]) for name in found}
    assert {name: pair for name, pair in wrong.items() if pair[0] != pair[1]} == {}


def test_errors_over_http_are_what_they_were(server: Any) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        require_golden("http", http_cases(), lambda case: ask_http(client, case))


def test_errors_over_grpc_are_what_they_were(server: Any) -> None:
    with grpc.insecure_channel(server.grpc_address) as channel:
        require_golden("grpc", grpc_cases(), lambda case: ask_grpc(channel, case))


def test_errors_of_keys_are_what_they_were(keyed: Any) -> None:
    with httpx.Client(base_url=keyed[0].url, timeout=60) as client:
        require_golden("keys", KEYED, lambda case: ask_http(client, case))
