"""Probes: `GET /livez` says whether the process is whole, `GET /readyz` whether it takes requests.

BentoML's own would only say that there is a process.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serve.http_api.routes import ModelsOf, Route
from serve.models import Models
from serve.wire import responses as pages
from serve.wire.errors import RequestError

UNREADY: dict[str, Any] = {"ready": False, "models": []}


async def livez(models_of: ModelsOf, http: Request) -> Response:
    """200 while the engine's loop runs, else 503."""
    del http
    models = _models(models_of)
    status = UNREADY if models is None else models.readiness()
    return JSONResponse(status, 200 if models is not None and models.engine.alive else 503)


async def readyz(models_of: ModelsOf, http: Request) -> Response:
    """200 where requests are taken, else 503; what runs each model."""
    del http
    models = _models(models_of)
    status = UNREADY if models is None else models.readiness()
    return JSONResponse(status, 200 if status["ready"] else 503)


def _models(models_of: ModelsOf) -> Models | None:
    try:
        return models_of()
    except RequestError:  # they are not up yet, or no more
        return None


ABOUT = "What runs."
LIVE, READY = "Whether the process is whole", "Whether it takes requests"
ROUTES = (
    Route("GET", "/livez", livez, answers=pages.ReadinessPage, summary=LIVE, about=ABOUT),
    Route("HEAD", "/livez", livez, is_shown=False),
    Route("GET", "/readyz", readyz, answers=pages.ReadinessPage, summary=READY, about=ABOUT),
    Route("HEAD", "/readyz", readyz, is_shown=False),
)
