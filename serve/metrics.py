"""Metrics of the server and of sweeps, for Prometheus.

Plain prometheus_client; `serve.bento.metrics` serves it. Observed once a tick or a stream, never
once a character. A stream that its client left counts in torsor_streams_total with reason
"cancelled".
"""

from collections.abc import Mapping

from prometheus_client import Counter, Gauge, Histogram

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_WAITS = (*_FAST, 30.0, 60.0, 180.0)  # to the limits of a stream
_LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)

# There is one worker, so the newest value is the value; a sum would keep those of dead workers.
_running = Gauge(
    "torsor_streams_running", "Streams that hold a slot", multiprocess_mode="mostrecent"
)
_waiting = Gauge("torsor_streams_waiting", "Streams that wait", multiprocess_mode="mostrecent")
_background = Gauge(
    "torsor_streams_background",
    "Streams of sweeps, waiting or running",
    multiprocess_mode="mostrecent",
)
_requests = Counter(
    "torsor_requests_total",
    "Requests answered, by what answered and how",
    ["wire", "route", "status"],
)
_request = Histogram(
    "torsor_request_seconds", "A request, to its last byte", ["wire", "route"], buckets=_LONG
)
_finished = Counter("torsor_streams_total", "Streams that ended, by how", ["model", "reason"])
_errors = Counter("torsor_errors_total", "Streams that ended in an error, by code", ["code"])
_prompt = Counter("torsor_prompt_characters_total", "Characters that clients gave", ["model"])
_written = Counter("torsor_written_characters_total", "Characters that models wrote", ["model"])
_trials = Counter(
    "torsor_trials_total", "Trials that models of tasks were taken through", ["model"]
)
_refused = Counter("torsor_refused_total", "Requests refused at the gate, by code", ["code"])
_sessions = Gauge(
    "torsor_ablation_sessions", "Sessions of ablated models kept", multiprocess_mode="mostrecent"
)
_sessions_bytes = Gauge(
    "torsor_ablation_sessions_bytes", "Of these sessions, about", multiprocess_mode="mostrecent"
)
_sessions_made = Counter("torsor_ablation_sessions_made_total", "Sessions of ablated models made")
_fill = Histogram(
    "torsor_batch_fill", "Rows of a run over the slots that it may take", buckets=_SHARES
)
_tick = Histogram("torsor_tick_seconds", "One pass of the engine", buckets=_FAST)
_queue = Histogram("torsor_queue_seconds", "From arrival to a slot", buckets=_WAITS)
_first = Histogram("torsor_first_character_seconds", "Arrival to first character", buckets=_WAITS)
_between = Histogram(
    "torsor_inter_character_seconds", "Mean time between a stream's characters", buckets=_FAST
)


_cache_asked = Counter("torsor_state_cache_queries_total", "Prompts looked up in the cache")
_cache_hits = Counter("torsor_state_cache_hits_total", "Prompts whose beginning was known")
_cache_reused = Counter("torsor_state_cache_characters_total", "Characters that were not run again")
_cache_bytes = Gauge(
    "torsor_state_cache_bytes", "Of the states that are kept", multiprocess_mode="mostrecent"
)


def observe_tick(seconds: float, num_running: int, num_waiting: int, num_background: int) -> None:
    """One pass of the engine has ended."""
    _tick.observe(seconds)
    _running.set(num_running)
    _waiting.set(num_waiting)
    _background.set(num_background)


def reset_streams() -> None:
    """No stream is here: the engine has just started."""
    _running.set(0)
    _waiting.set(0)
    _background.set(0)
    _sessions.set(0)
    _sessions_bytes.set(0)


def observe_fill(share: float) -> None:
    """A run has taken this share of the rows that it could have."""
    _fill.observe(share)


def count_trials(model: str, num_trials: int) -> None:
    """A model was taken through so many trials."""
    _trials.labels(model).inc(num_trials)


def count_refused(code: str) -> None:
    """A request was refused for its API key."""
    _refused.labels(code).inc()


def observe_sessions(num_kept: int, num_bytes: int, num_made: int) -> None:
    """Sessions of ablated models: how many are kept, in how much, how many were just made."""
    _sessions.set(num_kept)
    _sessions_bytes.set(num_bytes)
    _sessions_made.inc(num_made)


def observe_cache(num_bytes: int) -> None:
    """The cache of states holds so much."""
    _cache_bytes.set(num_bytes)


def count_request(wire: str, route: str, status: str | int | None, seconds: float) -> None:
    """A request has been answered, or its client has left (status None)."""
    _requests.labels(wire, route, status or "left").inc()
    _request.labels(wire, route).observe(seconds)


def observe_queue(seconds: float) -> None:
    """A stream got its slot."""
    _queue.observe(seconds)


def count_stream(
    model: str,
    reason: str,
    *,
    num_prompt: int,
    num_written: int,
    asks_cache: bool,
    num_reused: int,
    error_code: str | None,
) -> None:
    """A stream has ended; `num_reused` characters of its prompt came from the cache of states."""
    _finished.labels(model, reason).inc()
    _prompt.labels(model).inc(num_prompt)
    _written.labels(model).inc(num_written)
    if asks_cache:
        _cache_asked.inc()
    if num_reused:
        _cache_hits.inc()
        _cache_reused.inc(num_reused)
    if error_code is not None:
        _errors.labels(error_code).inc()


def observe_pace(first_s: float, between_s: float | None) -> None:
    """A stream's first character came so late, and the others so far apart, on average."""
    _first.observe(first_s)
    if between_s is not None:
        _between.observe(between_s)


_sweeps = Gauge(
    "torsor_sweeps", "Sweeps that are queued or running", ["state"], multiprocess_mode="mostrecent"
)
_points = Counter("torsor_sweep_points_total", "Points of sweeps that are done", ["result"])


def observe_sweeps(count: Mapping[str, int]) -> None:
    """So many sweeps are in each state."""
    for state, number in count.items():
        _sweeps.labels(state).set(number)


def count_point(good: bool) -> None:
    """One more point is done."""
    _points.labels("measured" if good else "failed").inc()
