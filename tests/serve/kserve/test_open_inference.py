"""The Open Inference Protocol on a real server: single runs, whose state the client keeps."""

import asyncio
import json
import subprocess
import sys
import sysconfig
import threading
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from numpy.typing import NDArray
from trial_scores import run_trials

from serve.engine.sampling import uniforms
from serve.offload import BoundedExecutor
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.runtime.vocabulary import Vocabulary
from serve.settings import SHIPPED
from serve.wire import open_inference_pb2 as pb
from serve.wire import open_inference_pb2_grpc as rpc
from serve.wire.errors import RequestError

OSM, TANH = "osm-rnn-shakespeare", "tanh-rnn-shakespeare"
MODELS = (OSM, TANH)
ROOT = Path(__file__).parent.parent.parent.parent
DATATYPES = {"float32": "FP32", "int64": "INT64"}
Arrays = dict[str, NDArray[Any]]
Infer = Callable[[str, Arrays], Arrays]


@pytest.fixture
def stub(server: Any) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield rpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]


def request_of(model: str, inputs: Arrays, raw: bool = True) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, id="one")
    for name, value in inputs.items():
        datatype = DATATYPES[str(value.dtype)]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=value.shape)
        if raw:
            request.raw_input_contents.append(value.tobytes())
        else:
            numbers = tensor.contents.fp32_contents
            if datatype == "INT64":
                tensor.contents.int64_contents.extend(value.ravel().tolist())
            else:
                numbers.extend(value.ravel().tolist())
    return request


def arrays_of(reply: pb.ModelInferResponse) -> Arrays:
    dtypes, found = {"FP32": "<f4", "INT64": "<i8"}, Arrays()
    for i, tensor in enumerate(reply.outputs):
        if reply.raw_output_contents:
            flat = np.frombuffer(reply.raw_output_contents[i], dtypes[tensor.datatype])
        else:
            whole = tensor.datatype == "INT64"
            numbers = tensor.contents.int64_contents if whole else tensor.contents.fp32_contents
            flat = np.array(numbers, dtypes[tensor.datatype])
        found[tensor.name] = flat.reshape(tensor.shape)
    return found


def over_grpc(server: Any, raw: bool) -> Infer:
    def infer(model: str, inputs: Arrays) -> Arrays:
        with grpc.insecure_channel(server.grpc_address) as channel:
            stub: Any = rpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
            reply = stub.ModelInfer(request_of(model, inputs, raw), timeout=60)
            assert (reply.model_name, reply.model_version, reply.id) == (model, "1", "one")
            assert bool(reply.raw_output_contents) is raw
            return arrays_of(reply)

    return infer


def over_http(server: Any) -> Infer:
    def infer(model: str, inputs: Arrays) -> Arrays:
        answer = post(server, model, {"id": "one", "inputs": json_tensors(inputs)})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert (page["model_name"], page["model_version"], page["id"]) == (model, "1", "one")
        dtypes = {"FP32": np.float32, "INT64": np.int64}
        return {
            t["name"]: np.array(t["data"], dtypes[t["datatype"]]).reshape(t["shape"])
            for t in page["outputs"]
        }

    return infer


def json_tensors(inputs: Arrays) -> list[dict[str, Any]]:
    return [
        {"name": n, "shape": v.shape, "datatype": DATATYPES[str(v.dtype)], "data": v.tolist()}
        for n, v in inputs.items()
    ]


