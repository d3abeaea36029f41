"""The state table: one row, a slot, for every running stream of a bundle.

Letters: S slots.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class StateTable:
    """State tensors (S, ...) and which rows are free. A free row holds zeros."""

    def __init__(self, initial: dict[str, Array], num_slots: int) -> None:
        self.num_slots, self._initial = num_slots, initial
        self._tables = {
            name: np.zeros((num_slots, *value.shape), value.dtype)
            for name, value in initial.items()
        }
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Slots that no stream holds."""
        return len(self._free)

    def acquire(self, initial: dict[str, Array] | None = None) -> int:
        """A free slot, holding the state of a fresh stream: what `initial` says, or the table's."""
        slot = self._free.pop()
        self.put(slot, self._initial | (initial or {}))
        return slot

    def release(self, slot: int) -> None:
        """Zero a slot and free it: no stream ever sees another's state."""
        for table in self._tables.values():
            table[slot] = 0
        self._free.append(slot)

    def gather(self, slots: Sequence[int]) -> dict[str, Array]:
        """Copies of rows: the state inputs of a run."""
        rows = _index(slots)
        tables = self._tables.items()
        if isinstance(rows, slice):
            return {f"state.{name}": table[rows].copy() for name, table in tables}
        return {f"state.{name}": table[rows] for name, table in tables}

    def scatter(self, slots: Sequence[int], outputs: dict[str, Array]) -> None:
        """Put the state outputs of a run back into their rows."""
        rows = _index(slots)
        for name, table in self._tables.items():
            table[rows] = outputs[f"next.{name}"]

    def put(self, slot: int, rows: dict[str, Array]) -> None:
        """Set one slot's state."""
        for name, table in self._tables.items():
            table[slot] = rows[name]

    def rows(self, slot: int) -> dict[str, Array]:
        """Copies of one slot's state."""
        return {name: table[slot].copy() for name, table in self._tables.items()}


def _index(slots: Sequence[int]) -> slice | NDArray[np.int64]:
    """Rows as an index; neighbours in order as a slice, which is several times faster."""
    first, last = slots[0], slots[0] + len(slots)
    return slice(first, last) if list(slots) == list(range(first, last)) else np.array(slots)
