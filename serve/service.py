"""The BentoML service: one process, one engine, HTTP and gRPC on it.

torsor serve [BUNDLE ...]                   checks everything first, then starts this
bentoml serve serve.service:Torsor          the same from the environment (serve/settings.py)
"""

import asyncio
import functools
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

os.environ.setdefault("BENTOML_DO_NOT_TRACK", "True")
gc.disable()  # what imports make is no garbage: looking for some takes a fifth of their time

import bentoml
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.bento.metrics import add_metrics
from serve.bento.native_api import native_routes, score_page, text_stream
from serve.bento.patches import decline_upgrades, leave_out_timers
from serve.bento.process import prepare_process, resume_collections, spare_collections
from serve.bento.supervisor import is_worker, leave_hangups, stop_supervisor, teach_supervisor
from serve.engine.limits import EngineLimits
from serve.gateway.admission import Gateway, KeyLimits
from serve.gateway.keys import read_keys
from serve.gateway.log import configure_log
from serve.gateway.tls import check_tls, grpc_credentials
from serve.gateway.tracing import bento_tracing
from serve.grpc_api.servicer import set_serving, start_grpc_server
from serve.http_api.app import make_app
from serve.http_api.middleware import GatewayMiddleware, direct_paths
from serve.http_api.models import add_management, add_tokenizer
from serve.http_api.openapi import add_docs
from serve.http_api.responses import or_error
from serve.kserve.grpc import add_open_inference
from serve.kserve.http import add_open_inference_paths
from serve.manifest.read import read_manifest
from serve.manifest.values import BundleError
from serve.models import Models
from serve.native.library import status
from serve.queries.saved_state import read_key
from serve.runtime.bundle import load_bundles
from serve.runtime.device import DeviceError
from serve.runtime.session import choose_device
from serve.settings import Settings, read_settings
from serve.sweeps.folder import check_data_folder, data_folder
from serve.sweeps.grpc import SweepServicer
from serve.sweeps.http import add_sweep_paths
from serve.sweeps.jobs import Sweeps, keep_sweeps
from serve.wire.errors import RequestError
from serve.wire.requests import ScoreRequest, TextRequest

log = logging.getLogger("torsor")

REQUEST_TIMEOUT_S = (
    660  # what BentoML's clients wait for a first byte; the engine's limits are less
)
WATCH_S = 1.0
STREAMING = [
    "v1/completions",
    "v1/ablations",
    "v1/sweeps",
    "generate",
]  # BentoML would open a trace span for every chunk

_up: list[Models] = []  # the models of this process, while it is up


def current_models() -> Models:
    """The served models; `RequestError` before it is up and after it is down."""
    if not _up:
        raise RequestError("unavailable", "the server is starting or has stopped; try again")
    return _up[0]


def checked_settings() -> Settings:
    """The settings, with every bundle's manifest and files checked; else one line and exit 1.

    BentoML imports this module before it starts anything, and would restart a worker that fails
    later for ever.
    """
    try:
        settings = read_settings()
        if not settings.folders:
            raise ValueError("bundles: found none to serve, expected some; export one first")
        for folder in settings.folders:
            read_manifest(folder)
        choose_device(settings.device, settings.num_threads)
        read_key(settings.state_key)
        check_data_folder(settings.data_folder)
        GATEWAY.gate = KeyLimits(read_keys(Path(settings.keys)) if settings.keys else ())
        if settings.tls_cert:
            check_tls(settings.tls_cert, settings.tls_key)
    except ValueError as error:
        sys.exit(f"torsor serve: {error}")
    return settings


