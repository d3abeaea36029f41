"""Requests that are refused, over HTTP and gRPC: what tests/whole/error_sentences.json answers."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

OSM, TANH = "osm-rnn-shakespeare", "tanh-rnn-shakespeare"
LONG = 1_000_001
HALF = "\ud83d"  # of a surrogate pair
ZERO = {"target": "readout", "op": "zero"}


class Case(NamedTuple):
    """A request: of HTTP (`body` as JSON unless it is bytes) or of gRPC (`call` and `body`)."""

    name: str
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = {}


def http_cases() -> Iterator[Case]:
    """All over HTTP, at a server of the models that ship."""
    groups = (
        *(bodies(), completions(), pairs(), scores(), comparisons(), ablations(), trials()),
        *(sweeps(), tokenizers(), management(), inferences(), natives(), paths()),
    )
    for cases in groups:
        yield from cases


def post(path: str, *bodies: dict[str, Any]) -> Iterator[Case]:
    """One case a body, named by what is in it."""
    for body in bodies:
        yield Case(f"POST {path} {briefly(body)}", "POST", path, body)


def briefly(body: Any) -> str:
    """A body as a name: no longer than people read."""
    text = json.dumps(body)
    return text if len(text) <= 160 else f"{text[:120]}... ({len(text)})"


def bodies() -> Iterator[Case]:
    """What is no JSON, or too much of it."""
    path = "/v1/completions"
    for name, content in {
        "nothing": b"",
        "a brace": b"{",
        "a list": b"[]",
        "null": b"null",
        "a number": b"3",
        "bytes that are no UTF-8": b'{"prompt": "\xff"}',
        "deep lists": b'{"prompt": ' + b"[" * 100_000,
        "a deep object": b'{"ablation": ' + b'{"a":' * 3000 + b"1" + b"}" * 3001,
        "many parts": json.dumps({"prompt": [""] * 60_000}).encode(),
        "many numbers": b'{"prompt": [' + b"1," * 1_060_000 + b"1]}",
        "NaN": b'{"temperature": NaN}',
        "infinity": b'{"temperature": Infinity}',
        "a number too large for a double": b'{"temperature": 1e999}',
        "more than a body may hold": b" " * ((16 << 20) + 1),
    }.items():
        yield Case(f"POST {path} {name}", "POST", path, content)


def completions() -> Iterator[Case]:
    """Fields of a text."""
    yield from post(
        "/v1/completions",
        *({"no_such_field": 1}, {"model": "none"}, {"model": 3}, {"prompt": 3}, {"prompt": []}),
        *({"prompt": [1, "a"]}, {"prompt": [True]}, {"prompt": "a" * LONG}, {"prompt": HALF}),
        *({"prompt": "é"}, {"prompt": ["a", "é"]}, {"prompt": [99]}, {"prompt": [2**70]}),
        *({"max_tokens": -1}, {"max_tokens": LONG}, {"max_tokens": "3"}, {"max_tokens": 1.5}),
        *({"max_tokens": True}, {"max_tokens": None}, {"temperature": -1}, {"temperature": "a"}),
        *({"top_k": -2}, {"top_p": 0}, {"top_p": 1.1}, {"n": 0}, {"n": 129}, {"n": "a" * 300}),
        *({"n": 100, "prompt": ["a", "b"]}, {"n": 100, "max_tokens": 100_000}),
        *({"seed": -1}, {"seed": 2**63}, {"stop": 3}, {"stop": [""]}, {"stop": ["a"] * 65}),
        *({"stop": "a" * 1001}, {"stop": [3]}, {"logprobs": 21}, {"logprobs": -1}),
        *({"logprobs": 20, "max_tokens": 100_000}, {"echo": 1}, {"unknown": "drop"}),
        *({"logit_bias": {"a": 1}}, {"logit_bias": {"1": 101}}, {"logit_bias": {"99": 1}}),
        *({"logit_bias": {"1": "a"}}, {"logit_bias": {str(i): -100 for i in range(65)}}),
        *({"state": "abc"}, {"state": "a" * ((8 << 20) + 1)}, {"state": 3}, {"save_state": 1}),
        *({"stream": "yes"}, {"stream_options": {}}, {"stream": True, "stream_options": {"a": 1}}),
        *({"best_of": 2}, {"min_tokens": 20}, {"min_tokens": 1, "stop": "a"}, {"suffix": "a"}),
        *({"frequency_penalty": 1}, {"repetition_penalty": 2}, {"use_beam_search": True}),
        *({"stop_token_ids": [1]}, {"min_p": 0.5}, {"ablation": 3}, {"ablation": {"edit": []}}),
    )


def pairs() -> Iterator[Case]:
    """Two texts under one seed."""
    yield from post(
        "/v1/ablations/generate",
        *({"n": 2}, {"logprobs": 1}, {"save_state": True}, {"state": "abc"}, {"prompt": ["a"]}),
        *({"prompt": "é", "ablation": {"edits": [ZERO]}}, {"model": "none"}, {"seed": "a"}),
    )


def scores() -> Iterator[Case]:
    """A text and its bits per character."""
    yield from post(
        "/v1/ablations/score",
        *({}, {"text": ""}, {"text": "a" * LONG}, {"text": 3}, {"text": "é"}, {"text": HALF}),
        *({"text": "a" * 100_001, "detail": True}, {"text": "a", "detail": 1}),
        *({"text": "a", "model": "none"}, {"text": "é", "unknown": "skip"}),
    )


def comparisons() -> Iterator[Case]:
    """Distributions after a prompt."""
    yield from post(
        "/v1/ablations/compare",
        *({}, {"ablations": []}, {"ablations": [3]}, {"ablations": [{}] * 65}),
        *({"ablations": [{"name": "baseline"}]}, {"ablations": [{"name": "a"}, {"name": "a"}]}),
        *({"ablations": [{}], "top": 0}, {"ablations": [{}], "top": 257}),
        *({"ablations": [{}], "prompt": "é"}, {"ablations": [{}, {"edits": [{"op": "zero"}]}]}),
    )


def edit(**fields: Any) -> dict[str, Any]:
    """A score of one edit of the tanh-rnn."""
    return {"model": TANH, "text": "To be", "ablation": {"edits": [fields]}}


def ablations() -> Iterator[Case]:
    """Edits that a model does not offer, or that are wrong."""
    schur, like = {"target": "recurrent", "op": "schur"}, {"target": "readout", "op": "zero"}
    texts: list[Any] = [[], "a", {"edits": {}}, {"edits": [3]}, {"name": 3}, {"name": "a" * 101}]
    texts += [{"name": HALF}, {"edits": [ZERO] * 65}, {"op": "zero", "target": "readout"}]
    path = "/v1/ablations/score"
    yield from post(path, *({"model": TANH, "text": "To be", "ablation": text} for text in texts))
    yield from post(
        path,
        *(edit(), edit(target="none", op="zero"), edit(target="readout", op="none")),
        *(edit(target="readout", op="schur", zero=["CC"]), edit(**schur), edit(**schur, zero=[])),
        *(edit(**schur, zero=["CC", "CC"]), edit(**schur, zero=["XX"]), edit(**schur, zero=3)),
        *(edit(**schur, zero=["CC"], alpha=0), edit(**schur, zero=["CC"], alpha="a")),
        *(edit(**schur, zero=["RR"], alpha=1), edit(**schur, zero=["CC"], beta=1)),
        *(edit(**ZERO, rows=[5]), edit(**ZERO, rows=[3, 2]), edit(**ZERO, rows=[0, 9999])),
        *(edit(target="bias", op="zero", columns=[0, 1]), edit(**ZERO, colums=[0, 1])),
        *(edit(target="readout", op="scale"), edit(target="readout", op="scale", factor=1)),
        *(edit(target="readout", op="scale", factor="a"), edit(target="readout", op="rank")),
        *(edit(target="readout", op="rank", keep=65), edit(target="readout", op="rank", keep=-1)),
        *(
            edit(target="readout", op="rank", keep=1.5),
            edit(op="random"),
            edit(op="random", like=3),
        ),
        *(edit(op="random", like={"op": "random"}), edit(op="random", like=like, seed=-1)),
        *(edit(op="random", like={**like, "rows": [0, 1], "columns": [0, 1]}),),
        *(edit(op="symmetry"), edit(op="symmetry", kind="none"), edit(op="symmetry", target="a")),
        *(edit(target="readout", op="scale", factor=1e300), edit(target="recurrent", op="freeze")),
        *(edit(target="recurrent", op="project", subspace="readout-null"),),
    )
    mixing = {"target": "mixing", "op": "project"}
    osm = [{**mixing}, {**mixing, "subspace": "none"}, {"op": "symmetry", "kind": "none"}]
    yield from post(
        path, *({"model": OSM, "text": "To be", "ablation": {"edits": [one]}} for one in osm)
    )


def trials() -> Iterator[Case]:
    """Of a model of text, which has none."""
    yield from post(
        "/v1/ablations/trials",
        *({}, {"model": OSM}, {"resamples": 5}, {"resamples": 10_001}, {"seed": -1}),
        *({"safetensors": "a", "trials": {"inputs": [], "targets": []}}, {"trials": {}}),
    )


def sweeps() -> Iterator[Case]:
    """Jobs, and the grids that they take."""
    score: dict[str, Any] = {"text": "To be"}
    one = {"target": "recurrent", "op": "schur", "alpha": "$alpha", "zero": ["CC"]}
    axes: dict[str, Any] = {"alpha": [0.85, 0.9]}
    grids: list[Any] = [
        *({}, {"edits": []}, {"edits": [one]}, {"edits": [one], "axes": {"alpha": []}}),
        *({"edits": [one], "axes": axes | {"beta": [1]}}, {"edits": [one], "axes": {"a b": [1]}}),
        *(
            {"edits": [one], "axes": axes, "order": ["beta"]},
            {"edits": [one], "axes": {"alpha": 3}},
        ),
        *({"edits": [one], "axes": {"alpha": list(range(5000))}},),
        *(
            {"edits": [one], "axes": {"alpha": [0.9, 0.9]}},
            {"edits": [3]},
            {"edits": [one], "a": 1},
        ),
    ]
    yield from post(
        "/v1/sweeps",
        *({}, score, {"query": "trials", **score}, {"query": "none"}, {"query": "trials"}),
        *({**score, "ablations": [3]}, {"text": "a" * 100_001, "ablations": [{}]}),
        *({**score, "ablations": [{}], "controls": 33}, {**score, "ablations": [{}], "seed": -1}),
        *({**score, "ablations": [{"edits": [{"op": "none"}]}]}, {"text": "é", "ablations": [{}]}),
        *({**score, "ablations": [{}], "model": "none"},),
        *({**score, "model": TANH, "grid": grid} for grid in grids),
    )
    yield Case("GET a sweep that is none", "GET", "/v1/sweeps/none")
    yield Case("DELETE a sweep that is none", "DELETE", "/v1/sweeps/none")
    for query in ("start=-1", "start=a", "limit=0", "limit=5000", "start=4097"):
        yield Case(f"GET points {query}", "GET", f"/v1/sweeps/none/points?{query}")
    for end in ("points", "events", "events?start=a", "results.jsonl", "results.csv", "none"):
        yield Case(f"GET a sweep's {end}", "GET", f"/v1/sweeps/none/{end}")


def tokenizers() -> Iterator[Case]:
    """Token ids."""
    yield from post("/tokenize", {}, {"prompt": "é"}, {"prompt": 3}, {"prompt": "a", "model": "b"})
    yield from post("/detokenize", {}, {"tokens": [99]}, {"tokens": [-1]}, {"tokens": ["a"]})
    yield Case("GET /tokenize", "GET", "/tokenize")


def management() -> Iterator[Case]:
    """Closed without keys."""
    yield from post("/management/models", {}, {"folder": "a"})
    yield Case("reload", "POST", f"/management/models/{OSM}/reload")
    yield Case("unload", "DELETE", f"/management/models/{OSM}")


def tensor(name: str, data: Any, shape: list[int], datatype: str = "INT64") -> dict[str, Any]:
    """An input."""
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


def inferences() -> Iterator[Case]:
    """The Open Inference Protocol."""
    path = f"/v2/models/{OSM}/infer"
    forced = tensor("forced", [3], [1, 1])
    yield from post(
        path,
        *({}, {"inputs": 3}, {"inputs": []}, {"inputs": [{}]}, {"inputs": [forced, forced]}),
        *({"inputs": [tensor("none", [1], [1])]}, {"inputs": [tensor("forced", [1], [2, 1])]}),
        *(
            {"inputs": [tensor("forced", ["a"], [1, 1])]},
            {"inputs": [tensor("forced", [99], [1, 1])]},
        ),
        *({"inputs": [tensor("forced", [1.5], [1, 1])]}, {"inputs": [tensor("forced", [1], [1])]}),
        *({"inputs": [tensor("forced", [1], [1, 1], "BOOL")]}, {"inputs": [{**forced, "a": 1}]}),
        *({"inputs": [tensor("forced", [-1], [1, 1])]}, {"inputs": [forced], "outputs": [{}]}),
        *({"inputs": [forced], "outputs": [{"name": "none"}]}, {"inputs": [forced], "a": 1}),
        *({"inputs": [forced, tensor("temperature", [-1], [1], "FP32")]},),
        *({"inputs": [forced, tensor("top_p", [2], [1], "FP32")]},),
        *({"inputs": [forced, tensor("num_steps", [9], [1])]},),
        *({"inputs": [{"name": "forced", "shape": [1, 1], "datatype": "INT64"}]},),
    )
    yield from post("/v2/models/none/infer", {"inputs": [forced]})
    for length in ("a", "99999", "1"):
        headers = {"Inference-Header-Content-Length": length}
        yield Case(f"POST {path} with header {length}", "POST", path, {"inputs": []}, headers)
    for end in ("none", "none/ready", f"{OSM}/none"):
        yield Case(f"GET /v2/models/{end}", "GET", f"/v2/models/{end}")


def natives() -> Iterator[Case]:
    """BentoML's own endpoints."""
    yield from post("/generate", {"n": 2}, {"prompt": "é"}, {"no_such_field": 1}, {"logprobs": 1})
    yield from post("/score", {}, {"text": "é"}, {"text": "a", "no_such_field": 1})


