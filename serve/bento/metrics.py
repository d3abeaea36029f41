"""GET /metrics: what `serve.metrics` counts, as Prometheus reads it.

BentoML's own page would add a series for every path that anybody makes up, and is off.
"""

from collections.abc import Callable

from bentoml._internal.configuration.containers import BentoMLContainer
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from serve.models import Models


def add_metrics(app: FastAPI, models_of: Callable[[], Models]) -> None:
    """Add the path; it answers whether there are models or not."""
    del models_of

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        client = BentoMLContainer.metrics_client.get()  # knows whether there are several workers
        page = await run_in_threadpool(client.generate_latest)
        return Response(page, media_type=client.CONTENT_TYPE_LATEST)
