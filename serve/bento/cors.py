"""Cross-origin requests (CORS): those of the origins that are set, here or in BentoML's settings.

Preflights carry no key, so they are answered before one is asked for; errors have the headers too.
"""

from collections.abc import Callable, Sequence
from typing import Any

from bentoml._internal.configuration.containers import BentoMLContainer
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

METHODS = ("GET", "HEAD", "POST", "DELETE")
EXPOSED = ("X-Request-Id", "Retry-After", "Location", "Inference-Header-Content-Length")
MAX_AGE_S = 600


def let_in(origins: Sequence[str]) -> Callable[[ASGIApp], ASGIApp]:
    """A function from an app to the app behind Starlette's middleware, if any origin is set."""

    def around(app: ASGIApp) -> ASGIApp:
        if origins:
            return CORSMiddleware(
                app,
                allow_origins=origins,
                allow_methods=METHODS,
                allow_headers=["*"],
                expose_headers=EXPOSED,
                max_age=MAX_AGE_S,
            )
        if not BentoMLContainer.http.cors.enabled.get():
            return app
        options: Any = BentoMLContainer.access_control_options.get()
        return CORSMiddleware(app, **options)

    return around