def paths() -> Iterator[Case]:
    """Paths and methods that there aren't."""
    for method, path in (
        *(("GET", "/v1/none"), ("POST", "/v1/none/more"), ("GET", "/none")),
        *(("GET", "/v1/completions"), ("DELETE", "/v1/models"), ("PUT", f"/v1/models/{OSM}")),
        *(
            ("GET", "/v1/models/none"),
            ("GET", "/v1/models/none/structure"),
            ("PATCH", "/v1/sweeps"),
        ),
        *(("GET", "/v1/ablations/sweep"), ("GET", "/v1/ablations/score"), ("DELETE", "/v2")),
        *(("GET", "/v2/none"), ("POST", f"/v2/models/{OSM}"), ("GET", "/generate"), ("PUT", "/")),
        *(("GET", "/management/models"), ("POST", "/tokenizer_info"), ("POST", "/docs.json")),
    ):
        yield Case(f"{method} {path}", method, path)


KEYED = (
    Case("no key", "GET", "/v1/models"),
    Case("another scheme", "GET", "/v1/models", None, {"Authorization": "Basic abc"}),
    Case("a key that is not known", "GET", "/v2", None, {"Authorization": "Bearer abc"}),
)


def grpc_cases() -> Iterator[Case]:
    """All over gRPC: the call, its request's type and fields."""
    for call, kind, asked in (
        *(("Structure", "StructureRequest", body) for body in ({"model": "none"},)),
        *(("Generate", "GenerateRequest", body) for body in grpc_texts()),
        *(("Score", "ScoreRequest", body) for body in grpc_scores()),
        *(("Compare", "CompareRequest", body) for body in grpc_comparisons()),
        *(("Trials", "TrialsRequest", body) for body in ({}, {"resamples": 5}, {"seed": -1})),
        *(("StartSweep", "SweepRequest", body) for body in grpc_sweeps()),
        ("WatchSweep", "WatchSweepRequest", {"id": "none"}),
        ("WatchSweep", "WatchSweepRequest", {"id": "none", "start": -1}),
        ("CancelSweep", "CancelSweepRequest", {"id": "none"}),
    ):
        yield Case(f"{call} {briefly(asked)}", call, kind, asked)


