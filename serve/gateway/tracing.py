"""One OpenTelemetry span a stream, made when it has ended. Never one a chunk.

Spans go where BentoML's configuration says (`api_server.tracing` or the service's `tracing`:
exporter_type and sample_rate); where it says nothing, nothing is made.
"""

import time
from collections.abc import Mapping
from typing import Any

from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider

from serve.engine.stream import Stream

NANOSECONDS = 1_000_000_000


class Tracing:
    """Records streams with a provider's tracer; without a provider it is off."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = None if provider is None else provider.get_tracer("torsor")

    @property
    def on(self) -> bool:
        """Whether spans are made."""
        return self._tracer is not None

    def record(
        self, stream: Stream, attributes: Mapping[str, Any], headers: Mapping[str, str]
    ) -> None:
        """The span of a stream; its parent is the client's span, where `headers` name one."""
        assert self._tracer is not None, "tracing is off"
        now_ns, now = time.time_ns(), time.monotonic()
        begun = now_ns - int((now - stream.created) * NANOSECONDS)
        ended = now_ns - int((now - stream.ended_at) * NANOSECONDS) if stream.ended_at else now_ns
        span = self._tracer.start_span(
            "torsor.stream",
            context=extract(dict(headers)),
            kind=SpanKind.SERVER,
            attributes={f"torsor.{k}": v for k, v in attributes.items() if v is not None},
            start_time=begun,
        )
        if attributes.get("error") is not None:
            span.set_status(Status(StatusCode.ERROR, attributes["error"]))
        span.end(end_time=ended)


def bento_tracing() -> Tracing:
    """Tracing as BentoML is configured; off where no exporter and rate are."""
    from bentoml._internal.configuration.containers import BentoMLContainer

    settings = BentoMLContainer.config.tracing.get()
    if not settings.get("exporter_type") or not settings.get("sample_rate"):
        return Tracing()
    return Tracing(BentoMLContainer.tracer_provider.get())
