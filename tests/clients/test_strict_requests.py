"""What the clients refuse before they send it, over HTTP and gRPC alike, and how it is said."""

import asyncio
import json
import math
from collections.abc import Iterator
from datetime import date
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import json_format

from clients.errors import ServerError, TorsorError, UnfitRequest
from clients.grpc.proto_json import json_of
from clients.grpc_client import GrpcClient
from clients.http_client import AsyncHttpClient, HttpClient
from clients.results import to_json
from serve.wire import torsor_pb2 as pb
from serve.wire.preview import shown
from serve.wire.torsor_pb2_grpc import TorsorStub

TANH = "tanh-rnn-shakespeare"
SCHUR = {"target": "recurrent", "op": "schur", "zero": ["CC"]}
ZERO = {"target": "recurrent", "op": "zero"}
RANK = {"target": "recurrent", "op": "rank", "keep": 3}
EDIT = "ablation.edits[0]"
Clients = tuple[HttpClient, GrpcClient]


@pytest.fixture(scope="module")
def clients(server: Any) -> Iterator[Clients]:
    with HttpClient(server.url) as http, GrpcClient(server.grpc_address) as over_grpc:
        yield http, over_grpc


def refusals(clients: Clients, ablation: Any) -> list[TorsorError]:
    found = []
    for client in clients:
        with pytest.raises(TorsorError) as caught:
            client.score("KEEPER:", ablation, model=TANH)
        found.append(caught.value)
    return found


def page(**edit: Any) -> dict[str, Any]:
    return {"edits": [edit]}


KINDS: list[tuple[Any, str]] = [
    (page(target="recurrent", op="scale", factor="0.5"), f"{EDIT}.factor: found '0.5', expected "),
    (page(**SCHUR, alpha="0.9"), f"{EDIT}.alpha: found '0.9', expected a number"),
    (page(**SCHUR, alpha=None), f"{EDIT}.alpha: found null, expected a number"),
    (page(**SCHUR, alpha=True), f"{EDIT}.alpha: found true, expected a number"),
    (page(**RANK | {"keep": "3"}), f"{EDIT}.keep: found '3', expected a whole number"),
    (page(**RANK | {"keep": 3.0}), f"{EDIT}.keep: found 3.0, expected a whole number"),
    (page(**ZERO, rows=["0", "2"]), f"{EDIT}.rows"),
    (page(**ZERO, rows=[0, 2.0]), f"{EDIT}.rows"),
    (page(**ZERO, rows=[]), f"{EDIT}.rows: found "),
    (page(**ZERO, rows=None), f"{EDIT}.rows: found null, expected "),
    (page(op="random", like=ZERO, seed="5"), f"{EDIT}.seed: found '5', expected a whole number"),
    (page(op="random", like=ZERO, seed=2**63), f"{EDIT}.seed: found 9223372036854775808"),
    (page(op="random", like=None), f"{EDIT}.like: found null, expected an object"),
    ({"name": None, "edits": []}, "ablation.name: found null, expected "),
    ({"name": 3}, "ablation.name: found 3, expected "),
    ({"edits": None}, "ablation.edits: found null, expected a list"),
    ({"edits": ZERO}, "ablation.edits: found {'target': 'recurrent', 'op': 'zero'}, expected "),
    ({"edits": ["zero"]}, f"{EDIT}: found 'zero', expected an object"),
]


@pytest.mark.parametrize(("ablation", "start"), KINDS)
def test_values_of_another_kind_are_refused_by_both_wires(
    clients: Clients, ablation: Any, start: str
) -> None:
    found = refusals(clients, ablation)
    for error in found:
        assert isinstance(error, ServerError) and error.code == "invalid_request"
        assert error.message.startswith(start), error.message
        assert error.field is not None and start.startswith(error.field.partition("[0][")[0][:14])


KEYS: list[tuple[Any, str]] = [
    (
        page(**ZERO, bogus=1),
        f"{EDIT}.bogus: found this key, expected an object with no keys but target, op, rows, "
        "columns; leave it out",
    ),
    (
        page(**SCHUR, alhpa=0.9),
        f"{EDIT}.alhpa: found this key, expected an object with no keys but target, op, alpha, "
        "zero; leave it out; did you mean alpha?",
    ),
    (
        page(op="random", like=ZERO, target="recurrent"),
        f"{EDIT}.target: found this key, expected an object with no keys but op, like, seed; "
        "leave it out",
    ),
    (
        ZERO,
        "ablation.target: found this key, expected an object with no keys but name, edits; put "
        'edits into a list: {"edits": [{"target": ..., "op": ...}]}',
    ),
    (
        page(op="random"),
        f"{EDIT}.like: found nothing, expected an edit whose mass and kind it matches; add it: "
        '"like": {"target": ..., "op": ...}',
    ),
]


@pytest.mark.parametrize(("ablation", "sentence"), KEYS)
def test_keys_are_explained_in_the_same_words_on_both_wires(
    clients: Clients, ablation: Any, sentence: str
) -> None:
    assert [str(error) for error in refusals(clients, ablation)] == [sentence] * 2