def grpc_texts() -> list[Any]:
    """Of Generate."""
    return [
        *({"model": "none"}, {"prompt": "é"}, {"prompt": "a" * LONG}, {"max_tokens": -1}),
        *({"max_tokens": LONG}, {"temperature": -1}, {"temperature": "NaN"}, {"top_k": -2}),
        *({"top_p": 0}, {"n": 0}, {"n": 129}, {"seed": -1}, {"stop": [""]}, {"stop": ["a"] * 65}),
        *({"logprobs": 21}, {"logit_bias": {"a": 1}}, {"logit_bias": {"1": 101}}, {"state": "a"}),
        *({"unknown": "drop"}, {"paired": True, "n": 2}, {"paired": True, "logprobs": 1}),
        *(
            {"ablation": {"edits": [{"target": "none", "op": "zero"}]}},
            {"ablation": {"edits": [{}]}},
        ),
    ]


def grpc_scores() -> list[Any]:
    """Of Score."""
    edits: list[Any] = [
        *({"target": "recurrent", "op": "schur"}, {**ZERO, "rows": [5]}, {**ZERO, "keep": 1}),
        *({"target": "readout", "op": "rank", "keep": 65}, {"op": "random"}, {"op": "none"}),
        *({"target": "readout", "op": "scale", "factor": "Infinity"}, {"op": "symmetry"}),
    ]
    return [
        *({}, {"text": "é"}, {"text": "a", "model": "none"}),
        *({"text": "a" * 100_001, "detail": True}, {"text": "a", "ablation": {"name": "a" * 101}}),
        *({"model": TANH, "text": "To be", "ablation": {"edits": [one]}} for one in edits),
    ]


def grpc_comparisons() -> list[Any]:
    """Of Compare."""
    names: list[Any] = [{"name": "a"}, {"name": "a"}]
    return [{}, {"ablations": [{}], "top": 0}, {"ablations": [{}] * 65}, {"ablations": names}]


def grpc_sweeps() -> list[Any]:
    """Of Sweep."""
    return [
        *({}, {"query": "score"}, {"query": "none"}, {"query": "score", "text": "To be"}),
        *({"query": "score", "text": "To be", "grid": {}},),
        *({"query": "score", "text": "To be", "grid": {"edits": [], "axes": {}}},),
        *({"query": "score", "text": "a", "ablations": [{}], "controls": 33},),
    ]
