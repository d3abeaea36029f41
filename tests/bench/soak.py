"""A long mixed load on a real server: does its memory stay, and does every answer stay right?

    python tests/bench/soak.py --minutes 20

Streams, whole texts, pairs, ablations, scores, bad requests and gRPC calls, many of them given up:
before their slot, in the prompt, and in the text. A text must be the same whenever its seed comes
again, whatever else runs. Resident memory is read every few seconds; the first third is warm-up.
Prints what has been done and the slope of memory, and ends with 1 if an answer was not as expected,
memory grows by more than --growth MiB a minute, a slot is not given back, or the server does not
stop cleanly.
"""

import argparse
import asyncio
import collections
import contextlib
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
from servers import KINDS, Server, running, start, wait_ready
from soak_deeds import DEEDS, Deed, Tester, ablations

WORKERS = 12
SAMPLE_S = 2.0
WINDOWS = 10
EMPTY_S = 20.0  # after the last request, for slots to be free
MIB = 1 << 20


@dataclass(slots=True)
class Watch:
    """Resident memory of the server over time."""

    seconds: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def slope(self) -> float:
        """MiB a minute after the first third: a line through the least of each of ten spans.

        What is held for a moment, such as a long prompt, comes and goes.
        """
        first = len(self.seconds) // 3
        window = max(1, (len(self.bytes) - first) // WINDOWS)
        starts = range(first, len(self.bytes) - window + 1, window)
        least = np.array([min(self.bytes[i : i + window]) for i in starts])
        line = np.polyfit(np.array([self.seconds[i] for i in starts]), least, 1)
        return float(line[0]) * 60 / MIB


def main() -> int:
    """Start a server, load it, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--growth", type=float, default=1.0, help="MiB a minute that are too many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=DEEDS, default=list(DEEDS), help="deeds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running() as servers:
        server = start(KINDS["torsor"], Path(folder))
        servers.append(server)
        wait_ready(server)
        problems = asyncio.run(soak(server, options))
        server.process.terminate()
        if code := server.process.wait(60):
            problems.append(f"the server ended with {code}, expected 0")
        if "Traceback" in (log := server.log.read_text(errors="replace")):
            problems.append("the log holds a traceback: " + log[log.index("Traceback") :][:1500])
    print("\n".join(["", *problems]) if problems else "nothing is off")
    return int(bool(problems))


async def soak(server: Server, options: argparse.Namespace) -> list[str]:
    """The load, from warm-up to empty; what was off."""
    watch, done, problems = Watch(), collections.Counter[str](), list[str]()
    timeout = httpx.Timeout(120.0)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{server.port}", timeout=timeout
    ) as web:
        tester = Tester(web, f"127.0.0.1:{server.grpc_port}")
        for ablation in ablations():  # the cache of sessions is full before memory counts
            await tester.whole(np.random.default_rng(0), ablation)
        until = time.monotonic() + 60 * options.minutes
        watching = asyncio.create_task(sample(server, watch, done))
        generators = [np.random.default_rng([options.seed, i]) for i in range(WORKERS)]
        deeds = {name: DEEDS[name] for name in options.only}
        await asyncio.gather(*(work(tester, deeds, g, until, done, problems) for g in generators))
        watching.cancel()
        await tester.close()
        problems += await left_over(web)
    print(", ".join(f"{name} {count}" for name, count in sorted(done.items())))
    slope = watch.slope()
    print(f"memory: {watch.bytes[-1] / MIB:.1f} MiB, {slope:+.3f} MiB a minute after warm-up")
    if slope > options.growth:
        problems.append(f"memory grows by {slope:.3f} MiB a minute, expected {options.growth}")
    return [f"{count} times: {what}" for what, count in collections.Counter(problems).items()]


async def work(
    tester: Tester,
    deeds: dict[str, Deed],
    generator: np.random.Generator,
    until: float,
    done: "collections.Counter[str]",
    problems: list[str],
) -> None:
    """One client: a random deed after the other."""
    names = list(deeds)
    while time.monotonic() < until:
        name = names[int(generator.integers(len(names)))]
        try:
            await deeds[name](tester, generator)
        except Exception as error:  # whatever it is, it was not expected
            problems.append(f"{name}: {type(error).__name__}: {error!s:.300}")
        done[name] += 1


async def sample(server: Server, watch: Watch, done: "collections.Counter[str]") -> None:
    """Read the server's memory every few seconds."""
    started = time.monotonic()
    while True:
        watch.seconds.append(time.monotonic() - started)
        watch.bytes.append(server.resident())
        if len(watch.bytes) % 15 == 1:
            size = watch.bytes[-1] / MIB
            print(f"{watch.seconds[-1]:7.0f} s {size:8.1f} MiB {done.total():7} deeds", flush=True)
        await asyncio.sleep(SAMPLE_S)


async def left_over(web: httpx.AsyncClient) -> list[str]:
    """Streams that are still here although nobody waits for them, and a server that isn't ready."""
    held, deadline = 1, time.monotonic() + EMPTY_S
    while held and time.monotonic() < deadline:
        page = (await web.get("/metrics")).text
        found = re.findall(r"^torsor_streams_(?:running|waiting) (\S+)", page, re.MULTILINE)
        held = round(sum(map(float, found)))
        await asyncio.sleep(0.2)
    problems = [f"{held} streams still hold a slot, expected 0"] if held else []
    with contextlib.suppress(httpx.HTTPError):
        if (await web.get("/readyz")).status_code == 200:
            return problems
    return [*problems, "the server is not ready any more"]


if __name__ == "__main__":
    sys.exit(main())