UNFIT: list[tuple[Any, str]] = [
    (page(**SCHUR, alpha=math.nan), f"{EDIT}.alpha: found NaN, expected a finite number"),
    (page(**SCHUR, alpha=np.float32("inf")), f"{EDIT}.alpha: found Infinity, expected a finite"),
    (page(**ZERO, rows=[0, -math.inf]), f"{EDIT}.rows[1]: found -Infinity, expected a finite"),
    (page(**ZERO, x=date(2020, 1, 1)), f"{EDIT}.x: found the date '2020-01-01', expected a finite"),
    (page(**ZERO, x={1: 2}), f"{EDIT}.x: found the key 1, expected texts as keys"),
    ({"name": "\ud800"}, "ablation.name: found '\\ud800', expected a text that UTF-8 can hold"),
]


@pytest.mark.parametrize(("ablation", "start"), UNFIT)
def test_what_no_wire_can_carry_is_named_by_its_place_and_no_servers_error(
    clients: Clients, ablation: Any, start: str
) -> None:
    for error in refusals(clients, ablation):
        assert isinstance(error, UnfitRequest) and str(error).startswith(start)
        assert start.startswith(f"{error.field}: ")
    for client in clients:
        with pytest.raises(UnfitRequest, match="ablations"):
            client.compare("x", [{"edits": []}, ablation])
        with pytest.raises(UnfitRequest, match="ablations"):
            client.sweeps.start(text="x", ablations=[ablation])


def test_a_list_that_holds_itself_is_refused(clients: Clients) -> None:
    endless: list[Any] = []
    endless.append(endless)
    for error in refusals(clients, page(**ZERO, rows=endless)):
        assert isinstance(error, UnfitRequest) and "expected at most 90; nest less" in str(error)


def test_numbers_and_arrays_of_numpy_are_numbers_and_lists(server: Any, clients: Clients) -> None:
    plain = {**ZERO, "rows": [0, 3], "columns": [1, 5]}
    scale = {"target": "readout", "op": "scale", "factor": 0.5}
    made = [
        ZERO | {"rows": np.array([0, 3]), "columns": (np.int64(1), np.int32(5))},
        scale | {"factor": np.float32(0.5)},
    ]
    expected = clients[0].score("KEEPER:", {"edits": [plain, scale]}, model=TANH)
    two: Any = np.int64(2)
    for client in clients:
        assert client.score("KEEPER:", {"edits": made}, model=TANH) == expected
        (found,) = client.compare("K", [{"edits": made}], model=TANH, top=two).ablations
        assert len(found.top) == 2

    async def later() -> Any:
        async with AsyncHttpClient(server.url) as client:
            return await client.score("KEEPER:", {"edits": made}, model=TANH)

    assert asyncio.run(later()) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_struct_that_holds_no_number_is_an_argument_that_is_refused(
    server: Any, value: float
) -> None:
    request = pb.SweepRequest(text="KEEPER:", model=TANH)
    grid: dict[str, Any] = {"edits": [{**SCHUR, "alpha": "$x"}], "axes": {"x": [0.5, 0.9]}}
    json_format.ParseDict(grid, request.grid)
    filled: Any = request.grid
    filled["axes"]["x"][1] = value
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub: Any = TorsorStub(channel)  # type: ignore[no-untyped-call]  # generated
        with pytest.raises(grpc.RpcError) as caught:
            stub.StartSweep(request)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(f"grid.axes.x[1]: found {shown(value)}, expected a finite")


def test_pages_over_grpc_have_their_keys_in_one_order(clients: Clients) -> None:
    names = [f"key{place}" for place in range(50)]
    message = json_format.ParseDict({"page": dict.fromkeys(reversed(names))}, pb.TrialsReply())
    assert list(json_of(message.page)) == sorted(names)
    http, over_grpc = clients
    pages = [json.loads(to_json(client.models()))[0] for client in clients]
    assert list(pages[1]["training"]) == sorted(pages[0]["training"])
    found = over_grpc.complete("K", model=TANH, logprobs=5, max_tokens=2, seed=1)
    for letter in found.choices[0].characters:
        values = list(letter.top_logprobs.values())
        assert values == sorted(values, reverse=True)


def test_values_are_shown_as_json_has_them() -> None:
    values = [None, True, math.nan, "a'b", [None, 1.5], {"a": [False]}, 10**5000]
    expected = ["null", "true", "NaN", '"a\'b"', "[null, 1.5]", "{'a': [false]}"]
    assert [shown(value) for value in values] == [*expected, "a number of very many digits"]
    assert len(shown([1] * 1000)) == 60


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_a_whole_number_in_an_ablation_is_exact_or_refused(server: Any, wire: str) -> None:
    """It goes through a Struct of doubles over gRPC, which hold whole numbers up to 2^53."""
    opened = HttpClient(server.url) if wire == "http" else GrpcClient(server.grpc_address)
    like = {"target": "recurrent", "op": "zero"}

    def edits(seed: int) -> dict[str, Any]:
        return {"edits": [{"op": "random", "like": like, "seed": seed}]}

    with opened as client:
        model = "tanh-rnn-shakespeare"
        found = client.score("ROMEO:", edits(2**53 - 1), model=model).ablation
        assert found is not None and found["edits"][0]["seed"] == 2**53 - 1
        for seed in (2**53, 2**53 + 1, 2**60):
            with pytest.raises(ServerError, match=r"seed: found \d+, expected .* 0 to 2\^53 - 1"):
                client.score("ROMEO:", edits(seed), model=model)
