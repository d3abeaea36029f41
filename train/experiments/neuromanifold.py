"""Dimensions of the sets of maps that two layers of attention can be: expected and measured.

    python -m train.experiments.neuromanifold --max-delta 10 --json dimensions.json

The experiment of "Geometry of Lightning Self-Attention", arXiv 2408.17221: l = 2 layers, t = 3
tokens, attention dimensions 2, all widths δ; the rank of the Jacobian on 250 normal inputs in
float64, the largest over random weights. Beside the paper's normalised attention the unnormalised.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from train.experiments.lightning_geometry import (
    expected_dimension,
    layer_shapes,
    measured_dimension,
)

LAYERS, TOKENS, ATTENTION_DIM, INPUTS = 2, 3, 2, 250
LEAST_DELTA, MOST_DELTA = 3, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size: numbers in the weights, and the dimension of the maps."""

    delta: int
    normalised: bool
    parameters: int
    expected: int
    measured: int
    gap: float


def measure(delta: int, normalised: bool, num_seeds: int) -> Row:
    """Expected and measured dimension at all widths `delta`."""
    widths, attention_dims = [delta] * (LAYERS + 1), [ATTENTION_DIM] * LAYERS
    found = measured_dimension(
        widths,
        attention_dims,
        num_tokens=TOKENS,
        num_inputs=INPUTS,
        normalised=normalised,
        seeds=range(num_seeds),
    )
    return Row(
        delta=delta,
        normalised=normalised,
        parameters=sum(rows * columns for rows, columns in layer_shapes(widths, attention_dims)),
        expected=expected_dimension(widths, attention_dims, normalised),
        measured=found.dimension,
        gap=found.gap,
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a measured dimension isn't the expected one."""
    options = make_parser().parse_args(arguments)
    rows = []
    print("    δ  attention  parameters  expected  measured      gap")
    for delta in range(LEAST_DELTA, options.max_delta + 1):
        for normalised in (False, True):
            row = measure(delta, normalised, options.seeds)
            kind = "softmax" if normalised else "lightning"
            numbers = f"{row.parameters:10}  {row.expected:8}  {row.measured:8}  {row.gap:7.0e}"
            print(f"{delta:5}  {kind:9}  {numbers}", flush=True)
            rows.append(row)
    if options.json is not None:
        page = {"layers": LAYERS, "tokens": TOKENS, "attention_dim": ATTENTION_DIM}
        page |= {"inputs": INPUTS, "seeds": options.seeds}
        text = json.dumps(page | {"rows": [asdict(row) for row in rows]}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0 if all(row.measured == row.expected for row in rows) else 1


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m train.experiments.neuromanifold",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    deltas = range(LEAST_DELTA, MOST_DELTA + 1)
    parser.add_argument(
        "--max-delta",
        type=int,
        default=6,
        choices=deltas,
        metavar="DELTA",
        help=f"largest width, {LEAST_DELTA} to {MOST_DELTA} (default: 6)",
    )
    parser.add_argument("--seeds", type=int, default=3, help="random weights a size (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
