"""API keys and TLS, over HTTP and gRPC: who is let in, and for how much."""

import asyncio
import functools
import hashlib
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from clients.command_line.main import main as torsor
from clients.errors import ConnectionFailed, ServerError
from clients.grpc_client import GrpcClient
from clients.http_client import AsyncHttpClient, HttpClient
from serve.gateway.admission import KeyLimits, TokenBucket
from serve.gateway.keys import Key, add_key, parse_keys, read_keys
from serve.settings import SHIPPED
from serve.wire.errors import RequestError

TANH = "tanh-rnn-shakespeare"
DIGEST = hashlib.sha256(b"a key").hexdigest()
GOOD = f'[[keys]]\nname = "ci"\nsha256 = "{DIGEST}"\n'


def refused(ask: Callable[[], Any]) -> ServerError:
    with pytest.raises(ServerError) as caught:
        ask()
    return caught.value


def until_let_in(ask: Callable[[], Any], within_s: float = 10) -> Any:
    deadline = time.monotonic() + within_s
    while True:
        try:
            return ask()
        except ServerError as error:
            assert error.code == "rate_limited" and time.monotonic() < deadline
            time.sleep(0.02)


# --- the file -------------------------------------------------------------------------------------


def test_a_key_is_printed_once_and_only_its_hash_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("# ours\n" + GOOD.replace("ci", "old"))
    words = ["key", "ci", "--file", str(path), "--requests-per-minute", "60"]
    assert torsor([*words, "--max-concurrent", "2"]) == 0
    found = capsys.readouterr()
    key = found.out.strip()
    assert len(key) - len("torsor-") >= 128 / 6 and key not in found.err + path.read_text()
    old, new = read_keys(path)
    assert old == Key(name="old", sha256=DIGEST) and path.read_text().startswith("# ours\n")
    digest = hashlib.sha256(key.encode()).hexdigest()
    assert new == Key(name="ci", sha256=digest, requests_per_minute=60, max_concurrent=2)
    assert digest not in repr(new)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.toml"]


