"""Options of the verbs: what does not exist or is wrong is refused at the call, by every client."""

import asyncio
from typing import Any

import pytest

from clients.errors import ServerError, UnfitRequest
from clients.grpc_client import GrpcClient
from clients.http_client import AsyncHttpClient, HttpClient

EDITS = {"edits": [{"target": "recurrent", "op": "zero"}]}


@pytest.mark.parametrize("verb", ["generate", "complete", "generate_pair", "score"])
@pytest.mark.parametrize("kind", [HttpClient, AsyncHttpClient, GrpcClient])
def test_an_unknown_option_is_a_type_error_at_the_call(kind: Any, verb: str) -> None:
    arguments = ("x", EDITS) if verb == "generate_pair" else ("x",)
    result = None
    with pytest.raises(TypeError, match="tempreture"):
        result = getattr(kind(), verb)(*arguments, tempreture=1)
        if asyncio.iscoroutine(result):
            asyncio.run(result)


def test_a_wrong_value_is_refused_before_sending_in_the_servers_words() -> None:
    for client in (HttpClient(), GrpcClient()):
        with client, pytest.raises(ServerError, match="seed: found -1") as caught:
            client.generate("x", seed=-1)
        assert (caught.value.code, caught.value.field) == ("invalid_request", "seed")
        with client, pytest.raises(ServerError, match="prompt") as caught:
            client.generate("\ud800")
        odd = {"edits": [{"target": "r", "op": "schur", "alpha": {1}}]}
        with client, pytest.raises(UnfitRequest) as unfit:
            client.generate("x", ablation=odd)
        assert unfit.value.field == "ablation.edits[0].alpha"
