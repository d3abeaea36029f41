"""BentoML's limit of time for a request, left out: the engine has limits of its own.

Its timer isn't stopped once the request has been answered. It holds the request's context, with
the trace's span, for the whole limit: at 50 requests a second for eleven minutes, 150 MB.
"""

from bentoml._internal.server.http import traffic
from starlette.types import Receive, Scope, Send


class NoTimer(traffic.TimeoutMiddleware):
    """BentoML's middleware without its timer, and without the task that it runs a request in."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on."""
        await self.app(scope, receive, send)


def leave_out_timers() -> None:
    """To be called before BentoML builds its app."""
    traffic.TimeoutMiddleware = NoTimer  # type: ignore[misc]