def post(server: Any, model: str, body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v2/models/{model}/infer", json=body, timeout=60)


# --- the same text as completions -----------------------------------------------------------------


def write(infer: Infer, model: str, prompt: str, seeds: list[int], length: int) -> list[str]:
    """Texts after a prompt, side by side, one run after the other with the state carried along."""
    bundle = json.loads((SHIPPED / model / "manifest.json").read_text())
    vocabulary, K = Vocabulary(tuple(bundle["vocabulary"])), bundle["graph"]["max_steps"]
    prefix, B = vocabulary.encode(prompt, "prompt", "error"), len(seeds)
    state, tokens = Arrays(), []
    for start in range(0, len(prefix) + length, K):
        forced = np.full((K, B), -1, np.int64)
        known = prefix[start : start + K]
        forced[: len(known)] = known[:, None]
        outputs = infer(
            model,
            state
            | {
                "forced": forced,
                "uniform": np.stack([uniforms(seed, start, K) for seed in seeds], axis=1),
                "position": np.full(B, start),
                "temperature": np.full(B, 0.9, np.float32),
                "top_k": np.full(B, 20),
            },
        )
        state = {
            f"state.{name[5:]}": value for name, value in outputs.items() if name[:5] == "next."
        }
        tokens.append(outputs["tokens"])
    rows = np.concatenate(tokens)[len(prefix) :][:length].T
    return [vocabulary.decode(row.tolist()) for row in rows]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("wire", ["grpc raw", "grpc typed", "http"])
def test_runs_with_carried_state_write_the_text_of_completions(
    server: Any, model: str, wire: str
) -> None:
    infer = over_http(server) if wire == "http" else over_grpc(server, wire == "grpc raw")
    seeds, prompt = [7, 8, 2**62], "ROMEO:\n"
    expected = []
    for seed in seeds:
        body = {"model": model, "prompt": prompt, "seed": seed, "max_tokens": 50}
        body |= {"temperature": 0.9, "top_k": 20}
        page = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()
        expected.append(page["choices"][0]["text"])
    assert write(infer, model, prompt, seeds, 50) == expected


def test_what_is_left_out_has_the_value_that_the_page_says(server: Any, device: Device) -> None:
    infer, forced = over_grpc(server, raw=True), np.array([[3], [4]])
    bundle = Bundle(SHIPPED / TANH, device)
    every = {
        "state.h": bundle.initial["h"][None],
        "position": np.zeros(1, np.int64),
        "num_steps": np.array([2]),
        "uniform": np.zeros((2, 1), np.float32),
        "temperature": np.ones(1, np.float32),
        "top_k": np.zeros(1, np.int64),
        "top_p": np.ones(1, np.float32),
        "bias": np.zeros((1, 65), np.float32),
    }
    short, whole = infer(TANH, {"forced": forced}), infer(TANH, every | {"forced": forced})
    in_process = bundle.plain.session.run(every | {"forced": forced})
    assert list(short) == ["next.h", "tokens", "logprob", "logits"]
    for name, value in short.items():
        assert np.array_equal(value, whole[name]) and np.array_equal(value, in_process[name])
    sampled = infer(TANH, {"uniform": every["uniform"]})
    assert np.array_equal(
        sampled["tokens"], infer(TANH, every | {"forced": forced * 0 - 1})["tokens"]
    )


def test_a_model_of_a_task_takes_its_own_inputs(
    exported_task: Callable[[str, str], Path], start_server: Any, device: Device, tmp_path: Path
) -> None:
    folders = [exported_task(*pair) / "bundle" for pair in (("osm-rnn", "copy"), ("lru", "sine"))]
    with start_server(tmp_path, *map(str, folders)) as server:
        for folder in folders:
            bundle = Bundle(folder, device)
            inputs, K = bundle.trials.inputs[:, :3], bundle.manifest.graph.max_steps
            expected = run_trials(bundle.plain.session.run, bundle.manifest, bundle.initial, inputs)
            state, outputs = Arrays(), []
            for start in range(0, len(inputs), K):
                given = {"inputs": inputs[start : start + K], "position": np.full(3, start)}
                found = over_http(server)(bundle.name, state | given)
                state = {f"state.{n[5:]}": v for n, v in found.items() if n[:5] == "next."}
                outputs.append(found["outputs"])
            assert np.array_equal(np.concatenate(outputs), expected)


# --- metadata and health --------------------------------------------------------------------------


def test_metadata_and_health_are_the_same_on_both_wires(server: Any, stub: Any) -> None:
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    assert stub.ModelReady(pb.ModelReadyRequest(name=OSM)).ready
    assert httpx.get(server.url + "/v2/health/live").json() == {"live": True}
    assert httpx.get(server.url + "/v2/health/ready").json() == {"ready": True}
    page = httpx.get(f"{server.url}/v2/models/{OSM}/ready").json()
    assert page == {"name": OSM, "ready": True}
    assert stub.ServerMetadata(pb.ServerMetadataRequest()).name == "torsor"
    assert httpx.get(server.url + "/v2").json()["name"] == "torsor"
    found = stub.ModelMetadata(pb.ModelMetadataRequest(name=OSM, version="1"))
    page = httpx.get(f"{server.url}/v2/models/{OSM}").json()
    for key in ("inputs", "outputs"):
        tensors = [(t.name, t.datatype, list(t.shape)) for t in getattr(found, key)]
        assert tensors == [(t["name"], t["datatype"], t["shape"]) for t in page[key]]
    assert page["inputs"][0] == {"name": "state.H", "datatype": "FP32", "shape": [-1, 22, 22]}
    assert page["platform"] == found.platform == "onnx_onnxv1"


def test_reflection_names_the_service(server: Any) -> None:
    with grpc.insecure_channel(server.grpc_address) as channel:
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        (listed,) = reflection.ServerReflectionInfo(iter([ask]), timeout=10)
    names = {service.name for service in listed.list_services_response.service}
    assert "inference.GRPCInferenceService" in names


# --- bad requests ---------------------------------------------------------------------------------

ONE = np.array([[3]])
U = np.zeros((1, 1), np.float32)
BAD: list[tuple[str, Arrays, str]] = [
    ("no steps", {"temperature": np.ones(1, np.float32)}, "forced: missing"),
    ("unknown input", {"forced": ONE, "speed": ONE}, "speed: unknown input"),
    ("wrong type", {"forced": U}, "forced: found float32, expected int64"),
    ("wrong axes", {"forced": np.array([3])}, r"forced: found shape \(1,\), expected \(K, B\)"),
    ("other rows", {"forced": ONE, "top_k": np.zeros(2, np.int64)}, "top_k: found shape"),
    ("other steps", {"forced": ONE, "uniform": np.zeros((2, 1), np.float32)}, "uniform: found"),
    ("wrong width", {"forced": ONE, "bias": np.zeros((1, 64), np.float32)}, "bias: found shape"),
    ("too many steps", {"forced": np.zeros((17, 1), np.int64)}, "forced: found K = 17"),
    ("no steps at all", {"forced": np.zeros((0, 1), np.int64)}, "forced: found K = 0"),
    ("too many rows", {"forced": np.zeros((1, 257), np.int64)}, "forced: found B = 257"),
    ("no character", {"forced": ONE * 0 + 65}, "forced: found 65, expected -1 to 64"),
    ("below -1", {"forced": ONE * 0 - 2}, "forced: found -2"),
    ("nothing drawn", {"forced": ONE * 0 - 1}, "uniform: missing"),
    ("a uniform of 1", {"uniform": U + 1}, "uniform: found 1.0"),
    ("a uniform too fine", {"uniform": U + np.float32(2**-24)}, "multiples of 2.-23"),
    ("NaN", {"forced": ONE, "temperature": np.full(1, np.nan, np.float32)}, "temperature: found"),
    ("cold", {"forced": ONE, "temperature": np.full(1, -1, np.float32)}, "temperature: found -1"),
    ("top_p of 0", {"forced": ONE, "top_p": np.zeros(1, np.float32)}, "top_p: found 0.0"),
    ("negative place", {"forced": ONE, "position": np.array([-1])}, "position: found -1"),
    ("too long a step", {"forced": ONE, "num_steps": np.array([2])}, "num_steps: found 2"),
    ("state NaN", {"forced": ONE, "state.H": np.full((1, 22, 22), np.inf, np.float32)}, "state.H"),
    ("forbidden", {"forced": ONE, "bias": np.full((1, 65), -np.inf, np.float32)}, "bias: forbids"),
    (
        "across a correction",
        {"forced": np.zeros((2, 1), np.int64), "position": np.array([15])},
        "num_steps: found 2 in row 0 at position 15, expected 0 to 1; no run may cross",
    ),
]


@pytest.mark.parametrize(("inputs", "words"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_a_bad_input_is_named(server: Any, stub: Any, inputs: Arrays, words: str) -> None:
    with pytest.raises(grpc.RpcError, match=words) as caught:
        stub.ModelInfer(request_of(OSM, inputs), timeout=60)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    content = json.dumps({"inputs": json_tensors(inputs)}).encode()  # with NaN and Infinity
    answer = httpx.post(f"{server.url}/v2/models/{OSM}/infer", content=content, timeout=60)
    assert answer.status_code == 400 and answer.json() == {"error": error.details()}


def broken(change: Callable[[Any], Any]) -> pb.ModelInferRequest:
    request = request_of(OSM, {"forced": ONE})
    change(request)
    return request


BROKEN: list[tuple[Callable[[Any], Any], str]] = [
    (lambda r: r.raw_input_contents.append(b""), "raw_input_contents: found 2 entries"),
    (lambda r: r.inputs[0].contents.int64_contents.append(3), "found contents beside"),
    (lambda r: r.raw_input_contents.__setitem__(0, b"1234"), "forced: found 0.5 elements"),
    (lambda r: r.inputs[0].shape.append(-1), "forced: found 1 elements, expected shape"),
    (lambda r: setattr(r.inputs[0], "datatype", "INT32"), "forced: found datatype 'INT32'"),
    (lambda r: r.inputs.append(r.inputs[0]), "raw_input_contents: found 1 entries"),
    (lambda r: r.outputs.add(name="speech"), "outputs: found 'speech'"),
    (lambda r: r.parameters["priority"].__setattr__("int64_param", 1), "parameters.priority"),
    (lambda r: setattr(r, "model_version", "2"), "model_version: found '2'"),
    (lambda r: setattr(r, "model_name", "gpt-2"), "model: found 'gpt-2'"),
    (lambda r: setattr(r, "model_name", ""), "model_name: missing"),
]


@pytest.mark.parametrize(("change", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_a_malformed_request_is_refused(stub: Any, change: Any, words: str) -> None:
    with pytest.raises(grpc.RpcError, match=words) as caught:
        stub.ModelInfer(broken(change), timeout=60)
    status: Any = caught.value
    assert status.code().name in ("INVALID_ARGUMENT", "NOT_FOUND")


FORCED = {"name": "forced", "shape": [1, 1], "datatype": "INT64", "data": [3]}
MALFORMED: list[tuple[Any, str]] = [
    ({"inputs": [FORCED, FORCED]}, "forced: found twice"),
    ({"inputs": [FORCED | {"data": [3.5]}]}, "forced: found other data, expected whole numbers"),
    ({"inputs": [FORCED | {"data": [[3], [4, 5]]}]}, "forced: found other data"),
    ({"inputs": [FORCED | {"data": ["a"]}]}, "forced: found other data"),
    ({"inputs": [FORCED | {"data": [True]}]}, "forced: found other data"),
    ({"inputs": [FORCED | {"data": [2**70]}]}, "forced: found other data"),
    ({"inputs": [FORCED | {"data": [2**64 - 1]}]}, "forced: found other data"),
    ({"inputs": [FORCED | {"data": [3, 3]}]}, "forced: found 2 elements"),
    ({"inputs": [FORCED | {"datatype": "STRING"}]}, "forced: found datatype 'STRING'"),
    ({"inputs": [FORCED | {"data": None}]}, "forced: expected either data, or binary"),
    ({"inputs": [FORCED], "outputs": [{"name": "x"}]}, "outputs: found 'x'"),
    ({"inputs": [FORCED], "parameters": {"priority": 1}}, "parameters.priority: unknown field"),
    ({"inputs": [FORCED | {"size": 3}]}, "inputs.0.size: unknown field"),
    (
        {"inputs": [FORCED], "id": "\ud800"},
        "id: found half a surrogate pair, '\\ud800', at index 0; expected Unicode text",
    ),
    ({}, "inputs: missing"),
    ([], "body: found"),
]


@pytest.mark.parametrize(("body", "words"), MALFORMED, ids=[words for _, words in MALFORMED])
def test_malformed_json_is_refused(server: Any, body: Any, words: str) -> None:
    url, content = f"{server.url}/v2/models/{OSM}/infer", json.dumps(body).encode()
    answer = httpx.post(url, content=content, timeout=60)
    assert answer.status_code == 400 and answer.json()["error"].startswith(words), answer.text


def test_a_path_or_model_that_is_not_there_is_told_as_this_protocol_does(server: Any) -> None:
    for path in ("/v2/models/gpt-2", "/v2/models/gpt-2/ready", "/v2/repository/index"):
        answer = httpx.get(server.url + path)
        assert answer.status_code == 404 and isinstance(answer.json()["error"], str)


def test_a_state_that_drives_the_model_out_of_its_range_is_an_error(stub: Any) -> None:
    state = np.full((1, 22, 22), 3e38, np.float32)
    inputs: Arrays = {"forced": np.zeros((16, 1), np.int64), "state.H": state}
    with pytest.raises(grpc.RpcError, match="is not finite after this run") as caught:
        stub.ModelInfer(request_of(OSM, inputs), timeout=60)
    status: Any = caught.value
    assert status.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_only_the_outputs_that_were_asked_for_come_back(server: Any, stub: Any) -> None:
    request = request_of(OSM, {"forced": ONE})
    request.outputs.add(name="logprob")
    request.outputs.add(name="tokens")
    assert list(arrays_of(stub.ModelInfer(request))) == ["logprob", "tokens"]
    body = {"inputs": [FORCED], "outputs": [{"name": "tokens"}]}
    page = post(server, OSM, body).json()
    assert page["outputs"] == [
        {"name": "tokens", "datatype": "INT64", "shape": [1, 1], "data": [3]}
    ]
    assert "id" not in page


def test_binary_tensors_stand_after_the_json(server: Any) -> None:
    tensor = {key: value for key, value in FORCED.items() if key != "data"}
    head = {
        "inputs": [tensor | {"parameters": {"binary_data_size": 8}}],
        "outputs": [{"name": "tokens"}, {"name": "logprob", "parameters": {"binary_data": False}}],
        "parameters": {"binary_data_output": True},
    }
    text, raw = json.dumps(head).encode(), np.array([3]).tobytes()
    url, name = f"{server.url}/v2/models/{OSM}/infer", "Inference-Header-Content-Length"
    answer = httpx.post(url, content=text + raw, headers={name: str(len(text))})
    assert answer.status_code == 200, answer.text
    size = int(answer.headers[name])
    page = json.loads(answer.content[:size])
    assert page["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert answer.content[size:] == raw and len(page["outputs"][1]["data"]) == 1
    wrong = [(text + raw[:4], len(text)), (text + raw * 2, len(text)), (text, -1)]
    for content, length in (*wrong, (text, "9" * 5_000), (text, "0" * 5_000)):
        bad = httpx.post(url, content=content, headers={name: str(length)})
        assert bad.status_code == 400, bad.text
    assert f"found '{'0' * 79}, expected a number up to" in bad.json()["error"]


# --- beside the engine ----------------------------------------------------------------------------


def test_runs_change_nothing_in_the_texts_beside_them(server: Any) -> None:
    body = {"model": OSM, "prompt": "ROMEO:\n", "seed": 7, "max_tokens": 400}

    def text() -> str:
        page = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()
        return str(page["choices"][0]["text"])

    expected, infer, over = text(), over_grpc(server, raw=True), threading.Event()

    def run_on() -> None:
        while not over.is_set():
            infer(OSM, {"forced": np.full((16, 8), 5)})

    others = [threading.Thread(target=run_on) for _ in range(3)]
    for thread in others:
        thread.start()
    found = [text() for _ in range(3)]
    over.set()
    for thread in others:
        thread.join(30)
    assert found == [expected] * 3


def test_a_full_queue_of_runs_is_an_error_and_a_caller_that_leaves_keeps_no_place() -> None:
    async def fill() -> None:
        worker, go_on = BoundedExecutor("inferences are waiting", 2, "max"), threading.Event()
        running = asyncio.create_task(worker.run(go_on.wait))
        waiting = asyncio.create_task(worker.run(int, "7"))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="2 inferences are waiting") as full:
            await worker.run(int, "8")
        assert (full.value.http_status, full.value.grpc_status) == (429, "RESOURCE_EXHAUSTED")
        running.cancel()
        await asyncio.sleep(0)
        with pytest.raises(RequestError):  # its thread is still at it
            await worker.run(int, "8")
        go_on.set()
        assert await waiting == 7
        with pytest.raises(ValueError, match="invalid literal"):
            await worker.run(int, "x")
        worker.close()
        with pytest.raises(RequestError, match="shutting down"):
            await worker.run(int, "9")

    asyncio.run(fill())


# --- other people's clients -----------------------------------------------------------------------


@pytest.mark.slow
def test_tritons_own_client_gets_the_same_over_grpc_and_http(server: Any, tmp_path: Path) -> None:
    """In an environment before this one: it wants an older protobuf than this server."""
    venv.create(tmp_path / "venv")
    packages = sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")})
    Path(packages, "this.pth").write_text(sysconfig.get_path("purelib"))
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    install = [*pip, "install", "--quiet", "--no-compile", "tritonclient[grpc,http]==2.73.0"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"needs tritonclient: {done.stderr[-200:]}")
    script = ROOT / "tests" / "support" / "triton_client.py"
    addresses = [server.grpc_address, server.url.removeprefix("http://")]
    found = subprocess.run([python, script, *addresses, OSM], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    grpc_tokens, http_tokens = json.loads(found.stdout)
    infer = over_grpc(server, raw=True)
    expected = infer(
        OSM,
        {
            "forced": np.array([[1, 2], [-1, -1]]),
            "uniform": np.zeros((2, 2), np.float32) + np.float32(0.5),
        },
    )
    assert grpc_tokens == http_tokens == expected["tokens"].tolist()
