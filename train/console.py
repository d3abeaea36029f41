"""Console output of `torsor train`: at the start, at the end, and over several seeds."""

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from train.checkpoint import CheckpointError
from train.loop import spoken
from train.run import Run


def say_start(run: Run, quiet: bool) -> None:
    """Which model, how many parameters, what there is to learn from, and what was found there."""
    if quiet or run.world.rank > 0:
        return
    sizes = ", ".join(f"{key} {value}" for key, value in run.config["config"].items())
    source = run.task.source
    learned = f"{source.size:,} items of {source.name}" if source.size else source.name
    print(
        f"{run.config['family']}: {run.model.num_parameters():,} parameters ({sizes}), "
        f"learns {run.task.name}: {learned}",
        *(f"  {note}" for note in run.task.notes),
        sep="\n",
        file=sys.stderr,
    )


def say_end(run: Run, done: bool) -> None:
    """What the model scores, or how to go on."""
    if run.world.rank > 0:
        return
    if not done:
        print(
            f"stopped at iteration {run.iteration}; go on with: "
            f"torsor train {run.config['family']} --out {run.folder} --resume",
            file=sys.stderr,
        )
        return
    scores = final_scores(run)
    told = ", ".join(f"{spoken(name)} {score:.4g}" for name, score in scores.items())
    print(f"{run.folder}: iteration {run.iteration}, {told}")


def final_scores(run: Run) -> dict[str, float]:
    """The scores on the last line of metrics.jsonl."""
    lines = run.metrics_path.read_text().splitlines()
    last: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    scores = {k: x for k, x in last.items() if k.startswith(("valid_", "test_"))}
    if not any(name.startswith("test_") for name in scores):
        raise CheckpointError(run.metrics_path, "the last line: expected scores of the test part")
    return scores


def summarise(out: Path, runs: list[Run]) -> None:
    """Print mean ± standard deviation over the seeds, and write it to OUT/summary.json."""
    if runs[0].world.rank > 0:
        return
    table = [final_scores(run) for run in runs]
    summary = {name: spread([scores[name] for scores in table]) for name in table[0]}
    for name, (mean, deviation) in summary.items():
        spread_told = "" if deviation is None else f" ± {deviation:.2g}"
        print(f"{spoken(name)}: {mean:.4g}{spread_told} over {len(runs)} seeds")
    page = {
        "family": runs[0].config["family"],
        "num_parameters": runs[0].model.num_parameters(),
        "seeds": [run.settings.seed for run in runs],
        "scores": {name: [scores[name] for scores in table] for name in table[0]},
        "mean": {name: mean for name, (mean, _) in summary.items()},
        "deviation": {name: deviation for name, (_, deviation) in summary.items()},
    }
    part = out / ".summary.json.part"
    part.write_text(json.dumps(page, indent=1) + "\n")
    os.replace(part, out / "summary.json")


def spread(values: list[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; the latter is None for one value."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return statistics.fmean(values), deviation
