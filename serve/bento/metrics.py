"""GET /metrics: the counters of `serve.metrics`, in Prometheus' format.

BentoML's own page would add a series for every path that anybody makes up, and is off. So are its
files of counters, which all servers of one BENTOML_HOME share, and each start empties: there is one
process, whose counters are in memory.
"""

import prometheus_client
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from serve.http_api.routes import ModelsOf, Route

# A second series for each one, of when it began
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


async def metrics(models_of: ModelsOf, http: Request) -> Response:
    """The counters, whether there are models or not."""
    del models_of, http
    page = await run_in_threadpool(prometheus_client.generate_latest)
    return Response(page, media_type=prometheus_client.CONTENT_TYPE_LATEST)


ROUTES = (
    Route(
        *("GET", "/metrics", metrics),
        media="text/plain",
        summary="Counters and times",
        about="Prometheus.",
        fails=False,
    ),
)
