"""The query `compare`: next-character distributions of several ablations after one prompt."""

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pandas
import pytest
from safetensors.numpy import load_file

from clients.frames import rows_of, to_pandas
from clients.grpc_client import GrpcClient
from clients.http_client import AsyncHttpClient, HttpClient
from clients.query_results import CompareResult
from serve.manifest.page import WEIGHTS_FILE
from serve.models import Models
from serve.queries.compare import compare
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.settings import SHIPPED
from serve.wire.codec import from_json, to_json
from serve.wire.errors import RequestError
from serve.wire.limits import MAX_COMPARED
from serve.wire.queries import CompareRequest

OSM, TANH = "osm-rnn-shakespeare", "tanh-rnn-shakespeare"
CC: dict[str, Any] = {"target": "recurrent", "op": "schur", "alpha": 0.9, "zero": ["CC"]}
ABLATIONS: list[dict[str, Any]] = [
    {"name": "no-CC", "edits": [CC]},
    {"name": "nothing", "edits": []},
    {"name": "no recurrence", "edits": [{"target": "recurrent", "op": "zero"}]},
]
PROMPT = "ROMEO:\nWhat l"


@pytest.fixture(scope="module")
def host() -> Iterator[Models]:
    bundles = [Bundle(SHIPPED / name, Device("cpu", 1)) for name in (TANH, OSM)]
    found = Models({bundle.name: bundle for bundle in bundles})
    found.start()
    yield found
    found.close()


def ask(host: Models, **fields: Any) -> dict[str, Any]:
    asked = {"prompt": PROMPT, "ablations": ABLATIONS} | fields
    found = asyncio.run(compare(host, CompareRequest.model_validate(asked)))
    answer: dict[str, Any] = to_json(found)
    return answer


def probabilities(logits: Any) -> Any:
    shifted = np.exp(logits.astype(np.float64) - logits.max())
    return shifted / shifted.sum()


def by_hand(host: Models, removed: Any) -> Any:
    """p of the tanh RNN, in NumPy: h' = tanh(W_xh x + W_hh h + b_h), y = W_hy h + b_y."""
    bundle = host.bundle(TANH)
    read = load_file(bundle.folder / WEIGHTS_FILE)
    weights = {name: value.astype(np.float64) for name, value in read.items()}
    recurrent = weights["recurrent"] * (0.0 if removed else 1.0)
    h = weights["initial.h"]
    for index in host.vocabularies[TANH].encode(PROMPT, "prompt", "error"):
        h = np.tanh(recurrent @ h + weights["input"][index] + weights["recurrent.bias"])
    return probabilities(weights["readout"] @ h + weights["readout.bias"])


@pytest.mark.parametrize("removed", [False, True])
def test_distributions_are_those_of_the_equations(host: Models, removed: bool) -> None:
    p, names = by_hand(host, removed), host.vocabularies[TANH].names
    page = ask(host, top=65)
    found = page["ablations"][2] if removed else page["baseline"]
    assert page["num_characters"] == len(PROMPT)
    assert sum(entry["probability"] for entry in found["top"]) == pytest.approx(1)
    for entry in found["top"]:
        expected = p[names.index(entry["character"])]
        assert entry["probability"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert math.exp(entry["logprob"]) == pytest.approx(entry["probability"])
    assert found["entropy_bits"] == pytest.approx(float(-(p * np.log2(p)).sum()), rel=1e-5)


def test_differences_follow_from_the_distributions(host: Models) -> None:
    page, names = ask(host, top=65), host.vocabularies[TANH].names

    def whole(entries: Any) -> Any:
        found = {entry["character"]: entry["probability"] for entry in entries}
        return np.array([found[name] for name in names])

    p = whole(page["baseline"]["top"])
    for place in (0, 2):
        found = page["ablations"][place]
        q = whole(found["top"])
        assert found["kl_bits"] == pytest.approx(float((p * np.log2(p / q)).sum()), rel=1e-9)
        assert found["total_variation"] == pytest.approx(float(abs(p - q).sum() / 2))
        own = [entry["character"] for entry in page["baseline"]["top"]]
        assert found["probabilities"] == pytest.approx([q[names.index(name)] for name in own])
        assert found["kl_bits"] > 0 and found["ablation"]["removed"][0]["mass"] > 0


def test_an_empty_ablation_is_the_baseline_to_the_bit(host: Models) -> None:
    for top in (1, 7):
        page = ask(host, top=top)
        empty = page["ablations"][1]
        assert {key: empty[key] for key in ("entropy_bits", "top")} == page["baseline"]
        assert empty["kl_bits"] == empty["total_variation"] == 0.0
        assert empty["probabilities"] == [e["probability"] for e in page["baseline"]["top"]]
        assert len(empty["top"]) == top


def test_ablations_keep_their_order_and_what_is_asked_beside_them_changes_none(
    host: Models,
) -> None:
    page, again = ask(host), ask(host, ablations=ABLATIONS[::-1])
    names = [found["ablation"]["name"] for found in page["ablations"]]
    assert names == [ablation["name"] for ablation in ABLATIONS]
    assert again["ablations"][::-1] == page["ablations"]
    alone = ask(host, ablations=ABLATIONS[:1])
    assert alone["baseline"] == page["baseline"] and alone["ablations"] == page["ablations"][:1]


def test_an_empty_prompt_compares_the_beginning(host: Models) -> None:
    page = ask(host, prompt="")
    assert page["num_characters"] == 0
    assert page["ablations"][2]["entropy_bits"] == pytest.approx(page["baseline"]["entropy_bits"])


def test_an_ablation_that_does_not_fit_is_named_by_its_place(host: Models) -> None:
    wrong = {"edits": [{"target": "mixing", "op": "identity"}]}
    with pytest.raises(RequestError) as caught:
        ask(host, ablations=[*ABLATIONS, wrong])
    assert caught.value.field == "ablations[3].edits[0].target"
    assert caught.value.message.startswith("ablations[3].edits[0].target: found 'mixing'")


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"ablations": []}, "ablations", "found 0 entries, expected at least 1"),
        ({"ablations": [{}] * (MAX_COMPARED + 1)}, "ablations", "65 entries, expected at most 64"),
        ({"ablations": [{"name": "baseline"}]}, "ablations[0].name", "the plain model's, expected"),
        (
            {"ablations": [{}, {"name": "a"}, {}, {"name": "a"}]},
            "ablations[3].name",
            "found 'a', which is that of ablations[1], expected one of its own",
        ),
        ({"top": 0}, "top", "found 0, expected greater than or equal to 1"),
        ({"top": 257}, "top", "256 (max_top)"),
        ({"prompt": "é"}, "prompt", "found 'é'"),
        ({"model": "nobody"}, "model", "found 'nobody'"),
        ({"temperature": 1}, "temperature", "unknown field"),
    ],
)
def test_a_request_that_is_not_as_expected_is_refused_by_field(
    server: Any, changes: dict[str, Any], field: str, words: str
) -> None:
    body = {"prompt": PROMPT, "ablations": ABLATIONS, "model": TANH} | changes
    answer = httpx.post(server.url + "/v1/ablations/compare", json=body, timeout=60)
    error = answer.json()["error"]
    assert 400 <= answer.status_code < 500 and error["param"] == field
    assert words in error["message"]


