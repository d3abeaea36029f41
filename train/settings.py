"""The settings of a training run."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

MOST = {
    "iterations": 10**9,
    "window": 65_536,
    "batch": 65_536,
    "valid_every": 10**9,
    "checkpoint_every": 10**9,
    "threads": 1024,
}
OF_TEXTS = ("task", "text")  # an option with this in its metadata acts with --task text only


def check_range(name: str, found: int, least: int, most: int) -> None:
    """Raise `ValueError` unless least <= found <= most."""
    if found < least:
        raise ValueError(f"{name}: found {found}, expected at least {least}")
    if found > most:
        raise ValueError(f"{name}: found {found}, expected at most {most}")


def check_choices(config: Any) -> None:
    """Raise `ValueError` unless every field with choices in its metadata has one of them."""
    for known in dataclasses.fields(config):
        choices, found = known.metadata.get("choices", ()), getattr(config, known.name)
        if choices and found not in choices:
            few = len(choices) == 2
            expected = " or ".join(map(repr, choices)) if few else f"one of {', '.join(choices)}"
            raise ValueError(f"{known.name}: found {found!r}, expected {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to train; every field is a command-line option."""

    task: str = field(default="text", metadata={"help": "what to learn"})
    data: str = field(
        default="shakespeare",
        metadata={
            "help": "text to learn: shakespeare, ptb, python-docs, or text files and folders of "
            "them, one corpus in the order given",
            "only": OF_TEXTS,
            "several": True,
        },
    )
    symbols: str = field(
        default="characters",
        metadata={
            "help": "what a text is made of",
            "choices": ("characters", "bytes"),
            "only": OF_TEXTS,
        },
    )
    iterations: int = field(default=4000, metadata={"help": "optimiser updates"})
    window: int = field(
        default=64, metadata={"help": "characters of text a gradient looks back", "only": OF_TEXTS}
    )
    batch: int = field(default=32, metadata={"help": "windows or trials per iteration"})
    learning_rate: float = field(default=0.015, metadata={"help": "peak"})
    schedule: str = field(
        default="one-cycle",
        metadata={
            "help": "one-cycle moves the momentum too, cosine starts from 0 and leaves it",
            "choices": ("one-cycle", "cosine"),
        },
    )
    weight_decay: float = field(default=0.0, metadata={"help": "AdamW's, on matrices"})
    weight_dropout: float = field(
        default=0.0, metadata={"help": "share of the weights' entries left out of an iteration"}
    )
    clip: float = field(default=1.0, metadata={"help": "largest norm of the gradient"})
    warm_up: float = field(default=0.1, metadata={"help": "share of iterations before the peak"})
    seed: int = field(default=0, metadata={"help": "of parameters, windows and samples"})
    valid_every: int = field(default=500, metadata={"help": "iterations between validations"})
    checkpoint_every: int = field(default=500, metadata={"help": "iterations between checkpoints"})
    threads: int = field(default=1, metadata={"help": "CPU threads; small models want one"})
    device: str = field(default="cpu", metadata={"help": "where", "choices": ("cpu", "cuda")})
    precision: str = field(
        default="float32",
        metadata={
            "help": "of matrix products: tf32 is CUDA's; bf16 leaves groups and recurrences exact",
            "choices": ("float32", "tf32", "bf16"),
        },
    )
    tensorboard: str = field(
        default="off",
        metadata={"help": "event files in OUT/tensorboard too", "choices": ("off", "on")},
    )

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            check_range(name, getattr(self, name), 1, most)
        for name in ("learning_rate", "clip"):
            if not 0.0 < (found := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: found {found}, expected a positive number")
        check_choices(self)
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError("precision: found 'tf32' with --device cpu, expected --device cuda")
        if not 0.0 <= self.weight_dropout < 1.0:
            raise ValueError(f"weight_dropout: found {self.weight_dropout}, expected 0 to below 1")
        if not 0.0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay: found {self.weight_decay}, expected 0 or more")
        if not 0.0 <= self.warm_up < 1.0:
            raise ValueError(f"warm_up: found {self.warm_up}, expected a share below 1")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: found {self.seed}, expected 0 to 2^63 - 1")
