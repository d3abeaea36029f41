"""What a sweep may be asked to do, checked by the server's own rules before sending."""

from typing import Any, TypedDict

from clients.options import Ablation, checked_body
from serve.wire.queries import SweepRequest


class SweepOptions(TypedDict, total=False):
    """Options of `sweeps.start`."""

    model: str | None  # left out: the first that the query fits
    query: str | None  # "score" (of `text`) or "trials" (the bundle's own)
    text: str | None
    unknown: str | None  # characters outside the vocabulary: "error", "skip" or "replace"
    ablations: list[Ablation] | None  # the first points
    grid: dict[str, Any] | None  # {"edits": [...], "axes": {"alpha": [0.85, 0.9]}}
    controls: int | None  # random ablations of the same mass beside each point
    seed: int | None  # of the first control


def sweep_body(options: SweepOptions) -> dict[str, Any]:
    """The request of `sweeps.start`, as JSON; TypeError for an option that doesn't exist."""
    names = SweepOptions.__annotations__
    if unknown := [name for name in options if name not in names]:
        raise TypeError(f"found option {unknown[0]!r}, expected any of: {', '.join(names)}")
    return checked_body(SweepRequest, dict(options))
