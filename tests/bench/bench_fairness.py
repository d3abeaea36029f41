"""What others feel while one client sends the longest requests that there may be.

    python tests/bench/bench_fairness.py [--quick] [--json FILE]

One client sends a million characters after another: as a prompt's text, as its token ids, as a text
to score under an ablation, to be tokenised, and to be turned back into text. Meanwhile probes
(`GET /livez`) and short requests (one character) are timed, one after the other, over connections
that are open. Prints percentiles beside those of an idle server, and the ratio of short requests.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from servers import KINDS, ROOT, Server, running, start, wait_ready

MODEL = "osm-rnn-shakespeare"
LENGTH = 900_000  # characters; what each request adds to it makes it new to the cache of states
PHRASE = "Hear me speak! "
ABLATION = {"edits": [{"target": "mixing", "op": "schur", "alpha": 0.9, "zero": ["CC"]}]}
TIMEOUT_S = 300.0
PERCENTILES = (50, 95, 100)

Json = dict[str, Any]
Figures = dict[str, float]


@dataclass(slots=True)
class Felt:
    """Seconds that probes and short requests took."""

    probe_s: list[float] = field(default_factory=list)
    short_s: list[float] = field(default_factory=list)
    num_sent: int = 0  # long requests meanwhile


def main() -> None:
    """Print the table, and write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 s a row, under 40 s")
    parser.add_argument("--json", type=Path, help="write the figures as one flat object")
    options = parser.parse_args()
    seconds = 2.0 if options.quick else 15.0
    with tempfile.TemporaryDirectory() as folder, running() as servers:
        server = start(KINDS["torsor"], Path(folder))
        servers.append(server)
        wait_ready(server)
        feel(server, 1.0, "idle")  # the first requests cost more
        rows = {name: feel(server, seconds, name) for name in LONG}
    figures = figures_of(rows)
    print_rows(rows)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def feel(server: Server, seconds: float, name: str) -> Felt:
    """Time probes and short requests, while long ones of a kind are sent."""
    felt, processes = Felt(), multiprocessing.get_context("spawn")  # its own lock, not ours
    num_sent = processes.Value("i", 0)
    sender = processes.Process(target=send_long, args=(server.port, name, num_sent))
    sender.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=TIMEOUT_S) as client:
        while LONG[name] and not num_sent.value:
            time.sleep(0.01)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            felt.probe_s.append(timed(lambda: client.get("/livez")))
            felt.short_s.append(timed(lambda: client.post("/v1/completions", json=SHORT)))
            time.sleep(0.01)
    felt.num_sent = num_sent.value
    sender.kill()  # a client that goes away: the server stops its work
    sender.join()
    return felt


def timed(ask: Callable[[], httpx.Response]) -> float:
    """How long an answer takes."""
    started = time.perf_counter()
    ask().raise_for_status()
    return time.perf_counter() - started


def send_long(port: int, name: str, num_sent: Any) -> None:
    """One long request after the other, in a process of its own."""
    if (long := LONG[name]) is None:
        return
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S) as client:
        for body in long.bodies():
            num_sent.value += 1
            client.post(long.path, content=body, headers=JSON).raise_for_status()


@dataclass(frozen=True, slots=True)
class Long:
    """A kind of long request."""

    path: str
    name: str  # of the field that is long
    ids: bool = False  # token ids, not text
    more: Json = field(default_factory=dict)

    def bodies(self) -> Iterator[bytes]:
        """Bodies that begin differently."""
        text = PHRASE * (LENGTH // len(PHRASE))
        if self.ids:
            named = ROOT / "serve" / "bundles" / MODEL / "manifest.json"
            places = {c: i for i, c in enumerate(json.loads(named.read_text())["vocabulary"])}
            long = ",".join(str(places[c]) for c in text)
        for i in range(1, 1000):
            value = f"[{'1,' * i}{long}]" if self.ids else json.dumps("a" * i + text)
            yield f'{{"{self.name}":{value},{json.dumps(self.more | {"model": MODEL})[1:]}'.encode()


LONG: dict[str, Long | None] = {
    "idle": None,
    "a prompt's text": Long("/v1/completions", "prompt", more={"max_tokens": 1}),
    "a prompt's token ids": Long("/v1/completions", "prompt", ids=True, more={"max_tokens": 1}),
    "a text to score": Long("/v1/ablations/score", "text", more={"ablation": ABLATION}),
    "a text to tokenise": Long("/tokenize", "prompt"),
    "token ids to turn back": Long("/detokenize", "tokens", ids=True),
}
SHORT = {"model": MODEL, "max_tokens": 1}
JSON = {"Content-Type": "application/json"}


def figures_of(rows: dict[str, Felt]) -> Figures:
    """Flat names for the figures."""
    idle, figures = rows["idle"], dict[str, float]()
    for name, felt in rows.items():
        key = name.replace("'", "").replace(" ", "_")
        figures[f"fairness.{key}.probe_ms_p95"] = 1000 * float(np.percentile(felt.probe_s, 95))
        figures[f"fairness.{key}.probe_ms_most"] = 1000 * max(felt.probe_s)
        for p in PERCENTILES[:2]:
            over = np.percentile(felt.short_s, p) / np.percentile(idle.short_s, p)
            figures[f"fairness.{key}.short_over_idle_p{p}"] = float(over)
    return figures


def print_rows(rows: dict[str, Felt]) -> None:
    """The table."""
    print(
        f"{'':24} {'long':>5} {'probe, ms: p50, p95, most':>28} {'short, ms: p50, p95, most':>28}"
    )
    for name, felt in rows.items():
        cells = [
            ", ".join(f"{1000 * value:.0f}" for value in np.percentile(seconds, PERCENTILES))
            for seconds in (felt.probe_s, felt.short_s)
        ]
        over = np.median(felt.short_s) / np.median(rows["idle"].short_s)
        print(f"{name:24} {felt.num_sent:5} {cells[0]:>28} {cells[1]:>28}  x{over:.1f}")


if __name__ == "__main__":
    main()
