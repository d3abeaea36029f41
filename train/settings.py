"""The settings of a training run."""

import math
from dataclasses import dataclass, field

MOST = {
    "iterations": 10**9,
    "window": 65_536,
    "batch": 65_536,
    "valid_every": 10**9,
    "checkpoint_every": 10**9,
    "threads": 1024,
}


def check_range(name: str, found: int, least: int, most: int) -> None:
    """Raise `ValueError` unless least <= found <= most."""
    if found < least:
        raise ValueError(f"{name}: found {found}, expected at least {least}")
    if found > most:
        raise ValueError(f"{name}: found {found}, expected at most {most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to train; every field is a command-line option."""

    data: str = field(
        default="shakespeare", metadata={"help": "shakespeare, python-docs, or a UTF-8 file"}
    )
    iterations: int = field(default=4000, metadata={"help": "optimiser updates"})
    window: int = field(default=64, metadata={"help": "characters a gradient looks back"})
    batch: int = field(default=32, metadata={"help": "windows per iteration"})
    learning_rate: float = field(default=0.015, metadata={"help": "peak of the cycle"})
    weight_decay: float = field(default=0.0, metadata={"help": "AdamW's, on matrices"})
    clip: float = field(default=1.0, metadata={"help": "largest norm of the gradient"})
    warm_up: float = field(default=0.1, metadata={"help": "share of iterations before the peak"})
    seed: int = field(default=0, metadata={"help": "of parameters, windows and samples"})
    valid_every: int = field(default=500, metadata={"help": "iterations between validations"})
    checkpoint_every: int = field(default=500, metadata={"help": "iterations between checkpoints"})
    threads: int = field(default=1, metadata={"help": "CPU threads; small models want one"})

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            check_range(name, getattr(self, name), 1, most)
        for name in ("learning_rate", "clip"):
            if not 0.0 < (found := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: found {found}, expected a positive number")
        if not 0.0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay: found {self.weight_decay}, expected 0 or more")
        if not 0.0 <= self.warm_up < 1.0:
            raise ValueError(f"warm_up: found {self.warm_up}, expected a share below 1")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: found {self.seed}, expected 0 to 2^63 - 1")