class HealthMiddleware:
    """Answers /livez and /readyz, where BentoML's own would only say that the process is there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        if scope["type"] != "http" or scope["path"] not in ("/livez", "/readyz"):
            return await self._app(scope, receive, send)
        status = _up[0].readiness() if _up else {"ready": False, "models": []}
        good = status["ready"] if scope["path"] == "/readyz" else _alive()
        await JSONResponse(status, 200 if good else 503)(scope, receive, send)


teach_supervisor()
leave_hangups()
leave_out_timers()
decline_upgrades()
GATEWAY = Gateway()
SETTINGS = checked_settings()
APP = make_app(current_models, (add_sweep_paths,))
for add_paths in (add_tokenizer, add_open_inference_paths, add_management, add_metrics, add_docs):
    add_paths(APP, current_models)


@bentoml.service(
    name="torsor",
    workers=1,  # one engine a device; more processes would only split the batches
    traffic={"timeout": REQUEST_TIMEOUT_S},
    tracing={"excluded_urls": STREAMING},
    logging={"access": {"enabled": False}},  # serve.gateway.request_log writes a better line
    metrics={"enabled": False},  # BentoML's have a series for every path that anybody makes up
)
@bentoml.asgi_app(APP)
class Torsor:
    """Streams characters and answers ablation queries."""

    def __init__(self) -> None:
        configure_log(SETTINGS.log_format)
        prepare_process()
        GATEWAY.tracing = bento_tracing()
        bundles = load_or_give_up(SETTINGS)
        limits = EngineLimits(
            max_streams=SETTINGS.max_streams,
            max_waiting=SETTINGS.max_waiting,
            queue_timeout_s=SETTINGS.queue_timeout_s,
            first_timeout_s=SETTINGS.first_timeout_s,
            total_timeout_s=SETTINGS.total_timeout_s,
            state_cache_bytes=SETTINGS.state_cache_mb << 20,
            ablation_cache_bytes=SETTINGS.ablation_cache_mb << 20,
        )
        self._models = Models(bundles, limits, read_key(SETTINGS.state_key))
        self._models.start()
        spare_collections()
        self._grpc: Any = None
        self._checks: Any = None
        self._draining = False
        _up.append(self._models)

    @bentoml.on_startup
    async def start(self) -> None:
        """Start gRPC, and drain both servers together on SIGTERM and SIGINT."""
        self._sweeps = Sweeps(self._models, data_folder(SETTINGS.data_folder))
        keep_sweeps(self._models, self._sweeps)
        self._sweeps.start()
        if SETTINGS.grpc_port:
            address = f"{SETTINGS.grpc_host}:{SETTINGS.grpc_port}"
            credentials = grpc_credentials(SETTINGS.tls_cert, SETTINGS.tls_key)
            try:
                self._grpc, self._checks = await start_grpc_server(
                    self._models,
                    address,
                    GATEWAY,
                    credentials,
                    (add_open_inference,),
                    SweepServicer,
                )
            except OSError as error:
                give_up(error)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._drain_before(number, asyncio.get_running_loop())

        self._watch = asyncio.create_task(end_when_useless(self._models, os.getppid()))
        self._models.warm(*self._models.bundles.values())

    @bentoml.on_shutdown
    async def stop(self) -> None:
        """Stop gRPC and the engine."""
        self._watch.cancel()
        await self._sweeps.stop()
        if self._grpc is not None:
            await self._grpc.stop(0)
        _up.remove(self._models)
        self._models.close()

    @bentoml.api(input_spec=TextRequest)
    async def generate(self, **fields: Any) -> str:
        """The text of one prompt, as it is written."""
        request = TextRequest.model_construct(**fields)
        stream: Any = await or_error(_request(), text_stream(self._models, _request(), request))
        return stream  # type: ignore[no-any-return]

    @bentoml.api(input_spec=ScoreRequest)
    async def score(self, **fields: Any) -> dict[str, Any]:
        """Bits per character of a text, with an ablation beside the plain model."""
        request = ScoreRequest.model_construct(**fields)
        page: Any = await or_error(_request(), score_page(self._models, _request(), request))
        return page  # type: ignore[no-any-return]

    def _drain_before(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        # The web server's own handler closes HTTP. Until the streams are done, HTTP must go on to
        # answer: not ready, try another one. A second signal hurries.
        before = signal.getsignal(number)

        def close(signum: int, frame: Any) -> None:
            if callable(before):
                before(signum, frame)

        def handle(signum: int, frame: Any) -> None:
            if self._draining:  # the streams end now, and with them the drain
                threading.Thread(target=self._models.engine.stop, daemon=True).start()
                return
            self._draining = True
            after = functools.partial(close, signum, None)
            loop.call_soon_threadsafe(lambda: loop.create_task(self._drain(after)))

        signal.signal(number, handle)

    async def _drain(self, after: Callable[[], None]) -> None:
        try:
            await self._sweeps.stop()  # the next server goes on with them
        except Exception:  # such as a full disk: the streams must end well for all that
            log.exception("the sweeps did not stop well")
        drain: Callable[[float], None] = self._models.engine.drain
        engine = asyncio.get_running_loop().run_in_executor(None, drain, SETTINGS.grace_s)
        try:
            if self._grpc is not None:
                await set_serving(self._checks, False)
                stopped = asyncio.create_task(self._grpc.stop(SETTINGS.grace_s + 1))
                await engine
                await stopped
            await engine
        finally:
            after()


async def end_when_useless(models: Models, parent: int) -> None:
    """End this process once its supervisor is gone, which would hold device and port for ever, or
    its engine has failed: the supervisor then starts another one."""
    while os.getppid() == parent and not models.engine.failed:
        await asyncio.sleep(WATCH_S)
    signal.raise_signal(signal.SIGTERM)


def load_or_give_up(settings: Settings) -> Any:
    """The bundles, loaded; the log says what kernels they run on."""
    log.info("torsor serve: %s", status())
    try:
        return load_bundles(settings.folders, settings.device, settings.num_threads)
    except (BundleError, DeviceError) as error:
        give_up(error)


def give_up(error: Exception) -> NoReturn:
    """Say in one line why nothing can be served, and end; the supervisor too, which would try the
    same again for ever."""
    log.error("torsor serve: %s", error)
    stop_supervisor()
    sys.exit(1)


def _request() -> Any:
    return Torsor.context.request  # type: ignore[attr-defined]


def _alive() -> bool:
    return bool(_up) and _up[0].engine.alive


# Clients read `generate` piece by piece. BentoML itself would see that in a generator only, whose
# errors after the first piece it swallows; see serve/bento/native_api.py.
Torsor.apis["generate"].is_stream = True  # type: ignore[attr-defined]
Torsor.add_asgi_middleware(  # type: ignore[attr-defined]
    GatewayMiddleware,
    gateway=GATEWAY,
    direct=functools.partial(direct_paths, APP, native_routes(current_models)),
)
Torsor.add_asgi_middleware(HealthMiddleware)  # type: ignore[attr-defined]
if not is_worker():  # which has more to import, and comes to `spare_collections`
    resume_collections()
