"""Serving: `torsor serve` over HTTP and gRPC beside three usual ways to serve the same weights.

    python tests/bench/bench_serving.py [--quick] [--json FILE] [--device cuda]

| row        | what it is (peers/)                                                                |
|------------|------------------------------------------------------------------------------------|
| `http`     | `torsor serve`, `/v1/completions`, streamed                                        |
| `grpc`     | the same server, Generate                                                          |
| `fastapi`  | FastAPI and torch, each request a generator of its own, a character an event       |
| `litserve` | LitServe and torch, requests that arrive together as one batch of up to 64         |
| `bentoml`  | a plain BentoML service, one run of the bundle's graph a character                 |

All on this machine in one run, load too, from a process of its own (load.py), rounds in turns. The
best round counts: of characters per second by the clock, and of characters per CPU second of the
server, which other work on the machine disturbs least. Latencies are the median round's. Texts are
as long as a measurement of some seconds needs, so each way writes other lengths. First characters:
seconds from the request; gaps: between what arrives on one stream. `share` compares with the engine
without a network (engine_rate.py). Memory is read while 1,000 streams run and wait. While one
server is measured the others stand still. BentoML's share of the start is that of an empty service,
in CPU seconds. With --quick all servers start at once, which slows each.

On CUDA every server has the GPU, ours the form of `advance` without a loop; servers that stand
still keep their memory there. Figures per CPU second are then of what the CPU does beside it.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load import ALL_OPEN
from servers import KINDS, ROOT, Server, alone, missing, running, start, wait_ready
from where import Where, add_option, chosen, unrolled_copy

from serve.native.threads import run_threads
from serve.settings import SHIPPED, Settings

WAYS = {"http": "torsor", "grpc": "torsor"} | {n: n for n in ("fastapi", "litserve", "bentoml")}
TYPICAL = {  # characters a second: of one stream, of many; texts get their length by it
    "http": (15_000, 80_000),
    "grpc": (15_000, 80_000),
    "fastapi": (600, 800),
    "litserve": (600, 4_000),
    "bentoml": (800, 1_000),
}
TYPICAL_ENGINE = 100_000  # of the engine without a network; where it is slower, texts are shorter
SHORTEST = 16
STREAMS = (64, 1, 16, 256)
ENOUGH_S = 150.0  # after which no row is measured again
CLOCKS = "by the clock and per CPU second"
MODEL = "osm-rnn-shakespeare"
MANY = 64  # streams that the ratios are of
MEMORY_STREAMS = 1000
MEMORY_CHARACTERS = 20_000  # a stream; they are cut off before
MEMORY_LOOKS = 10
HERE = Path(__file__).parent

Figures = dict[str, float]
Page = dict[str, Any]


@dataclass(slots=True)
class Row:
    """The rounds of one way with one number of streams."""

    loads: list[Page] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)  # of the server, a round

    @property
    def rate(self) -> float:
        """Characters a second, the best round."""
        return max(float(load["characters"] / load["wall_s"]) for load in self.loads)

    @property
    def cpu_rate(self) -> float:
        """Characters a CPU second of the server, the best round."""
        pairs = zip(self.loads, self.cpu_s, strict=True)
        return max(float(load["characters"] / max(cpu, 0.01)) for load, cpu in pairs)

    def middle(self, name: str) -> list[float]:
        """Percentiles 50, 95 and 99, each the median of the rounds."""
        return [
            statistics.median(p) for p in zip(*(load[name] for load in self.loads), strict=True)
        ]


Rows = dict[tuple[str, int], Row]


NEWCOMERS = 20  # requests of one character while the streams of the timed runs go on


def main() -> None:
    """Print the tables, and write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="64 streams only, under 40 s")
    parser.add_argument("--json", type=Path, help="write the figures as one flat object")
    add_option(parser)
    options = parser.parse_args()
    where = chosen(parser, options.device)
    rounds = "3" if options.quick else "12"
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder, running() as servers:
        bundles = with_unrolled(where, Path(folder))
        model = str(bundles.get(MODEL, MODEL))
        sizes = ("--streams", str(MANY), "--rounds", rounds)
        at = ("--device", where.kind, "--model", model)
        engine = json.loads(script("engine_rate.py", *sizes, *at))
        served = tuple(bundles.values())
        found = start_all(Path(folder), servers, options.quick, where, served)
        print(where.line(kernels_of(found["torsor"]), run_threads(), CLOCKS))
        ours, empty = found["torsor"], found["empty"]
        figures["serving.ready_s"] = ours.ready_s
        figures["serving.ready_cpu_s"] = ours.ready_cpu_s
        figures["serving.ready_bentoml_share"] = empty.ready_cpu_s / ours.ready_cpu_s
        with alone(ours, servers):
            figures["serving.bytes_per_stream"] = memory_per_stream(ours)
        pace = min(1.0, engine["engine"] / TYPICAL_ENGINE)
        rows, ticks = measure(found, options.quick, pace)
    http = rows["http", MANY]
    figures["serving.first_character_ticks.s64"] = http.middle("newcomer_first_s")[0] / ticks
    figures["serving.burst_first_character_ticks.s64"] = http.middle("first_s")[0] / ticks
    tell_rows(rows)
    compare(rows, engine, figures)
    for name, value in figures.items():
        print(f"{name:50} {value:12,.3f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def with_unrolled(where: Where, folder: Path) -> dict[str, Path]:
    """What we serve by name: the models that ship with the form for CUDA; on the CPU as they are.

    There nothing is named, since that is what our server takes by itself.
    """
    if where.kind == "cpu":
        return {}
    shipped = sorted(path.parent for path in SHIPPED.glob("*/manifest.json"))
    return {path.name: unrolled_copy(path, folder / path.name) for path in shipped}


def kernels_of(server: Server) -> str:
    """What runs our operators on our server, in its own words."""
    models = json.loads(server.page("/readyz"))["models"]
    return ", ".join(sorted({str(model["kernels"]) for model in models}))


def start_all(
    folder: Path, servers: list[Server], quick: bool, where: Where, bundles: tuple[Path, ...]
) -> dict[str, Server]:
    """Every server that can be started here, by name."""
    kinds = {name: kind for name, kind in KINDS.items() if not missing(kind)}
    for name in KINDS.keys() - kinds.keys():
        print(missing(KINDS[name]))
    first = () if quick else ("empty", "torsor")  # the others would slow them
    found = dict[str, Server]()
    for batch in (*([name] for name in first), [name for name in kinds if name not in first]):
        fresh = [start(kinds[name], folder, where.kind, bundles) for name in batch]
        servers += fresh
        for server in fresh:
            wait_ready(server)
            found[server.kind.name] = server
    return found


def measure(found: dict[str, Server], quick: bool, pace: float) -> tuple[Rows, float]:
    """All rows, and our median tick with many streams (s)."""
    rows, ticks, seconds = Rows(), list[float](), pace * (1.5 if quick else 2.5)
    started = time.monotonic()
    ways = {way: found[name] for way, name in WAYS.items() if name in found}
    for streams in (MANY,) if quick else STREAMS:
        for turn in range(1 if quick else 3 if streams == MANY else 2):
            if turn and time.monotonic() > started + ENOUGH_S:
                break
            for way, server in ways.items():
                length = max(SHORTEST, round(seconds * TYPICAL[way][streams > 1] / streams))
                is_timed = way == "http" and streams == MANY
                with alone(server, found.values()):
                    before = buckets(server) if is_timed else {}
                    newcomers = NEWCOMERS if is_timed else 0
                    load, cpu = one_load(way, server, streams, length, newcomers)
                    ticks += [median_of(before, buckets(server))] if is_timed else []
                row = rows.setdefault((way, streams), Row())
                row.loads.append(load)
                row.cpu_s.append(cpu)
    return rows, statistics.median(ticks)


def one_load(
    way: str, server: Server, streams: int, length: int, newcomers: int = 0
) -> tuple[Page, float]:
    """One run of the load, and the CPU seconds that the server needed for it."""
    peer, port = (way, server.grpc_port) if way == "grpc" else (server.kind.name, server.port)
    before = server.cpu_s()
    sizes = ("--streams", str(streams), "--characters", str(length))
    late = ("--newcomers", str(newcomers))
    load = json.loads(script("load.py", peer, str(port), *sizes, *late))
    return load, server.cpu_s() - before


def script(name: str, *arguments: str) -> str:
    """What a script of this folder prints."""
    done = subprocess.run(
        [sys.executable, str(HERE / name), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name} {' '.join(arguments)}: {done.stderr[-2000:]}")
    return done.stdout


def buckets(server: Server) -> dict[float, float]:
    """Upper bound in seconds: ticks so far that were no longer, from /metrics."""
    pattern = r'^torsor_tick_seconds_bucket\{le="([^"]+)"\} (\S+)'
    found = re.findall(pattern, server.page("/metrics"), re.MULTILINE)
    return {float(bound): float(count) for bound, count in found}


def median_of(before: dict[float, float], after: dict[float, float]) -> float:
    """The median in seconds of what a histogram has counted between, straight inside a bucket."""
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    half, low, below = max(counts.values()) / 2, 0.0, 0.0
    for bound, count in counts.items():
        if count >= half:
            return low + (bound - low) * (half - below) / max(count - below, 1.0)
        low, below = bound, count
    return low


def memory_per_stream(server: Server) -> float:
    """Bytes that the server grows by, over the number of streams that are open at once.

    What the runtime keeps of its first full batch is the server's, not a stream's.
    """
    one_load("http", server, Settings().max_streams, 256)
    before, most = server.resident(), 0
    sizes = ("--streams", str(MEMORY_STREAMS), "--characters", str(MEMORY_CHARACTERS))
    load = subprocess.Popen(
        [sys.executable, str(HERE / "load.py"), "torsor", str(server.port), *sizes],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert load.stderr is not None
    try:
        if load.stderr.readline().strip() != ALL_OPEN:
            raise RuntimeError(f"found {load.stderr.read()[-2000:]}, expected {ALL_OPEN!r}")
        for _ in range(MEMORY_LOOKS):
            most = max(most, server.resident())
            time.sleep(0.1)
    finally:
        load.kill()
        load.communicate()
    while num_streams(server):
        time.sleep(0.1)
    return (most - before) / MEMORY_STREAMS


def num_streams(server: Server) -> int:
    """Streams that run or wait, from /metrics."""
    found = re.findall(r"^torsor_streams_(?:running|waiting) (\S+)", server.page("/metrics"), re.M)
    return round(sum(map(float, found)))


def tell_rows(rows: Rows) -> None:
    """The table: milliseconds, characters, and CPU milliseconds per 1,000 characters."""
    print(f"{'':28} {'cpu ms per 1000':>15} {'first character, ms':>20} {'gap, ms':>18}")
    print(
        f"{'way':8} {'streams':>7} {'chars/s':>10} {'server':>8} {'load':>6} "
        f"{'p50':>6} {'p95':>6} {'p99':>6} {'p50':>6} {'p95':>5} {'p99':>5} {'chars/event':>11}"
    )
    for (way, streams), row in sorted(rows.items(), key=lambda item: item[0][1]):
        first, gap = ([1000 * s for s in row.middle(name)] for name in ("first_s", "gap_s"))
        load_cpu = min(1e6 * load["cpu_s"] / load["characters"] for load in row.loads)
        event = statistics.median(load["characters_per_event"] for load in row.loads)
        print(
            f"{way:8} {streams:7} {row.rate:10,.0f} {1e6 / row.cpu_rate:8.1f} {load_cpu:6.1f} "
            f"{first[0]:6.0f} {first[1]:6.0f} {first[2]:6.0f} "
            f"{gap[0]:6.1f} {gap[1]:5.0f} {gap[2]:5.0f} {event:11.1f}"
        )


def compare(rows: Rows, engine: Figures, figures: Figures) -> None:
    """The ratios at 64 streams, by the clock and by the server's CPU."""
    http, grpc = rows["http", MANY], rows["grpc", MANY]
    names = {"fastapi": "fastapi_torch", "litserve": "litserve", "bentoml": "bentoml_step"}
    peers = {names[w]: row for (w, n), row in rows.items() if n == MANY and w in names}
    for name, row in peers.items():
        figures[f"serving.http_over_{name}.s64"] = http.rate / row.rate
        figures[f"serving.http_over_{name}_per_cpu_s.s64"] = http.cpu_rate / row.cpu_rate
    figures["serving.grpc_over_best_peer.s64"] = grpc.rate / max(r.rate for r in peers.values())
    figures["serving.share_of_engine.s64"] = http.rate / engine["engine"]
    figures["serving.share_of_engine_per_cpu_s.s64"] = http.cpu_rate / engine["engine_cpu"]
    figures["engine.share_of_advance.b64"] = engine["share_cpu"]
    figures["engine.characters_per_s.b64"] = engine["engine"]


if __name__ == "__main__":
    main()
