"""Settings: variables that nothing reads are errors, but for those that Kubernetes makes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serve import __main__ as serve_main
from serve.settings import Settings, environment_of, read_settings, variable

INJECTED = {  # for services called torsor and torsor-grpc
    "TORSOR_SERVICE_HOST": "10.0.0.1",
    "TORSOR_SERVICE_PORT": "3000",
    "TORSOR_SERVICE_PORT_HTTP": "3000",
    "TORSOR_PORT": "tcp://10.0.0.1:3000",
    "TORSOR_PORT_3000_TCP": "tcp://10.0.0.1:3000",
    "TORSOR_PORT_3000_TCP_PROTO": "tcp",
    "TORSOR_PORT_3000_TCP_PORT": "3000",
    "TORSOR_PORT_3000_TCP_ADDR": "10.0.0.1",
    "TORSOR_GRPC_SERVICE_HOST": "10.0.0.2",
    "TORSOR_GRPC_PORT": "tcp://10.0.0.2:3001",
    "TORSOR_GRPC_PORT_3001_TCP_ADDR": "10.0.0.2",
}


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("TORSOR_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_what_is_written_to_the_environment_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(cors="https://a http://b:80", unknown="skip", grpc_port=0, threads=3)
    set_all(monkeypatch, environment_of(settings))
    assert read_settings() == settings and settings.origins == ["https://a", "http://b:80"]


def test_variables_that_kubernetes_makes_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, INJECTED)
    assert read_settings() == Settings()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TORSOR_KEY", "did you mean TORSOR_KEYS?"),
        ("TORSOR_MAX_STREAM", "did you mean TORSOR_MAX_STREAMS?"),
        ("TORSOR_TLS", "did you mean TORSOR_TLS_"),
        ("TORSOR_ZZZ", "known are TORSOR_"),
    ],
)
def test_a_variable_that_nothing_reads_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, name: str, meant: str
) -> None:
    set_all(monkeypatch, {name: ""})
    with pytest.raises(ValueError, match=f"{name}: found this variable") as error:
        read_settings()
    assert meant in str(error.value)
    assert serve_main.main([]) == 1
    assert capsys.readouterr().err.startswith(f"torsor serve: {name}: found this variable, which")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"cors": origin} for origin in ("lab.example", "https://a/b", "https://", "https://a ?")),
        *({"unknown": "drop"}, {"device": "tpu"}, {"grpc_port": 70000}, {"tls_cert": "x"}),
    ],
)
def test_settings_out_of_range_are_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"^({next(iter(wrong))}|tls): found"):
        Settings(**wrong)


def test_bentoml_serve_does_not_serve_http_in_plain_beside_grpc_with_tls(tmp_path: Path) -> None:
    settings = {"TORSOR_TLS_CERT": "cert.pem", "TORSOR_TLS_KEY": "key.pem"}
    code = "import sys; sys.argv = ['bentoml', 'serve', 'serve.service:Torsor']\n"
    code += "from serve.bento.launch import require_http_tls; require_http_tls('cert.pem')"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | settings
    )
    assert "ValueError: TORSOR_TLS_CERT: found it without --ssl-certfile" in found.stderr
    allowed = code.replace("'serve.service:Torsor'", "'x', '--ssl-certfile', 'cert.pem'")
    assert subprocess.run([sys.executable, "-c", allowed]).returncode == 0
    assert variable("tls_cert") in settings
