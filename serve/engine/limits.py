"""Limits of one engine, and the streams that have taken too long."""

from dataclasses import dataclass

from serve.engine.stream import Life, Stream
from serve.wire.errors import RequestError
from serve.wire.limits import UNREAD_TIMEOUT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What one engine takes on."""

    max_streams: int = 256  # running at once, per bundle
    max_waiting: int = 1024  # queued
    max_held_characters: int = 32_000_000  # of the prompts of all that wait or run
    max_background: int = 8  # streams of sweeps running at once, per bundle, in slots of their own
    max_queued_background: int = 64  # of them queued
    queue_timeout_s: float = 30.0  # from arrival to a slot
    first_timeout_s: float = 180.0  # from the slot to the first written character
    total_timeout_s: float = 600.0  # from arrival to the last character
    unread_timeout_s: float = (
        UNREAD_TIMEOUT_S  # that a stream rests because its client doesn't read
    )
    state_cache_bytes: int = 64 << 20  # of states after the beginnings of prompts
    ablation_cache_bytes: int = 256 << 20  # of sessions of ablated models


def overdue(stream: Stream, limits: EngineLimits, now: float) -> RequestError | None:
    """Why a stream must end now, by the name of the limit; None if it needn't.

    A background stream waits for its turn as long as live ones need: only its reader can be late.
    """
    late = None if stream.background else _late(stream, limits, now)
    return late or _unread(stream, limits, now)


def _late(stream: Stream, limits: EngineLimits, now: float) -> RequestError | None:
    age = now - stream.created
    if stream.life is Life.WAITING and age > limits.queue_timeout_s:
        return RequestError(
            "timeout",
            f"waited {age:.1f} s for a slot, expected at most "
            f"{limits.queue_timeout_s} s (queue_timeout_s); try again later",
        )
    if age > limits.total_timeout_s:
        return RequestError(
            "timeout",
            f"ran for {age:.1f} s, expected at most "
            f"{limits.total_timeout_s} s (total_timeout_s); ask for less text",
        )
    is_to_write = not stream.first_at and stream.admitted_at and stream.max_tokens
    if is_to_write and (since := now - stream.admitted_at) > limits.first_timeout_s:
        return RequestError(
            "timeout",
            f"wrote nothing in the first {since:.1f} s in its slot, expected at most "
            f"{limits.first_timeout_s} s (first_timeout_s); shorten the prompt",
        )
    return None


def _unread(stream: Stream, limits: EngineLimits, now: float) -> RequestError | None:
    rested = now - stream.resting_since if stream.resting_since else 0.0
    if rested > limits.unread_timeout_s:
        return RequestError(
            "timeout",
            f"{stream.num_unread} characters were left unread for {rested:.1f} s, expected "
            f"at most {limits.unread_timeout_s} s (unread_timeout_s); read faster",
        )
    return None
