"""Export a trained model: `torsor export RUN --out BUNDLE`.

    torsor export runs/osm --out bundles/osm

Writes the bundle that `torsor serve` reads: the graph, the effective weights, of a task some of its
test trials, and a manifest that says how far torch, the reference evaluator and ONNX Runtime agree.
Above the tolerance there is no bundle.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from export.bundle import export_bundle
from serve.manifest import Manifest
from train.checkpoint import CheckpointError


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    options = make_parser().parse_args(arguments)
    torch.set_num_threads(1)  # small products; a second pool beside the runtime's only costs
    try:
        manifest = export_bundle(options.run, options.out, options.name, options.quiet)
    except (CheckpointError, ValueError, OSError) as error:
        print(f"torsor export: {error}", file=sys.stderr)
        return 1
    print(json.dumps(summary(manifest)) if options.json else table(manifest, options.out))
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="torsor export",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="folder of a run, or one checkpoint of it")
    out = "folder of the bundle; one that is there must be empty or a bundle"
    parser.add_argument("--out", type=Path, required=True, help=out)
    parser.add_argument("--name", help="the model's id; default: the name of --out")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser


def summary(manifest: Manifest) -> dict[str, object]:
    """What was exported, and how well it agrees."""
    return {
        "name": manifest.name,
        "family": manifest.family,
        "num_parameters": manifest.num_parameters,
        "parity_cases": len(manifest.parity.cases),
        "parity_max_error": manifest.parity.max_error,
        "parity_tolerance": manifest.parity.tolerance,
        "bytes": sum(file.size for file in manifest.files.values()),
    }


def table(manifest: Manifest, out: Path) -> str:
    """The parity report as lines: the worst case of each set of weights and batch."""
    lines = [f"{'weights':8} {'batch':>5} {'steps':>8} {'reference':>10} {'runtime':>10}"]
    groups: dict[tuple[str, int], list[int]] = {}
    for i, case in enumerate(manifest.parity.cases):
        groups.setdefault((case.weights, case.batch), []).append(i)
    for (weights, batch), members in groups.items():
        cases = [manifest.parity.cases[i] for i in members]
        steps = ",".join(str(case.num_steps) for case in cases)
        reference = max(case.reference_error for case in cases)
        runtime = max(case.runtime_error for case in cases)
        lines.append(f"{weights:8} {batch:5} {steps:>8} {reference:10.1e} {runtime:10.1e}")
    parity, size = manifest.parity, sum(file.size for file in manifest.files.values())
    lines.append(
        f"{out}: {manifest.name}, {manifest.num_parameters:,} parameters, {size:,} bytes; largest "
        f"difference to torch {parity.max_error:.1e}, tolerance {parity.tolerance:.0e}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
