"""What the server measures of sweeps, as Prometheus reads it."""

from collections.abc import Mapping

from prometheus_client import Counter, Gauge

_sweeps = Gauge(
    "torsor_sweeps", "Sweeps that are queued or running", ["state"], multiprocess_mode="mostrecent"
)
_points = Counter("torsor_sweep_points_total", "Points of sweeps that are done", ["result"])


def observe(count: Mapping[str, int]) -> None:
    """So many sweeps are in each state."""
    for state, number in count.items():
        _sweeps.labels(state).set(number)


def count_point(good: bool) -> None:
    """One more point is done."""
    _points.labels("measured" if good else "failed").inc()
