"""Cross-origin requests (CORS): where BentoML is set to let other origins in, our routes do too."""

from typing import Any

from bentoml._internal.configuration.containers import BentoMLContainer
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp


def let_in_origins(app: ASGIApp) -> ASGIApp:
    """The app, or the app behind Starlette's middleware with BentoML's settings."""
    if not BentoMLContainer.http.cors.enabled.get():
        return app
    options: Any = BentoMLContainer.access_control_options.get()
    return CORSMiddleware(app, **options)
