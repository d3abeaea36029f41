"""Characters per second of the engine without a network, and of bare runs of `advance`.

    python tests/bench/engine_rate.py [--streams 64] [--rounds 3] [--device cuda]

In a process of its own, so that nothing else has started threads there. Prints one JSON object:
characters per second by the clock (`engine`, `advance`) and per CPU second (`engine_cpu`,
`advance_cpu`), the best of the rounds; and what the engine reaches of the bare runs that follow it
(`share`, `share_cpu`), the median of the rounds, since a shared machine's clock changes by a third
within seconds. Both run as many threads as a server does here. The streams are read as often as a
server reads them.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from serve.engine.engine import Engine
from serve.engine.limits import EngineLimits
from serve.engine.stream import Stream
from serve.native.threads import run_threads
from serve.queries.generate import FLUSH_S
from serve.runtime.bundle import Bundle
from serve.runtime.session import choose_device
from serve.settings import SHIPPED

MODEL = "osm-rnn-shakespeare"


@dataclass(frozen=True, slots=True)
class Rate:
    """Characters in seconds by the clock and of CPU."""

    characters: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Characters per second by the clock."""
        return self.characters / self.wall_s

    @property
    def cpu_rate(self) -> float:
        """Characters per CPU second."""
        return self.characters / self.cpu_s


def main() -> int:
    """Measure both in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--characters", type=int, default=1024, help="a stream and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default=MODEL, help="one that ships, or a bundle's folder")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    bundle = Bundle(SHIPPED / options.model, choose_device(options.device, run_threads()))
    engine_runs, advance_runs = list[Rate](), list[Rate]()
    for _ in range(options.rounds + 1):  # the first one warms up
        engine_runs.append(engine_run(bundle, options.streams, options.characters))
        advance_runs.append(advance_run(bundle, options.streams, options.characters))
    figures = {}
    for name, runs in (("engine", engine_runs[1:]), ("advance", advance_runs[1:])):
        figures[name] = max(run.rate for run in runs)
        figures[f"{name}_cpu"] = max(run.cpu_rate for run in runs)
    pairs = list(zip(engine_runs[1:], advance_runs[1:], strict=True))
    figures["share"] = median(ours.rate / bare.rate for ours, bare in pairs)
    figures["share_cpu"] = median(ours.cpu_rate / bare.cpu_rate for ours, bare in pairs)
    print(json.dumps(figures))
    return 0


def engine_run(bundle: Bundle, num_streams: int, characters: int) -> Rate:
    """Streams that the engine runs while somebody reads them."""
    engine = Engine([bundle], EngineLimits(max_streams=num_streams))
    streams = [
        Stream(
            bundle, bundle.plain.session, np.empty(0, np.int64), max_tokens=characters, seed=index
        )
        for index in range(num_streams)
    ]

    def read() -> float:
        engine.start()
        engine.submit(streams)
        reading = list(streams)
        while reading:
            time.sleep(FLUSH_S)
            reading = [stream for stream in reading if not stream.collect()[1]]
        return max(stream.ended_at for stream in streams)

    rate = timed(read, num_streams * characters)
    engine.stop()
    return rate


def advance_run(bundle: Bundle, num_streams: int, characters: int) -> Rate:
    """The same characters by bare runs: the state goes from one to the next."""
    B, K, V = num_streams, bundle.manifest.graph.max_steps, len(bundle.manifest.vocabulary)
    states = {f"state.{n}": np.repeat(v[None], B, axis=0) for n, v in bundle.initial.items()}
    feeds = {
        "position": np.zeros(B, np.int64),
        "forced": np.full((K, B), -1),
        "num_steps": np.full(B, K),
        "uniform": np.random.default_rng(0).random((K, B), np.float32),
        "temperature": np.ones(B, np.float32),
        "top_k": np.zeros(B, np.int64),
        "top_p": np.ones(B, np.float32),
        "bias": np.zeros((B, V), np.float32),
        **states,
    }
    session, runs = bundle.plain.session, characters // K

    def advance() -> float:
        for _ in range(runs):
            outputs = session.run(feeds)
            feeds.update({name: outputs["next." + name.partition(".")[2]] for name in states})
            feeds["position"] = feeds["position"] + K
        return time.monotonic()

    return timed(advance, B * K * runs)


def timed(work: Callable[[], float], characters: int) -> Rate:
    """How long a piece of work takes, which says when it was done."""
    cpu, wall = time.process_time(), time.monotonic()
    return Rate(characters, work() - wall, time.process_time() - cpu)


if __name__ == "__main__":
    sys.exit(main())
