"""What a session of an ablated model is taken to cost in memory.

    1.5 MiB of the runtime's own + the edited weights + all weights twice + the page of the edits

All weights twice: as the runtime loads them, and as it packs them for its products.
tests/bench/session_memory.py measures what sessions really take. The estimate must not be below it.
"""

import json
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

RUNTIME_BYTES = 3 << 19  # graph, kernels and what the allocator can't give back
PAGE_FACTOR = 4  # bytes that Python takes for a character of JSON


def session_bytes(edited: Arrays, weights: Arrays, removed: Any) -> int:
    """The estimate, for edits that removed what the page `removed` says."""
    page = PAGE_FACTOR * len(json.dumps(removed))
    return RUNTIME_BYTES + _size(edited) + 2 * _size(weights) + page


def _size(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())
