"""Other people's clients and tools: what they send, and how they read the answers.

Where a tool isn't installed here, its request is sent as it sends it and its reading is done again.
"""

import asyncio
import contextlib
import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import bentoml
import httpx
import openai
import pytest
from bentoml.exceptions import InvalidArgument, NotFound

from clients.grpc_client import GrpcClient
from clients.http_client import HttpClient
from serve.engine.sampling import choice_seed
from serve.runtime.vocabulary import Vocabulary
from serve.settings import SHIPPED

pytestmark = [  # of what BentoML's client itself uses
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The `__get_pydantic_core_schema__`:DeprecationWarning"),
]

OSM, TANH = "osm-rnn-shakespeare", "tanh-rnn-shakespeare"
PROMPTS = ["ROMEO:\n", "First Citizen", ""]
SAID = "To be, or not to be: that is the question."


def post(server: Any, path: str, body: Any) -> Any:
    answer = httpx.post(server.url + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def complete(server: Any, **body: Any) -> Any:
    return post(server, "/v1/completions", {"model": OSM, "max_tokens": 40, "seed": 7} | body)


def texts_of(page: Any) -> list[str]:
    return [choice["text"] for choice in page["choices"]]


def ids_of(text: str) -> list[int]:
    manifest = json.loads((SHIPPED / OSM / "manifest.json").read_text())
    vocabulary = Vocabulary(tuple(manifest["vocabulary"]))
    return [int(i) for i in vocabulary.encode(text, "prompt", "error")]


# --- several prompts, and token ids ---------------------------------------------------------------


def test_several_prompts_are_answered_as_if_each_were_asked_alone(server: Any) -> None:
    page = complete(server, prompt=PROMPTS, n=2, logprobs=1)
    assert [choice["index"] for choice in page["choices"]] == list(range(6))
    for choice in page["choices"]:
        prompt = PROMPTS[choice["index"] // 2]
        alone = complete(server, prompt=prompt, seed=choice["seed"], logprobs=1)["choices"][0]
        assert choice == alone | {"index": choice["index"]}
        assert choice["logprobs"]["text_offset"][0] == len(prompt)
    lengths = sum(map(len, PROMPTS))
    usage = {"prompt_tokens": lengths, "completion_tokens": 240, "total_tokens": lengths + 240}
    assert page["usage"].items() >= usage.items()


def test_the_seed_of_a_choice_comes_from_the_requests_and_its_index(server: Any) -> None:
    page = complete(server, prompt=["A", "B", "C"], n=2)
    seeds = [choice["seed"] for choice in page["choices"]]
    assert seeds == [choice_seed(7, i) for i in range(6)] and seeds[0] == 7
    assert len(set(seeds)) == 6
    assert complete(server, prompt=["A", "B", "C"], n=2)["choices"] == page["choices"]


def test_token_ids_are_the_indices_of_the_characters(server: Any) -> None:
    ids = [ids_of(prompt) for prompt in PROMPTS]
    options: dict[str, Any] = {"echo": True, "logprobs": 2, "max_tokens": 5}
    by_text = complete(server, prompt=PROMPTS, **options)
    assert complete(server, prompt=ids, **options)["choices"] == by_text["choices"]
    assert complete(server, prompt=ids[0], **options)["choices"] == by_text["choices"][:1]


def test_streamed_prompts_arrive_whole_under_their_index(server: Any) -> None:
    body = {"model": TANH, "prompt": PROMPTS, "n": 2, "max_tokens": 40, "seed": 7}
    found = dict.fromkeys(range(6), "")
    for event in events(server, body):
        for choice in event["choices"]:
            found[choice["index"]] += choice["text"]
    assert list(found.values()) == texts_of(complete(server, **body))


def test_prompts_and_choices_share_the_totals_of_one_request(server: Any) -> None:
    for body, field in (
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"prompt": ["a"] * 100, "max_tokens": 10_001}, "max_tokens"),
        ({"prompt": [[0] * 3] * 3, "max_tokens": 0, "echo": True, "logprobs": 21}, "logprobs"),
        ({"prompt": [[0] * 9_000] * 2, "max_tokens": 9_000, "logprobs": 12}, "logprobs"),
    ):
        answer = httpx.post(server.url + "/v1/completions", json=body, timeout=60)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_a_stop_string_that_the_model_cannot_write_is_passed_over_where_asked(server: Any) -> None:
    plain = complete(server, stop=None)
    assert texts_of(complete(server, stop=["<|endoftext|>"], unknown="skip")) == texts_of(plain)
    stop = texts_of(plain)[0][20:24]
    found = complete(server, stop=["<|endoftext|>", stop], unknown="skip")["choices"][0]
    assert found["stop_string"] == stop and found["finish_reason"] == "stop"


