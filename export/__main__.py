"""Export a trained model, or check a bundle again.

    torsor export runs/osm --out bundles/osm
    torsor export --check bundles/osm

Writes the bundle that `torsor serve` reads: the graph, the effective weights, of a task some of its
test trials, and a manifest that says how far torch, the reference evaluator and ONNX Runtime agree.
Above the tolerance there is no bundle. A check holds a bundle's files, graph, range and parity
against its manifest, and ends with code 1 where something differs.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from export.bundle import export_bundle
from export.check import Report, check_bundle
from serve.manifest.page import Manifest, ParityCase
from serve.manifest.values import BundleError
from train.checkpoint import CheckpointError


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.check is None and (options.run is None or options.out is None):
        parser.error("expected RUN and --out BUNDLE, or --check BUNDLE")
    of_an_export = (options.run, options.out, options.name, options.cuda, options.trials)
    if options.check is not None and of_an_export != (None, None, None, False, None):
        parser.error("--check takes a bundle alone: no RUN, --out, --name, --cuda or --trials")
    if options.trials is not None and options.trials < 1:
        parser.error(f"--trials: found {options.trials}, expected at least 1")
    torch.set_num_threads(1)  # small products; a second pool beside the runtime's only costs
    try:
        if options.check is not None:
            return tell_check(check_bundle(options.check, options.quiet), options.json)
        place = (options.run, options.out, options.name)
        told = {"quiet": options.quiet, "cuda": options.cuda, "trials": options.trials}
        manifest = export_bundle(*place, **told)
    except (BundleError, CheckpointError, ValueError, OSError) as error:
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
    told = "folder of a run, or one checkpoint of it"
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN", help=told)
    out = "folder of the bundle; one that is there must be empty or a bundle"
    parser.add_argument("--out", type=Path, metavar="BUNDLE", help=out)
    parser.add_argument("--check", type=Path, metavar="BUNDLE", help="check this one instead")
    parser.add_argument("--name", help="the model's id; default: the name of --out")
    told = "add unrolled.onnx, the form without a loop that a GPU runs"
    parser.add_argument("--cuda", action="store_true", help=told)
    told = "held-out trials of a task that travel at most; default: all that fit into 10 MB"
    parser.add_argument("--trials", type=int, metavar="N", help=told)
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


def tell_check(report: Report, as_json: bool) -> int:
    """Print what a check has found; the exit code."""
    if as_json:
        page = {"name": report.manifest.name, "good": report.good}
        found = {f.check: {"good": f.good, "says": f.says} for f in report.findings}
        print(json.dumps(page | {"checks": found}))
        return 0 if report.good else 1
    kernels = {_size(c): c.runtime_error for c in report.kernel_cases}
    print(
        f"{'batch':>5} {'steps':>5} {'from':>5} {'reference':>10} {'runtime':>10} {'kernels':>10}"
    )
    for case in report.cases:
        error = kernels.get(_size(case))
        told = "-" if error is None else f"{error:.1e}"
        size = " ".join(f"{number:5}" for number in _size(case))
        print(f"{size} {case.reference_error:10.1e} {case.runtime_error:10.1e} {told:>10}")
    for finding in report.findings:
        print(f"{'ok' if finding.good else 'BAD':4} {finding.check:8} {finding.says}")
    return 0 if report.good else 1


def _size(case: ParityCase) -> tuple[int, int, int]:
    return case.batch, case.num_steps, case.start


def table(manifest: Manifest, out: Path) -> str:
    """The parity report as lines."""
    head = f"{'weights':8} {'batch':>5} {'steps':>5} {'from':>5}"
    lines = [f"{head} {'reference':>10} {'runtime':>10}"]
    for case in manifest.parity.cases:
        size = " ".join(f"{number:5}" for number in _size(case))
        errors = f"{case.reference_error:10.1e} {case.runtime_error:10.1e}"
        lines.append(f"{case.weights:8} {size} {errors}")
    for other in manifest.parity.unrolled:
        size = f"{other.batch:5} {manifest.graph.max_steps:5} {other.start:5}"
        told = f"unrolled: {other.torch_error:.1e} to torch, {other.loop_error:.1e} to the loop"
        lines.append(f"{other.weights:8} {size} {told}")
    parity, total = manifest.parity, sum(file.size for file in manifest.files.values())
    lines.append(
        f"{out}: {manifest.name}, {manifest.num_parameters:,} parameters, {total:,} bytes; largest "
        f"difference to torch {parity.max_error:.1e}, tolerance {parity.tolerance:.0e}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