@pytest.mark.parametrize("model", [OSM, TANH])
def test_every_wire_and_client_answers_alike(server: Any, host: Models, model: str) -> None:
    edits = [{"target": "mixing", "op": "identity"}] if model == OSM else [CC]
    ablations: list[Any] = [{"name": "a", "edits": edits}, {"edits": []}]
    asked: dict[str, Any] = {"model": model, "top": 5}

    async def later() -> Any:
        async with AsyncHttpClient(server.url) as client:
            return await client.compare(PROMPT, ablations, **asked)

    with HttpClient(server.url) as http, GrpcClient(server.grpc_address) as over_grpc:
        found = http.compare(PROMPT, ablations, **asked)
        assert over_grpc.compare(PROMPT, ablations, **asked) == found == asyncio.run(later())
    assert found == from_json(CompareResult, ask(host, ablations=ablations, **asked))
    assert found.ablations[0].kl_bits > 0 and len(found.baseline.top) == 5


def run(server: Any, *words: str) -> str:
    command = [
        sys.executable,
        "-m",
        "clients.command_line.main",
        *words,
        "--url",
        server.url,
        "--model",
        TANH,
    ]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_command_line_compares(server: Any, host: Models) -> None:
    words = ["compare", PROMPT, "--edit", json.dumps(CC), "--top", "3"]
    words += ["--ablation", json.dumps(ABLATIONS[2])]
    page = json.loads(run(server, *words, "--json"))
    expected = from_json(CompareResult, ask(host, ablations=[ABLATIONS[2], {"edits": [CC]}], top=3))
    found = [one["kl_bits"] for one in page["ablations"]]
    assert found == [one.kl_bits for one in expected.ablations]
    table = run(server, *words)
    assert "no recurrence" in table and "recurrent schur (alpha 0.9, zero CC): mass 0." in table


def test_a_text_is_scored_both_ways_by_the_command_line(server: Any, tmp_path: Any) -> None:
    path = tmp_path / "text"
    path.write_text(PROMPT)
    edit = ("--edit", json.dumps(CC))
    ablated = json.loads(run(server, "ablate", "--text", str(path), *edit, "--json"))
    assert ablated == json.loads(run(server, "score", str(path), *edit, "--json"))
    table = run(server, "ablate", "--text", str(path), *edit)
    assert "ΔBPC" in table and "recurrent schur (alpha 0.9, zero CC): mass 0." in table


def test_results_are_frames_where_there_is_pandas(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HttpClient(server.url) as client:
        compared = client.compare(PROMPT, ABLATIONS, model=TANH, top=2)
        scored = client.score(PROMPT, ABLATIONS[0], model=TANH, detail=True)
        structure = client.structure(TANH)
    rows = compared.rows()
    assert [row["ablation"] for row in rows] == ["baseline", "no-CC", "nothing", "no recurrence"]
    assert rows[0]["entropy_bits"] == rows[2]["entropy_bits"] and rows[0]["kl_bits"] == 0
    assert [row["kl"] for row in rows_of(scored)] == list(scored.kl or ())
    assert [row["name"] for row in rows_of(structure)] == ["recurrent", "input", "readout"]
    assert rows_of(compared) == rows and len(rows_of(scored)) == len(PROMPT)
    monkeypatch.setitem(sys.modules, "pandas", None)
    for ask_frame in (compared.to_pandas, lambda: to_pandas(scored)):
        with pytest.raises(ImportError, match="found no pandas, expected it"):
            ask_frame()


def test_a_frame_has_the_rows(server: Any) -> None:
    with HttpClient(server.url) as client:
        compared = client.compare(PROMPT, ABLATIONS, model=TANH, top=2)
    frame = compared.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and frame.to_dict("records") == compared.rows()