# --- lm-eval's local-completions ------------------------------------------------------------------


def parse_logprobs(page: Any, context_lengths: list[int]) -> list[tuple[float, bool]]:
    """As lm-eval reads loglikelihoods: what stands behind the context, without the last token."""
    found = []
    choices = sorted(page["choices"], key=itemgetter("index"))
    for choice, start in zip(choices, context_lengths, strict=True):
        logprobs = choice["logprobs"]["token_logprobs"][start:-1]
        tops = choice["logprobs"]["top_logprobs"][start:-1]
        greedy = all(one == max(top.values()) for one, top in zip(logprobs, tops, strict=True))
        found.append((sum(logprobs), greedy))
    return found


def test_lm_eval_reads_loglikelihoods(server: Any) -> None:
    greedy = texts_of(complete(server, prompt=SAID[:9], temperature=0, max_tokens=12))[0]
    pairs = [(SAID[:9], SAID[9:]), (SAID[:9], greedy), ("ROMEO:\n", "But soft")]
    payload = {
        "model": OSM,
        "prompt": [ids_of(context + continuation) for context, continuation in pairs],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    page = post(server, "/v1/completions", payload)
    found = parse_logprobs(page, [len(context) for context, _ in pairs])
    assert [is_greedy for _, is_greedy in found] == [False, True, False]
    for (context, continuation), (total, _) in zip(pairs, found, strict=True):
        body = {"model": OSM, "text": context + continuation, "detail": True}
        score = post(server, "/v1/ablations/score", body)
        assert total == sum(score["baseline"]["logprobs"][len(context) :])


@pytest.mark.parametrize("tokenized", [True, False])
def test_lm_eval_reads_generations(server: Any, tokenized: bool) -> None:
    contexts = ["ROMEO:\n", "What say you"]
    payload = {
        "prompt": [ids_of(c) for c in contexts] if tokenized else contexts,
        "model": OSM,
        "max_tokens": 80,
        "temperature": 0,
        "stop": ["\n\n"],
        "seed": 1234,
    }
    found: list[str | None] = [None] * 2
    for choice in post(server, "/v1/completions", payload)["choices"]:
        found[choice["index"]] = choice["text"]
    for context, text in zip(contexts, found, strict=True):
        alone = complete(server, prompt=context, max_tokens=80, temperature=0, stop="\n\n")
        assert texts_of(alone) == [text]


def test_lm_eval_finds_its_tokenizer_on_the_server(server: Any) -> None:
    info = httpx.get(server.url + "/tokenizer_info").json()
    assert info["eos_token"] is None and info["vocab_size"] == 65
    tokens = post(server, "/tokenize", {"prompt": "test", "add_special_tokens": False})["tokens"]
    assert tokens == ids_of("test")
    assert post(server, "/detokenize", {"tokens": tokens}) == {"prompt": "test"}
    named = post(server, "/tokenize", {"prompt": "a b", "return_token_strs": True, "model": TANH})
    assert named["token_strs"] == ["a", " ", "b"] and named["count"] == 3
    answer = httpx.post(server.url + "/detokenize", json={"tokens": [3, 65]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tokens"


# --- load tools -----------------------------------------------------------------------------------


def events(server: Any, payload: dict[str, Any]) -> Iterator[Any]:
    """As vLLM's tools read a stream: messages end at an empty line, however the bytes come."""
    url, body, buffer = server.url + "/v1/completions", payload | {"stream": True}, ""
    with httpx.stream("POST", url, json=body, timeout=60) as answer:
        assert answer.status_code == 200
        for content in answer.iter_bytes():
            *messages, buffer = (buffer + content.decode()).split("\n\n")
            chunks = [message.strip().removeprefix("data: ") for message in messages]
            yield from (json.loads(chunk) for chunk in chunks if chunk != "[DONE]")
    assert buffer == "" and chunks[-1] == "[DONE]"


VLLM = {
    "model": TANH,
    "prompt": "ROMEO:\n",
    "repetition_penalty": 1.0,
    "max_tokens": 70,
    "logprobs": None,
    "stream": True,
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
    # from its options, each at what asks for nothing
    "temperature": 0.0,
    "top_k": -1,
    "top_p": 1.0,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
SGLANG = {
    "model": TANH,
    "prompt": "ROMEO:\n",
    "temperature": 0.0,
    "best_of": 1,
    "max_tokens": 70,
    "stream": True,
    "ignore_eos": True,
}


@pytest.mark.parametrize("payload", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_load_tools_read_text_and_usage(server: Any, payload: dict[str, Any]) -> None:
    text, usage = "", None
    for page in events(server, payload):
        if choices := page.get("choices"):
            assert usage is None, "usage comes last"
            text += choices[0].get("text") or ""
        elif found := page.get("usage"):
            usage = found
    plain = complete(server, model=TANH, prompt="ROMEO:\n", max_tokens=70, temperature=0)
    assert [text] == texts_of(plain)
    asked = "stream_options" in payload
    assert usage == (plain["usage"] if asked else None)
    counts = {"prompt_tokens": 7, "completion_tokens": 70, "total_tokens": 77}
    assert plain["usage"].items() >= counts.items()


def test_a_field_that_asks_for_something_we_do_not_do_is_refused(server: Any) -> None:
    refused: dict[str, Any] = {
        "repetition_penalty": 1.1,
        "length_penalty": 0.9,
        "frequency_penalty": 0.5,
        "presence_penalty": -1,
        "min_p": 0.05,
        "best_of": 2,
        "use_beam_search": True,
        "include_stop_str_in_output": True,
        "stop_token_ids": [1],
        "min_tokens": 41,
        "suffix": "end",
    }
    for field, value in refused.items():
        body = {"model": OSM, "max_tokens": 40, field: value}
        answer = httpx.post(server.url + "/v1/completions", json=body, timeout=60)
        assert answer.status_code == 400, field
        assert answer.json()["error"]["param"] == field
    neutral = {field: None for field in refused} | {"min_tokens": 40, "stop_token_ids": []}
    assert texts_of(complete(server, **neutral)) == texts_of(complete(server))


def test_models_say_how_much_text_they_take(server: Any) -> None:
    model = httpx.get(server.url + "/v1/models").json()["data"][0]
    assert (model["id"], model["root"], model["max_model_len"]) == (OSM, OSM, 1_000_000)


# --- the openai client ----------------------------------------------------------------------------

ASK: dict[str, Any] = {"model": OSM, "prompt": PROMPTS, "max_tokens": 30, "seed": 3}


def test_the_openai_client_reads_several_prompts(server: Any) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
        whole = client.completions.create(**ASK, n=2, logprobs=2)
        assert [choice.index for choice in whole.choices] == list(range(6))
        assert whole.usage is not None and whole.usage.completion_tokens == 180
        logprobs = whole.choices[3].logprobs
        assert logprobs is not None and logprobs.top_logprobs is not None
        assert logprobs.tokens is not None and "".join(logprobs.tokens) == whole.choices[3].text
        ids: Any = [ids_of(prompt) for prompt in PROMPTS]
        by_ids = client.completions.create(**(ASK | {"prompt": ids}), n=2, logprobs=2)
        assert by_ids.choices == whole.choices


def test_the_async_openai_client_reads_streams_side_by_side(server: Any) -> None:
    async def stream(client: openai.AsyncOpenAI, seed: int) -> list[str]:
        options = {"stream_options": {"include_usage": True}, "seed": seed}
        found, usage = [""] * 3, None
        async for page in await client.completions.create(**ASK | options, stream=True):
            usage = page.usage or usage
            for choice in page.choices:
                found[choice.index] += choice.text
        assert usage is not None and usage.completion_tokens == 90
        return found

    async def all_streams() -> list[list[str]]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client:
            return await asyncio.gather(*(stream(client, seed) for seed in range(4)))

    found = asyncio.run(all_streams())
    assert found == [texts_of(complete(server, **ASK | {"seed": seed})) for seed in range(4)]


def test_the_openai_client_raises_what_the_status_says(server: Any) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.completions.create(**ASK | {"prompt": ["a", "\N{EM DASH}"]})
        assert (bad.value.param, bad.value.code) == ("prompt[1]", "invalid_request")
        with pytest.raises(openai.NotFoundError) as missing:
            client.models.retrieve("gpt-2")
        assert missing.value.code == "not_found"
        with pytest.raises(openai.APIStatusError) as large:
            client.completions.create(**ASK | {"prompt": "a" * (17 << 20)})
        assert large.value.status_code == 413


@pytest.mark.slow
def test_the_openai_client_raises_what_a_busy_and_a_stopping_server_says(
    start_server: Any, tmp_path: Path
) -> None:
    arguments = (str(SHIPPED / TANH), "--max-streams", "1", "--max-waiting", "1", "--grace-s", "3")
    with start_server(tmp_path, *arguments) as server:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            running = client.completions.create(
                model=TANH, prompt="A", max_tokens=900_000, stream=True
            )
            next(iter(running))
            with pytest.raises(openai.BadRequestError, match="max_waiting"):
                client.completions.create(model=TANH, prompt=["A", "B"])
            waiting = threading.Thread(target=ask_and_forget, args=(client,))
            waiting.start()
            with pytest.raises(openai.RateLimitError) as full:
                ask_until_refused(client)
            assert full.value.response.headers["retry-after"] == "1"
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.InternalServerError) as stopping:
                ask_until_refused(client, openai.RateLimitError)
            assert stopping.value.status_code == 503
            with pytest.raises(openai.APIError) as ended:
                list(running)
            assert ended.value.code == "unavailable"
            waiting.join(30)


def ask_until_refused(client: openai.OpenAI, *others: type[Exception]) -> None:
    for _ in range(100):
        with contextlib.suppress(openai.APITimeoutError, *others):
            client.completions.create(model=TANH, prompt="C", timeout=0.5)


def ask_and_forget(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIError):
        client.completions.create(model=TANH, prompt="B", max_tokens=5, timeout=60)


# --- BentoML's own client -------------------------------------------------------------------------


@contextlib.contextmanager
def bento_client(server: Any) -> Iterator[Any]:
    with bentoml.SyncHTTPClient(server.url) as client:
        try:
            yield client
        finally:
            client._temp_dir.cleanup()  # which the client itself leaves to the garbage collector


def test_the_bentoml_client_streams_and_scores(server: Any) -> None:
    ablation = {"edits": [{"target": "mixing", "op": "identity"}]}
    with bento_client(server) as client:
        pieces = list(client.generate(prompt="ROMEO:\n", max_tokens=2000, seed=7))
        expected = texts_of(complete(server, prompt="ROMEO:\n", max_tokens=2000))
        assert len(pieces) > 1 and ["".join(pieces)] == expected
        found = client.score(text=SAID, ablation=ablation, detail=True)
    body = {"text": SAID, "ablation": ablation, "detail": True}
    assert found == post(server, "/v1/ablations/score", body)


def test_the_async_bentoml_client_streams(server: Any) -> None:
    async def stream() -> str:
        async with bentoml.AsyncHTTPClient(server.url) as client:
            pieces = client.generate(prompt="ROMEO:\n", max_tokens=40, seed=7)
            client._temp_dir.cleanup()
            return "".join([piece async for piece in pieces])

    assert [asyncio.run(stream())] == texts_of(complete(server, prompt="ROMEO:\n"))


CALLS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("generate", {"model": "gpt-2"}, NotFound, "gpt-2"),
    ("generate", {"prompt": "\N{EM DASH}"}, InvalidArgument, "U.2014"),
    ("generate", {"temperature": -1}, InvalidArgument, "temperature"),
    ("score", {"text": ""}, InvalidArgument, "at least 1"),
    ("score", {"text": "A", "ablation": {"edits": 3}}, InvalidArgument, "ablation.edits"),
]


@pytest.mark.parametrize(("name", "fields", "kind", "words"), CALLS)
def test_the_bentoml_client_raises_what_the_status_says(
    server: Any, name: str, fields: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with bento_client(server) as client:
        call: Callable[..., Any] = getattr(client, name)
        with pytest.raises(kind, match=words):
            found = call(**fields)
            list(found)


def test_a_bentoml_client_that_goes_away_frees_its_slot(server: Any) -> None:
    with bento_client(server) as client:
        pieces = client.generate(prompt="A", model=TANH, max_tokens=900_000)
        assert "".join(itertools.islice(pieces, 3))
        pieces.close()
    deadline = time.monotonic() + 5
    while running(server):
        assert time.monotonic() < deadline


def running(server: Any) -> float:
    lines = httpx.get(server.url + "/metrics", timeout=30).text.splitlines()
    (value,) = (line.split()[-1] for line in lines if line.startswith("torsor_streams_running"))
    return float(value)


@pytest.mark.slow
def test_a_text_that_ends_in_an_error_breaks_the_connection_of_a_bentoml_client(
    start_server: Any, tmp_path: Path
) -> None:
    with start_server(tmp_path, str(SHIPPED / TANH), "--grace-s", "0.2") as server:
        with bento_client(server) as client:
            pieces = client.generate(prompt="A", max_tokens=900_000)
            assert next(iter(pieces))
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                list(pieces)
        server.process.wait(60)
        log = server.log.read_text()
        assert "Traceback" not in log and "status=200" in log and "error=unavailable" in log


# --- characters that a model lacks ----------------------------------------------------------------


def test_an_answer_says_which_characters_the_model_lacks_and_what_became_of_them(
    server: Any,
) -> None:
    text = "é→é ROMEO:"
    told = {"policy": "skip", "counts": {"é": 2, "→": 1}}
    page = complete(server, prompt=text, unknown="skip")
    assert page["usage"]["unknown"] == told
    assert "unknown" not in complete(server, prompt="ROMEO:", unknown="skip")["usage"]
    scored = post(server, "/v1/ablations/score", {"text": text, "unknown": "replace"})
    assert scored["unknown"] == told | {"policy": "replace"}
    edits = [{"edits": [{"target": "mixing", "op": "identity"}]}]
    asked: Any = {"prompt": text, "unknown": "skip", "ablations": edits}
    assert post(server, "/v1/ablations/compare", asked)["unknown"] == told
    assert post(server, "/tokenize", {"prompt": text, "unknown": "skip"})["unknown"] == told
    with HttpClient(server.url) as http, GrpcClient(server.grpc_address) as grpc:
        for client in (http, grpc):
            usage = client.complete(text, max_tokens=3, seed=1, unknown="skip").usage
            assert usage.unknown is not None and usage.unknown.counts == told["counts"]
            assert client.score(text, unknown="skip").unknown == usage.unknown
            compared = client.compare(text, edits, unknown="skip")
            assert compared.unknown == usage.unknown


def test_a_server_has_a_policy_of_its_own_at_every_path(start_server: Any, tmp_path: Path) -> None:
    with start_server(tmp_path, str(SHIPPED / TANH), "--unknown", "replace") as server:
        assert post(server, "/tokenize", {"prompt": "é"})["unknown"]["policy"] == "replace"
        body = {"prompt": "é", "max_tokens": 1}
        assert post(server, "/v1/completions", body)["usage"]["unknown"]["counts"] == {"é": 1}
        assert post(server, "/v1/ablations/score", {"text": "aé"})["num_characters"] == 2
        refused = httpx.post(server.url + "/v1/completions", json=body | {"unknown": "error"})
        assert refused.status_code == 400
        with GrpcClient(server.grpc_address) as client:
            assert client.score("aé").num_characters == 2


# --- fields of OpenAI's API and its dialects ---------------------------------------------------

NO_OPS: dict[str, list[Any]] = {  # by field: values that ask for nothing, and one that asks
    "user": ["me"],
    "best_of": [1, 2],
    "suffix": ["x"],
    "frequency_penalty": [0, 0.0, 0.5],
    "presence_penalty": [0, 0.5],
    "repetition_penalty": [1, 1.0, 1.2],
    "length_penalty": [1.0, 2],
    "min_p": [0, 0.1],
    "use_beam_search": [False, True],
    "include_stop_str_in_output": [False, True],
    "stop_token_ids": [[], [1]],
    "ignore_eos": [True, False],
    "metadata": [{"a": "b"}],
    "store": [False, True],
    "service_tier": ["auto", "flex"],
    "response_format": [{"type": "text"}, {"type": "json_object"}],
    "typical_p": [1, 0.5],
    "priority": [0, 3],
    "bad_words": [[], ["x"]],
    "prompt_logprobs": [2],
    "allowed_token_ids": [[1]],
    "guided_regex": ["a*"],
    "structured_outputs": [{"regex": "a"}],
}
ALWAYS = ("user", "ignore_eos", "metadata")


@pytest.mark.parametrize("field", NO_OPS)
def test_a_field_that_asks_for_nothing_is_taken_and_another_refused_by_name(
    server: Any, field: str
) -> None:
    plain = texts_of(complete(server))
    *nothing, something = [None, *NO_OPS[field]]
    for value in [*nothing, *([something] if field in ALWAYS else [])]:
        assert texts_of(complete(server, **{field: value})) == plain, value
    if field not in ALWAYS:
        body = {"prompt": "A", field: something}
        refused = httpx.post(server.url + "/v1/completions", json=body)
        assert refused.status_code == 400 and refused.json()["error"]["param"].startswith(field)


def test_max_completion_tokens_is_another_name_of_max_tokens(server: Any) -> None:
    body = {"prompt": "A", "seed": 1}
    url = server.url + "/v1/completions"
    texts = [
        texts_of(httpx.post(url, json=body | names).json())
        for names in (
            {"max_tokens": 7},
            {"max_completion_tokens": 7},
            {"max_tokens": 7, "max_completion_tokens": 7},
            {"max_tokens": 7, "max_completion_tokens": None},
        )
    ]
    assert texts == texts[:1] * 4 and len(texts[0][0]) == 7
    refused = httpx.post(url, json=body | {"max_tokens": 7, "max_completion_tokens": 8})
    assert refused.json()["error"]["param"] == "max_completion_tokens"


def test_usage_is_in_every_event_where_it_is_asked_for(server: Any) -> None:
    """As guidellm, vLLM's load tool, always asks."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "ROMEO:", "max_tokens": 2000, "stream": True, "stream_options": options}
    lines = httpx.post(server.url + "/v1/completions", json=body, timeout=60).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
    written = [event["usage"]["completion_tokens"] for event in events]
    assert len(written) > 2 and written == sorted(written) and written[-1] == 2000
    assert {event["usage"]["prompt_tokens"] for event in events} == {6}


def test_health_is_where_vllm_has_it(server: Any) -> None:
    assert httpx.get(server.url + "/health").json() == httpx.get(server.url + "/readyz").json()
