"""Models that come and go while the server runs: closed, but for API keys that may manage.

    POST   /management/models {"folder": "bundles/new"}     serve one more, or replace its namesake
    POST   /management/models/{model}/reload                read its folder again
    DELETE /management/models/{model}                       serve it no more

Streams that run go on with the model they began with. A folder that holds no whole bundle changes
nothing. Folders are paths on the server's machine, so a key that may manage may make the server
read any bundle there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request

from serve import metrics
from serve.gateway.request_log import current_call
from serve.http_api.body import read_request
from serve.http_api.openapi import documented
from serve.models import Host
from serve.wire import responses as pages
from serve.wire.errors import RequestError
from serve.wire.requests import LoadRequest

Json = dict[str, Any]


def add_management(app: FastAPI, host_of: Callable[[], Host]) -> None:
    """Add the paths to the app."""

    @app.post("/management/models", **documented(pages.ModelPage, LoadRequest))
    async def load(http: Request) -> Json:
        require_manager()
        request = await read_request(http, LoadRequest)
        return _loaded(host_of(), await host_of().load(Path(request.folder)))

    @app.post("/management/models/{model}/reload", **documented(pages.ModelPage))
    async def reload(model: str) -> Json:
        require_manager()
        return _loaded(host_of(), await host_of().reload(model))

    @app.delete("/management/models/{model}", **documented(pages.UnloadedPage))
    async def unload(model: str) -> Json:
        require_manager()
        host_of().unload(model)
        metrics.log.info("unloaded %s", model)
        return {"id": model, "unloaded": True}


def require_manager() -> None:
    """`RequestError` unless the request's key may manage."""
    call = current_call()
    if call is None or call.key is None or not call.key.manage:
        raise RequestError(
            "forbidden",
            "management: closed, expected an API key that may manage; make one: "
            "torsor key NAME --file keys.toml --manage, and serve with --keys keys.toml",
        )


def _loaded(host: Host, bundle: Any) -> Json:
    metrics.log.info("loaded %s", bundle.name)
    return host.describe(bundle)
