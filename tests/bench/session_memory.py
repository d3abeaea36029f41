"""What an ablated session really takes in memory, beside what the server takes it to.

    python tests/bench/session_memory.py [BUNDLE] [--sessions 100] [--streams 256]

In a process of its own, since memory that was freed before hides what is taken; what is freed isn't
given back, so the more sessions, the truer. Every weight that can be edited is. Prints one JSON
object of KiB a session: `made`, after all were made; `used`, after that many streams wrote 48
characters on each; `estimate`, by serve/runtime/session.py.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]

from serve.engine.engine import Engine
from serve.engine.limits import EngineLimits
from serve.engine.stream import Stream
from serve.runtime.bundle import Bundle
from serve.runtime.session import Session, choose_device, session_bytes
from serve.settings import SHIPPED


def main() -> int:
    """Make sessions, use them, and look at the resident memory in between."""
    parser = argparse.ArgumentParser(description=__doc__)
    folder = SHIPPED / "osm-rnn-shakespeare"
    parser.add_argument("bundle", nargs="?", type=Path, default=folder)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--streams", type=int, default=256)
    options = parser.parse_args()
    bundle = Bundle(options.bundle, choose_device("cpu", 1))
    use(bundle, bundle.plain.session, options.streams)
    use(bundle, ablated(bundle, 1.5), options.streams)  # what the first one costs is no session's
    before = resident()
    sessions = [ablated(bundle, 1 - 1e-4 * i) for i in range(1, options.sessions + 1)]
    made = resident()
    for session in sessions:
        use(bundle, session, options.streams)
    used = resident()
    edited = {name: bundle.weights[name] for name in targets(bundle)}
    page = {
        "model": bundle.name,
        "made": (made - before) / options.sessions,
        "used": (used - before) / options.sessions,
        "estimate": session_bytes(edited, bundle.weights, []) / 1024,
    }
    print(json.dumps({k: v if isinstance(v, str) else round(v) for k, v in page.items()}))
    return 0


def ablated(bundle: Bundle, factor: float) -> Session:
    """A session whose every weight that can be edited is scaled."""
    edited = {n: np.asarray(bundle.weights[n] * np.float32(factor)) for n in targets(bundle)}
    return Session(bundle.files, bundle.manifest, bundle.device, edited)


def targets(bundle: Bundle) -> set[str]:
    """Names of the weights that can be edited."""
    return {target.weight for target in bundle.manifest.targets}


def use(bundle: Bundle, session: Session, num_streams: int) -> None:
    """Run streams on a session to their end."""
    engine = Engine([bundle], EngineLimits(max_streams=num_streams, state_cache_bytes=0))
    forced = np.zeros(1, np.int64)
    engine.submit(
        [Stream(bundle, session, forced, max_tokens=48, seed=i) for i in range(num_streams)]
    )
    while engine.tick():
        pass


def resident() -> float:
    """Resident memory of this process, KiB."""
    found: int = psutil.Process().memory_info().rss
    return found / 1024


if __name__ == "__main__":
    sys.exit(main())
