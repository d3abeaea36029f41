"""How far streams of an OSM-RNN leave their group: random weights, two streams, native kernels.

    python tests/bench/bench_drift.py su,16 torus,22

Prints the largest error that `Group.contains` measured up to 10,000 and up to 100,000 characters.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from export.bundle import probe_angle
from export.graph.advance import build_advance
from export.graph.matrix_exp import body_squarings
from export.parity.text import Arrays, runtime
from export.weights_file import set_weights, write_weights
from serve.manifest.page import GRAPH_FILE, WEIGHTS_FILE
from serve.native.library import load
from train.groups.by_name import make_group
from train.model import Model, family

STREAMS, CHARACTERS, K = 2, 20, 16
MARKS = (10_000, 100_000)
GROUPS = ("so,22", "o,22", "u,16", "su,16", "torus,22", "diagonal,22")


def write_graph(folder: Path, model: Model) -> Path:
    """The graph of a model that was never trained."""
    weights = model.weights()
    graph = build_advance(model, weights, body_squarings(probe_angle(model, weights)))
    arrays = {name: value.numpy() for name, value in weights.items()}
    offsets = write_weights(folder / WEIGHTS_FILE, arrays)
    set_weights(graph, arrays, WEIGHTS_FILE, offsets)
    (folder / GRAPH_FILE).write_bytes(graph.SerializeToString())
    return folder / GRAPH_FILE


def drift(group: str, d: int) -> list[float]:
    """The largest error up to each mark, looked at every 1,024 characters and at the marks."""
    kind = family("osm-rnn")
    sizes = {"input_size": CHARACTERS, "output_size": CHARACTERS, "group": group, "d": d}
    model = kind(kind.Config(**sizes), torch.Generator().manual_seed(0))
    model = model.requires_grad_(False).eval()
    with tempfile.TemporaryDirectory() as folder:
        run = runtime(write_graph(Path(folder), model), load())
    rng, worst = np.random.default_rng(0), [0.0] * len(MARKS)
    feeds: Arrays = {
        **{f"state.{name}": value.numpy() for name, value in model.init_state(STREAMS).items()},
        "num_steps": np.full(STREAMS, K),
        "uniform": np.zeros((K, STREAMS), np.float32),
        "temperature": np.ones(STREAMS, np.float32),
        "top_k": np.zeros(STREAMS, np.int64),
        "top_p": np.ones(STREAMS, np.float32),
        "bias": np.zeros((STREAMS, CHARACTERS), np.float32),
    }
    for position in range(0, MARKS[-1], K):
        forced = rng.integers(0, CHARACTERS, (K, STREAMS))
        steps = {"position": np.full(STREAMS, position), "forced": forced}
        feeds["state.H"] = run(feeds | steps)["next.H"]
        after = position + K
        if after % 1024 == 0 or after in MARKS:
            error = make_group(group, d).contains(torch.from_numpy(feeds["state.H"]).double())[1]
            worst = [max(w, error) if after <= m else w for w, m in zip(worst, MARKS, strict=True)]
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("groups", nargs="*", default=GROUPS, metavar="GROUP,D")
    torch.set_num_threads(1)
    for named in parser.parse_args().groups:
        group, d = named.split(",")
        print(named, *(f"{error:.1e}" for error in drift(group, int(d))), flush=True)


if __name__ == "__main__":
    main()