def test_a_name_that_is_taken_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(GOOD)
    assert torsor(["key", "ci", "--file", str(path)]) == 1
    assert torsor(["key", "a b", "--file", str(path)]) == 1
    assert torsor(["key", "new", "--file", str(path), "--max-concurrent", "0"]) == 1
    found = capsys.readouterr()
    assert found.err.count("torsor key: ") == found.err.count("\n") == 3 and not found.out
    assert path.read_text() == GOOD


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "found no keys"),
        ("keys = 3", r"\[\[keys\]\] tables and nothing else"),
        (GOOD + "[more]\n", r"\[\[keys\]\] tables and nothing else"),
        ("[[keys]", r"no TOML \(at line 1"),
        ('[[keys]]\nname = "ci"\n', r"keys\[0\]: expected a table"),
        (GOOD + "rate = 3\n", r"keys\[0\]: expected a table"),
        (GOOD.replace("ci", "a b"), r"keys\[0\].name"),
        (GOOD.replace(DIGEST, "torsor-secret"), r"keys\[0\].sha256"),
        (GOOD.replace(DIGEST, DIGEST.upper()), r"keys\[0\].sha256"),
        (GOOD + "max_concurrent = 0\n", r"keys\[0\].max_concurrent"),
        (GOOD + "requests_per_minute = true\n", r"keys\[0\].requests_per_minute"),
        (GOOD + GOOD, "a name twice"),
        (GOOD + GOOD.replace("ci", "other"), "a sha256 twice"),
    ],
)
def test_a_broken_file_is_named_in_one_line_that_quotes_no_secret(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=expected) as caught:
        read_keys(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    assert "secret" not in message and DIGEST not in message


@pytest.mark.parametrize(
    ("option", "content", "expected"),
    [
        ("--keys", "[[keys]]", r"keys\[0\]"),
        ("--keys", None, "can't read"),
        ("--tls-cert", "", "tls"),
    ],
)
def test_a_server_does_not_start_with_a_broken_file(
    tmp_path: Path, option: str, content: str | None, expected: str
) -> None:
    path = tmp_path / "given"
    if content is not None:
        path.write_text(content)
    more = ["--tls-key", str(path)] if option == "--tls-cert" else []
    command = [sys.executable, "-m", "serve", option, str(path), *more, "--grpc-port", "0"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and found.stderr.count("\n") == 1
    assert re.match(f"torsor serve: .*{expected}", found.stderr)


# --- the gate -------------------------------------------------------------------------------------


def test_a_bucket_lets_in_at_once_what_a_minute_holds_and_then_one_a_share() -> None:
    now = [100.0]
    bucket = TokenBucket(4, lambda: now[0])
    for _ in range(4):
        assert bucket.wait_s() == 0
        bucket.take()
    assert bucket.wait_s() == pytest.approx(15)
    now[0] += 14
    assert bucket.wait_s() == pytest.approx(1)
    now[0] += bucket.wait_s()
    assert bucket.wait_s() == 0
    bucket.take()
    now[0] += 3600  # what nobody took in an hour is no more than a minute's
    for _ in range(4):
        assert bucket.wait_s() == 0
        bucket.take()
    assert bucket.wait_s() == pytest.approx(15)


def test_a_refused_request_counts_for_nothing() -> None:
    (key,) = parse_keys(GOOD + "requests_per_minute = 2\nmax_concurrent = 1\n", "keys")
    gate = KeyLimits([key])
    with gate.admit("Bearer a key"):
        for _ in range(5):
            with pytest.raises(RequestError, match="max_concurrent"), gate.admit("bearer a key"):
                pass
    with gate.admit("BEARER a key"):  # the second of two
        pass
    with pytest.raises(RequestError, match="requests_per_minute"), gate.admit("Bearer a key"):
        pass


@pytest.mark.parametrize("header", [None, "", "a key", "Basic a key", "Bearer", "Bearer A key"])
def test_what_is_no_known_key_is_refused(header: str | None) -> None:
    with pytest.raises(RequestError) as caught, KeyLimits(parse_keys(GOOD, "keys")).admit(header):
        pass
    assert caught.value.code == "unauthenticated" and "A key" not in str(caught.value)


# --- over the wire --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "torsor-wrong"])
def test_without_a_known_key_nothing_is_answered(keyed: Any, key: str | None) -> None:
    server, _ = keyed
    with HttpClient(server.url, api_key=key) as http:
        first = refused(http.models)
        assert refused(lambda: http.complete("A")).code == "unauthenticated"
        assert refused(lambda: list(http.generate("A"))).code == "unauthenticated"
    with GrpcClient(server.grpc_address, api_key=key) as client:
        second = refused(client.models)
        assert refused(lambda: list(client.generate("A"))).code == "unauthenticated"
    assert (first.code, first.field) == (second.code, second.field)
    assert first.message == second.message and "torsor-wrong" not in first.message
    answer = httpx.get(server.url + "/v1/limits")
    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"


def test_everything_but_probes_and_static_pages_wants_a_key(keyed: Any) -> None:
    server, _ = keyed
    for path in ("/", "/livez", "/readyz", "/metrics", "/docs.json"):
        assert httpx.get(server.url + path).status_code == 200, path
    paths = set(httpx.get(server.url + "/docs.json").json()["paths"])
    closed = {path for path in paths if path.startswith("/v1/")} | {"/schema.json", "/nowhere"}
    assert {"/v1/completions", "/v1/limits"} <= closed
    for path in (*closed, "//", "/livez/", "/static_content/../v1/models"):
        for method in ("GET", "POST"):
            request = httpx.Request(method, server.url)
            request.url = httpx.URL(server.url).copy_with(raw_path=path.encode())
            with httpx.Client() as client:
                assert client.send(request).status_code in (401, 404), (method, path)
    assert httpx.post(server.url + "/").status_code == 401


def test_grpc_health_and_reflection_want_no_key(keyed: Any) -> None:
    server, _ = keyed
    with grpc.insecure_channel(server.grpc_address) as channel:
        checks: Any = health_pb2_grpc.HealthStub(channel)
        answer = checks.Check(health_pb2.HealthCheckRequest(service=""), timeout=10)
        assert answer.status == answer.SERVING
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        assert list(stub.ServerReflectionInfo(iter([ask]), timeout=10))


def test_with_a_key_every_client_is_let_in(
    keyed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, keys = keyed
    options: dict[str, Any] = {"max_tokens": 20, "seed": 7}
    with HttpClient(server.url, api_key=keys["free"]) as http:
        text = http.complete("ROMEO:", **options).text
        assert http.models()[0].id == TANH
    with GrpcClient(server.grpc_address, api_key=keys["free"]) as client:
        assert client.complete("ROMEO:", **options).text == text
        assert client.models()[0].id == TANH

    async def complete() -> str:
        async with AsyncHttpClient(server.url, api_key=keys["free"]) as http:
            return (await http.complete("ROMEO:", **options)).text

    assert asyncio.run(complete()) == text
    limits = httpx.get(
        server.url + "/v1/limits", headers={"authorization": f"Bearer {keys['free']}"}
    )
    own = {"name": "free", "requests_per_minute": None, "max_concurrent": None, "manage": False}
    assert limits.json()["key"] == own
    with openai.OpenAI(base_url=server.url + "/v1", api_key=keys["free"]) as other:
        page = other.completions.create(model=TANH, prompt="ROMEO:", **options)
        assert page.choices[0].text == text
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as other:
        with pytest.raises(openai.AuthenticationError):
            other.models.list()
    monkeypatch.setenv("TORSOR_API_KEY", keys["free"])
    for where in ([server.url], [server.grpc_address, "--grpc"]):
        words = ["generate", "ROMEO:", "--max-tokens", "20", "--seed", "7", "--url", *where]
        assert torsor(words) == 0 and capsys.readouterr().out == text


def test_http_and_grpc_share_the_rate_of_a_key_and_say_when_the_next_fits(keyed: Any) -> None:
    server, keys = keyed
    with (
        HttpClient(server.url, api_key=keys["slow"]) as http,
        GrpcClient(server.grpc_address, api_key=keys["slow"]) as client,
    ):
        http.models()
        client.models()
        over_grpc, over_http = refused(client.models), refused(http.models)
    for error in (over_grpc, over_http):
        assert error.code == "rate_limited" and "requests_per_minute" in error.message
        assert error.retry_after_s is not None and 20 < error.retry_after_s <= 30
    asked = {"authorization": f"Bearer {keys['slow']}"}
    answer = httpx.get(server.url + "/v1/models", headers=asked)
    assert answer.status_code == 429 and 20 < int(answer.headers["retry-after"]) <= 30


def test_a_place_is_given_back_when_a_stream_is_left_or_fails(keyed: Any) -> None:
    server, keys = keyed
    with (
        HttpClient(server.url, api_key=keys["narrow"]) as http,
        GrpcClient(server.grpc_address, api_key=keys["narrow"]) as client,
    ):
        pairs: Any = ((http, client), (client, http))
        for one, other in pairs:
            stream = until_let_in(functools.partial(started, one))
            error = refused(other.models)
            assert error.code == "rate_limited" and "max_concurrent" in error.message
            assert error.retry_after_s is None  # nobody knows when a stream ends
            stream.close()
            until_let_in(other.models)
            for each in (one, other):
                error = until_let_in(functools.partial(refused_by_model, each))
                assert error.code == "not_found"
                until_let_in(each.models)
        chunks = until_let_in(lambda: list(http.generate("A", max_tokens=30)))
        assert "".join(chunk.text for chunk in chunks)
        until_let_in(client.models)


def started(client: HttpClient | GrpcClient) -> Any:
    """A stream that is running."""
    stream = client.generate("A", max_tokens=500_000)
    assert next(stream)
    return stream


def refused_by_model(client: Any) -> ServerError:
    try:
        client.complete("A", model="gpt-2")
    except ServerError as error:
        if error.code != "rate_limited":
            return error
        raise
    raise AssertionError("a model that isn't there has answered")


def test_other_keys_are_not_held_up(keyed: Any) -> None:
    server, keys = keyed
    with (
        HttpClient(server.url, api_key=keys["narrow"]) as narrow,
        HttpClient(server.url, api_key=keys["free"]) as free,
    ):
        for one in (until_let_in(lambda: started(narrow)), started(free), started(free)):
            one.close()


def test_no_key_finds_out_what_anothers_prompts_began_with(keyed: Any) -> None:
    server, keys = keyed

    def reused(name: str) -> int:
        body = {"prompt": "What's in a name? " * 30, "max_tokens": 1}
        headers = {"Authorization": f"Bearer {keys[name]}"}
        answer = httpx.post(server.url + "/v1/completions", json=body, headers=headers, timeout=60)
        count: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    assert reused("free") == 0 < reused("free")
    assert reused("narrow") == 0


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schl\u00fcssel"])
def test_a_key_that_no_header_can_carry_is_refused_unquoted(key: str) -> None:
    for make in (HttpClient, AsyncHttpClient, GrpcClient):
        with pytest.raises(ValueError, match="api_key") as caught:
            make(api_key=key)
        assert key not in str(caught.value)


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for loopback, and its key."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", names]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.mark.slow
def test_http_and_grpc_speak_tls_and_nothing_else(
    start_server: Any,
    tmp_path: Path,
    certificate: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    cert, key = certificate
    api_key = add_key(tmp_path / "keys.toml", "ci")
    arguments = ["--tls-cert", str(cert), "--tls-key", str(key)]
    arguments += ["--keys", str(tmp_path / "keys.toml")]
    with start_server(tmp_path, str(SHIPPED / TANH), *arguments) as server:
        address = server.grpc_address
        options: dict[str, Any] = {"max_tokens": 20, "seed": 7}
        with HttpClient(server.url, ca=str(cert), api_key=api_key) as http:
            text = "".join(chunk.text for chunk in http.generate("ROMEO:", **options))
        for target in (f"https://{address}", address):
            with GrpcClient(target, ca=str(cert), api_key=api_key) as client:
                assert client.complete("ROMEO:", **options).text == text
        strangers: list[tuple[HttpClient | GrpcClient, str]] = [
            (HttpClient(server.url), "not trusted; name the one that signed it with --ca FILE"),
            (HttpClient(server.url.replace("https", "http")), "speaks TLS.: try https://"),
            (GrpcClient(address), "speaks TLS.: try https://"),
            (GrpcClient(address, tls=True), "not trusted; name the one that signed it with --ca"),
        ]
        for stranger, remedy in strangers:
            with stranger, pytest.raises(ConnectionFailed, match=remedy):
                stranger.models()
        assert torsor(["models", "--url", server.url, "--ca", str(cert)]) == 1
        assert "API key" in capsys.readouterr().err


def test_tls_to_a_plain_port_is_told_to_do_without(server: Any) -> None:
    clients: list[HttpClient | GrpcClient] = [
        HttpClient(server.url.replace("http", "https")),
        GrpcClient(f"https://{server.grpc_address}"),
    ]
    for client in clients:
        with client, pytest.raises(ConnectionFailed, match="does not speak TLS; try http://"):
            client.models()


def test_a_certificate_without_its_key_is_refused(certificate: tuple[Path, Path]) -> None:
    cert, _ = certificate
    command = [sys.executable, "-m", "serve", "--tls-cert", str(cert)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and "tls_key" in found.stderr and found.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_ca_file_that_is_none_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match="ca: .*ca.pem"):
        HttpClient("https://127.0.0.1:1", ca=str(path))
