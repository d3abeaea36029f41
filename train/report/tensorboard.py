"""A run's measurements as TensorBoard event files, of runs with `tensorboard` on.

| recorded                       | there                                       |
|--------------------------------|---------------------------------------------|
| number                         | scalar under its name                       |
| `step_angles`, other lists     | scalars NAME/0, NAME/1, ..., in their order |
| `sample`, other texts          | text under its name, set as it was written  |

A resumed run adds a file to the same folder. Its first event tells TensorBoard to forget what an
earlier file holds from that iteration on, so nothing is shown twice.
"""

import importlib
import os
from pathlib import Path
from typing import Any

from train.run_folder import EVENTS

FLUSH_S = 10  # between writes to the disk


class EventLog:
    """The event files in a run's folder; a file is opened by the first measurement."""

    def __init__(self, run: Path) -> None:
        try:
            self._library = importlib.import_module("tensorboardX")
        except ImportError:
            raise ValueError(
                "tensorboard: found no package tensorboardX, expected the tensorboard extra: "
                "pip install 'torsor[tensorboard]'"
            ) from None
        self._folder, self._writer = run / EVENTS, None

    def write(self, iteration: int, values: dict[str, Any]) -> None:
        """Add the measurements of an iteration."""
        writer = self._writer or self._open(iteration)
        for name, value in values.items():
            if isinstance(value, str):
                writer.add_text(name, _verbatim(value), iteration)
            elif isinstance(value, list):
                for i, number in enumerate(value):
                    writer.add_scalar(f"{name}/{i}", number, iteration)
            else:
                writer.add_scalar(name, value, iteration)

    def close(self) -> None:
        """Write what is left to the disk."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, iteration: int) -> Any:
        # The library names files by the second; a run may be resumed within one.
        self._writer = self._library.SummaryWriter(
            str(self._folder),
            purge_step=iteration,
            flush_secs=FLUSH_S,
            filename_suffix=f".{iteration}.{os.getpid()}",
        )
        return self._writer


def _verbatim(text: str) -> str:
    """As Markdown that shows a text as it is."""
    return "\n".join("    " + line for line in text.split("\n"))
