"""What a session of an ablated model is taken to cost in memory.

    2 MiB of the runtime's own + the edited weights + all weights twice + the page of the edits

All weights twice: as the runtime loads them, and as it packs them for its products.
tests/bench/session_memory.py measures what sessions really take: of the bundles that ship, about
1.1 MiB when they are made and up to 2.3 MiB once 256 streams have run on them, where the estimate
is 3.2 MiB. It is too low by up to a half only for windows of small models under that many streams.
"""

import json
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

RUNTIME_BYTES = 2 << 20  # graph, kernels and what the allocator can't give back
PAGE_FACTOR = 4  # bytes that Python takes for a character of JSON


def session_bytes(edited: Arrays, weights: Arrays, removed: Any) -> int:
    """The estimate, for edits that removed what the page `removed` says."""
    page = PAGE_FACTOR * len(json.dumps(removed))
    return RUNTIME_BYTES + _size(edited) + 2 * _size(weights) + page


def _size(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())
