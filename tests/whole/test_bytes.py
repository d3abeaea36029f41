"""A model of bytes, from training to the wire: text in, text out, never half a character."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from clients.grpc_client import GrpcClient
from export.__main__ import main
from serve.manifest.read import read_manifest
from train.loop import train
from train.run import start_run
from train.settings import Settings

TEXT = "déjà vu — naïve café, 日本語のテキスト! " * 40


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Any]
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "text.txt").write_text(TEXT)
    settings = Settings(
        data=str(folder / "text.txt"),
        symbols="bytes",
        iterations=200,
        window=24,
        batch=8,
        learning_rate=0.03,
        valid_every=200,
        checkpoint_every=200,
    )
    train(start_run(folder / "run", "tanh-rnn", {"n": 32}, settings), quiet=True)
    assert main([str(folder / "run"), "--out", str(folder / "bytes"), "--quiet"]) == 0
    manifest = read_manifest(folder / "bytes")
    assert manifest.symbols == "bytes"
    assert {symbol.encode("latin-1") for symbol in manifest.vocabulary} == {
        bytes([b]) for b in TEXT.encode()
    }
    with start_server(folder, str(folder / "bytes")) as found:
        yield found


def ask(server: Any, **body: Any) -> dict[str, Any]:
    page = {"model": "bytes", "prompt": "dé", "max_tokens": 60, "seed": 3} | body
    answer = httpx.post(server.url + "/v1/completions", json=page, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_streamed_pieces_are_text_and_make_the_whole(server: Any) -> None:
    whole = ask(server, temperature=1.0)["choices"][0]["text"]
    assert any(ord(character) > 127 for character in whole)
    page = {"model": "bytes", "prompt": "dé", "max_tokens": 60, "seed": 3, "stream": True}
    pieces = []
    with httpx.stream("POST", server.url + "/v1/completions", json=page, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                pieces.append(json.loads(line[6:])["choices"][0]["text"])
    assert "".join(pieces) == whole


def test_grpc_writes_the_same(server: Any) -> None:
    whole = ask(server)["choices"][0]["text"]
    with GrpcClient(server.grpc_address) as client:
        chunks = client.generate("dé", model="bytes", max_tokens=60, seed=3)
        assert "".join(chunk.text for chunk in chunks) == whole


def test_a_text_is_scored_byte_by_byte(server: Any) -> None:
    page = {"model": "bytes", "text": "naïve 日本", "detail": True}
    score = httpx.post(server.url + "/v1/ablations/score", json=page, timeout=60).json()
    count = len("naïve 日本".encode())
    assert score["num_characters"] == count == len(score["baseline"]["logprobs"])
    total = -math.fsum(score["baseline"]["logprobs"]) / count / math.log(2)
    assert score["baseline"]["bpc"] == pytest.approx(total)


def test_log_probabilities_name_bytes_and_the_characters_they_are_of(server: Any) -> None:
    found = ask(server, prompt="aé日b", max_tokens=0, echo=True, logprobs=1, unknown="skip")
    logprobs, text = found["choices"][0]["logprobs"], found["choices"][0]["text"]
    assert len(logprobs["tokens"]) == len(text.encode())
    places = [i for i, character in enumerate(text) for _ in character.encode()]
    assert logprobs["text_offset"] == places
    assert "bytes:\\xe6" in logprobs["tokens"]


def test_a_stop_string_of_several_bytes_ends_the_text_before_it(server: Any) -> None:
    whole = ask(server, max_tokens=200, temperature=0.5)["choices"][0]["text"]
    assert "é" in whole
    choice = ask(server, max_tokens=200, temperature=0.5, stop="é")["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (whole[: whole.index("é")], "stop")
    assert choice["stop_string"] == "é"


def test_a_byte_that_the_model_never_saw_is_a_clear_error(server: Any) -> None:
    page = {"model": "bytes", "prompt": "dé ☃", "max_tokens": 3}
    answer = httpx.post(server.url + "/v1/completions", json=page, timeout=60)
    assert answer.status_code == 400
    assert "'☃' (U+2603) at index 3" in answer.json()["error"]["message"]


def test_the_model_says_that_its_symbols_are_bytes(server: Any) -> None:
    models = httpx.get(server.url + "/v1/models", timeout=60).json()["data"]
    assert [model["symbols"] for model in models] == ["bytes"]


def streamed(server: Any, **body: Any) -> list[dict[str, Any]]:
    page = {"model": "bytes", "prompt": "dé", "max_tokens": 60, "seed": 3, "stream": True} | body
    with httpx.stream("POST", server.url + "/v1/completions", json=page, timeout=60) as answer:
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
    return [json.loads(line)["choices"][0] for line in lines]


def test_a_text_that_ends_inside_a_character_is_the_same_in_pieces(server: Any) -> None:
    cut = 0
    for count in range(1, 40):
        whole = ask(server, max_tokens=count, temperature=0.5)["choices"][0]["text"]
        pieces = streamed(server, max_tokens=count, temperature=0.5)
        assert "".join(piece["text"] for piece in pieces) == whole
        cut += whole.endswith("\ufffd")
    assert cut  # some did end there


def test_streamed_log_probabilities_are_the_whole_ones(server: Any) -> None:
    """Offsets too, where a piece begins with the second half of a character."""
    body = {"max_tokens": 400, "logprobs": 2, "temperature": 0.5}
    for echo in (False, True):
        whole = ask(server, **body, echo=echo)["choices"][0]
        parts = [piece["logprobs"] for piece in streamed(server, **body, echo=echo)]
        for key, values in whole["logprobs"].items():
            assert [value for part in parts for value in part[key]] == values
        places = whole["logprobs"]["text_offset"]
        start = 0 if echo else len("dé")
        assert places == sorted(places) and places[0] == start
        assert places[-1] == start + len(whole["text"]) - 1


def test_a_stop_string_of_several_bytes_is_exact_in_pieces_and_over_grpc(server: Any) -> None:
    whole = ask(server, max_tokens=300, temperature=0.5)["choices"][0]["text"]
    places = [i for i, character in enumerate(whole[:-3]) if ord(character) > 127]
    for place in places[:: max(1, len(places) // 5)]:
        stop = whole[place : place + 2]
        if "\ufffd" in stop:
            continue
        expected = whole[: whole.index(stop)]
        pieces = streamed(server, max_tokens=300, temperature=0.5, stop=["☃", stop], unknown="skip")
        assert "".join(piece["text"] for piece in pieces) == expected
        assert pieces[-1]["stop_string"] == stop
        with GrpcClient(server.grpc_address) as client:
            chunks = client.generate(
                "dé", model="bytes", max_tokens=300, seed=3, temperature=0.5, stop=[stop]
            )
            assert "".join(chunk.text for chunk in chunks) == expected


def test_token_ids_count_the_characters_of_their_bytes(server: Any) -> None:
    tokens = httpx.post(
        server.url + "/tokenize", json={"model": "bytes", "prompt": "aé日本"}, timeout=60
    )
    body = {"max_tokens": 4, "logprobs": 0}
    by_ids = ask(server, prompt=tokens.json().get("tokens", []), **body)["choices"]
    assert by_ids == ask(server, prompt="aé日本", **body)["choices"]
