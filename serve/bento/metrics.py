"""GET /metrics: the counters of `serve.metrics`, in Prometheus' format.

BentoML's own page would add a series for every path that anybody makes up, and is off.
"""

from bentoml._internal.configuration.containers import BentoMLContainer
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from serve.http_api.routes import ModelsOf, Route


async def metrics(models_of: ModelsOf, http: Request) -> Response:
    """The counters, whether there are models or not."""
    del models_of, http
    client = BentoMLContainer.metrics_client.get()  # knows whether there are several workers
    page = await run_in_threadpool(client.generate_latest)
    return Response(page, media_type=client.CONTENT_TYPE_LATEST)


ROUTES = (
    Route(
        *("GET", "/metrics", metrics),
        media="text/plain",
        summary="Counters and times",
        about="Prometheus.",
        fails=False,
    ),
)
