"""Probes: `GET /livez` says whether the process is whole, `GET /readyz` whether it takes requests.

`GET /health` is the latter, under the name that vLLM's tools ask for.

BentoML's own would only say that there is a process.
"""

from starlette.requests import Request
from starlette.responses import Response

from serve.http_api.responses import json_response
from serve.http_api.routes import ModelsOf, Route
from serve.models import Models
from serve.wire.errors import RequestError
from serve.wire.responses import Readiness

UNREADY = Readiness(ready=False)


async def livez(models_of: ModelsOf, http: Request) -> Response:
    """200 while the engine's loop runs, else 503."""
    del http
    models = _models(models_of)
    status = UNREADY if models is None else models.readiness()
    alive = models is not None and models.engine.alive
    return await json_response(status, 200 if alive else 503)


async def readyz(models_of: ModelsOf, http: Request) -> Response:
    """200 where requests are taken, else 503; what runs each model."""
    del http
    models = _models(models_of)
    status = UNREADY if models is None else models.readiness()
    return await json_response(status, 200 if status.ready else 503)


def _models(models_of: ModelsOf) -> Models | None:
    try:
        return models_of()
    except RequestError:  # they are not up yet, or no more
        return None


ABOUT = "What runs."
LIVE, READY = "Whether the process is whole", "Whether it takes requests"
ROUTES = (
    Route("GET", "/livez", livez, answers=Readiness, summary=LIVE, about=ABOUT),
    Route("GET", "/readyz", readyz, answers=Readiness, summary=READY, about=ABOUT),
    Route("GET", "/health", readyz, answers=Readiness, summary=READY, about=ABOUT),
)
