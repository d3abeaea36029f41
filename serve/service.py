"""The BentoML service: one process, one engine, HTTP and gRPC on it.

torsor serve [BUNDLE ...]                   checks everything first, then starts this
bentoml serve serve.service:Torsor          the same from the environment (serve/settings.py)
"""

import asyncio
import gc
import logging
import os
import sys
from typing import Any

from serve.packages import require_packages

require_packages()
os.environ.setdefault("BENTOML_DO_NOT_TRACK", "True")
# Counters stay in this one process: BentoML's files in its home are those of all servers there
os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
# Decompositions that requests ask for take one core; the engine and the event loop keep the others
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
gc.disable()  # imports allocate no garbage; collecting during them costs a fifth of their time

import bentoml

from serve.bento import metrics, native_api
from serve.bento.cors import let_in
from serve.bento.head_limits import limit_heads
from serve.bento.launch import require_http_tls, warn_if_open
from serve.bento.lifecycle import Drain, end_when_useless, give_up
from serve.bento.native_api import score_response, text_stream
from serve.bento.patches import leave_out_timers
from serve.bento.process import prepare_process, resume_collections, spare_collections
from serve.bento.supervisor import is_worker, leave_hangups, teach_supervisor
from serve.engine.limits import EngineLimits
from serve.gateway.admission import Gateway, KeyLimits
from serve.gateway.log import configure_log
from serve.gateway.tls import grpc_credentials
from serve.gateway.tracing import bento_tracing
from serve.grpc_api.server import start_grpc_server
from serve.http_api import app, health
from serve.http_api import models as model_routes
from serve.http_api.middleware import GatewayMiddleware
from serve.http_api.openapi import docs_route
from serve.http_api.responses import or_error
from serve.http_api.routes import Dispatcher, RouteTable
from serve.kserve import http as open_inference
from serve.kserve.grpc import add_open_inference
from serve.manifest.read import read_manifest
from serve.manifest.values import BundleError
from serve.models import Models
from serve.native.library import status
from serve.native.threads import run_threads
from serve.queries.saved_state import read_key
from serve.runtime.bundle import load_whole_bundles
from serve.runtime.device import DeviceError
from serve.runtime.session import choose_device
from serve.settings import Settings, read_settings
from serve.startup import check_settings
from serve.sweeps import http as sweep_routes
from serve.sweeps.folder import data_folder
from serve.sweeps.grpc import SweepServicer
from serve.sweeps.jobs import Sweeps, keep_sweeps
from serve.wire.errors import RequestError
from serve.wire.requests import ScoreRequest, TextRequest

log = logging.getLogger("torsor")

REQUEST_TIMEOUT_S = 660  # BentoML's clients wait so long for a first byte; the engine's is less
# BentoML would open a trace span for every chunk of these.
STREAMING = ["v1/completions", "v1/ablations", "v1/sweeps", "generate"]
ROUTES = (
    *app.ROUTES,
    *sweep_routes.ROUTES,
    *model_routes.ROUTES,
    *open_inference.ROUTES,
    *native_api.ROUTES,
    *health.ROUTES,
    *metrics.ROUTES,
)

_up: list[Models] = []  # the models of this process, while it is up


def current_models() -> Models:
    """The served models; `RequestError` before they are up and after they are down."""
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
        GATEWAY.gate = KeyLimits(check_settings(settings))
        require_http_tls(settings.tls_cert)
        if not is_worker():  # one that starts anew serves what is whole
            for folder in settings.folders:
                read_manifest(folder)
            warn_if_open(settings.keys, settings.grpc_host)
        choose_device(settings.device, run_threads(settings.threads))
    except ValueError as error:
        sys.exit(f"torsor serve: {error}")
    return settings


teach_supervisor()
leave_hangups()
leave_out_timers()
limit_heads()
GATEWAY = Gateway()
SETTINGS = checked_settings()
OWN = Dispatcher(RouteTable((*ROUTES, docs_route(ROUTES))), current_models)


@bentoml.service(
    name="torsor",
    workers=1,  # one engine a device; more processes would only split the batches
    traffic={"timeout": REQUEST_TIMEOUT_S},
    tracing={"excluded_urls": STREAMING},
    logging={"access": {"enabled": False}},  # serve.gateway.request_log writes a better line
    metrics={"enabled": False},  # BentoML's have a series for every path that anybody makes up
)
class Torsor:
    """Streams characters and answers ablation queries."""

    def __init__(self) -> None:
        configure_log(SETTINGS.log_format)
        prepare_process()
        GATEWAY.tracing = bento_tracing()
        bundles, broken = load_or_give_up(SETTINGS)
        limits = EngineLimits(
            max_streams=SETTINGS.max_streams,
            max_waiting=SETTINGS.max_waiting,
            queue_timeout_s=SETTINGS.queue_timeout_s,
            first_timeout_s=SETTINGS.first_timeout_s,
            total_timeout_s=SETTINGS.total_timeout_s,
            state_cache_bytes=SETTINGS.state_cache_mb << 20,
            ablation_cache_bytes=SETTINGS.ablation_cache_mb << 20,
        )
        unknown: Any = SETTINGS.unknown
        state_key, root = read_key(SETTINGS.state_key), SETTINGS.bundles_root
        self._models = Models(bundles, limits, state_key, unknown, broken, root)
        self._models.start()
        spare_collections()
        self._grpc: Any = None
        self._checks: Any = None
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
        engine = self._models.engine
        drain = Drain(engine, self._sweeps.stop, SETTINGS.grace_s, self._grpc, self._checks)
        drain.install(asyncio.get_running_loop())
        self._watch = asyncio.create_task(end_when_useless(engine, os.getppid()))
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
        page: Any = await or_error(_request(), score_response(self._models, _request(), request))
        return page  # type: ignore[no-any-return]


def load_or_give_up(settings: Settings) -> Any:
    """The bundles that can be loaded, and why others can't; the log says what runs operators."""
    log.info("torsor serve: %s", status())
    try:
        return load_whole_bundles(settings.folders, settings.device, run_threads(settings.threads))
    except (BundleError, DeviceError) as error:
        give_up(error)


def _request() -> Any:
    return Torsor.context.request  # type: ignore[attr-defined]


# Clients read `generate` chunk by chunk. BentoML itself would see that in a generator only, whose
# errors after the first chunk it swallows; see serve/bento/native_api.py.
Torsor.apis["generate"].is_stream = True  # type: ignore[attr-defined]
Torsor.add_asgi_middleware(  # type: ignore[attr-defined]
    GatewayMiddleware, gateway=GATEWAY, own=OWN, around=let_in(SETTINGS.origins)
)
if not is_worker():  # which has more to import, and comes to `spare_collections`
    resume_collections()
