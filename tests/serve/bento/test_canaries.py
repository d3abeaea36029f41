"""Canaries: each fails once BentoML, circus or uvicorn no longer needs what serve/bento does.

Then the patch that the test names can go. They look at the frameworks without our patches.
"""

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import uvicorn
from circus.sighandler import SysHandler  # type: ignore[import-untyped]
from servers import free_port
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ROOT = Path(__file__).parent.parent.parent.parent


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers how long the body was."""
    http = Request(scope, receive, send)
    await JSONResponse(len(await http.body()))(scope, receive, send)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of tests/support/plain_bento.py."""
    port = free_port()
    where = ("--working-dir", str(ROOT / "tests" / "support"), "--port", str(port))
    home = {"BENTOML_HOME": str(tmp_path_factory.mktemp("plain")), "BENTOML_DO_NOT_TRACK": "True"}
    process = subprocess.Popen(
        [sys.executable, "-m", "bentoml", "serve", "plain_bento:Plain", *where],
        env={**os.environ, **home},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + 60
    try:
        while True:
            assert process.poll() is None and time.monotonic() < until
            try:
                httpx.get(url + "/livez").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def echoing() -> Iterator[str]:
    """The address of `echo`, served by uvicorn's own protocol."""
    options: Any = {"port": 0, "log_level": "critical", "lifespan": "off", "access_log": False}
    server = uvicorn.Server(uvicorn.Config(echo, http=HttpToolsProtocol, **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_decline_upgrades_is_needed_uvicorn_loses_bodies_that_come_with_an_offer(
    echoing: str,
) -> None:
    assert httpx.post(echoing, content=b"a body").json() == 6
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMA"}
    try:
        found = httpx.post(echoing, content=b"a body", headers=offer, timeout=10).json()
    except httpx.HTTPError:
        return
    assert found != 6


def fresh(name: str) -> ModuleType:
    """A module as it is before anybody patches it."""
    kept = sys.modules.pop(name, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what BentoML imports
        made = importlib.import_module(name)
    if kept is not None:
        sys.modules[name] = kept
    return made


def test_leave_out_timers_is_needed_bentomls_timer_outlives_its_request() -> None:
    traffic = fresh("bentoml._internal.server.http.traffic")

    async def ask() -> int:
        app: Any = traffic.TimeoutMiddleware(echo, timeout=600)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            assert (await client.post("/", content=b"12")).json() == 2
        await asyncio.sleep(0)
        timers: Any = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        return sum(not timer.cancelled() for timer in timers)

    assert asyncio.run(ask()) == 1


def test_teach_supervisor_is_needed_circus_reloads_where_a_terminal_closes() -> None:
    handler = fresh(SysHandler.__module__).SysHandler
    heard = list[str]()

    class Controller:
        """As much of one as a signal touches."""

        class loop:
            @staticmethod
            def add_callback_from_signal(call: Any, message: Any) -> None:
                call(message)

        @staticmethod
        def dispatch(message: Any) -> None:
            heard.append(json.loads(message[1])["command"])

    bare = handler.__new__(handler)
    bare.controller = Controller
    bare.handle_hup()
    bare.handle_term()
    bare.handle_term()
    assert heard == ["reload", "quit", "quit"]  # a second signal is a first one to it


def test_teach_supervisor_is_needed_circus_does_not_hear_that_a_process_has_ended() -> None:
    handler = fresh(SysHandler.__module__).SysHandler
    assert signal.SIGCHLD not in handler.SIGNALS
    assert not hasattr(handler, "handle_chld") and not hasattr(handler, "handle_cld")


def test_health_routes_are_needed_bentomls_say_only_that_there_is_a_process(plain: str) -> None:
    answer = httpx.get(plain + "/readyz")
    assert answer.status_code == 200 and "ready" not in answer.text


def test_docs_route_is_needed_bentomls_document_is_of_an_older_version(plain: str) -> None:
    assert httpx.get(plain + "/docs.json").json()["openapi"].startswith("3.0.")


def test_missing_response_is_needed_bentomls_router_answers_in_plain_text(plain: str) -> None:
    answer = httpx.get(plain + "/made-up")
    assert answer.status_code == 404 and answer.headers["content-type"].startswith("text/plain")


def test_metrics_route_is_needed_bentomls_has_a_series_for_every_path(plain: str) -> None:
    httpx.get(plain + "/made-up/by-anybody")
    assert "/made-up/by-anybody" in httpx.get(plain + "/metrics").text


def test_native_api_is_needed_bentoml_ends_a_broken_text_as_if_it_were_whole(plain: str) -> None:
    answer = httpx.post(plain + "/broken", json={})
    assert (answer.status_code, answer.text) == (200, "some")
