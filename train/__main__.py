"""Train a model: `torsor train FAMILY --out RUN`.

    torsor train osm-rnn --data shakespeare --out runs/osm
    torsor train osm-rnn --out runs/osm --resume
    torsor train lstm --preset 200k --seeds 0,1,2 --out runs/lstm
    torsor train tanh-rnn --task flip-flop --n 64 --bias none --out runs/flip-flop
    torchrun --no-python --nproc-per-node 2 -- torsor train transformer --out runs/transformer

Writes checkpoints, metrics.jsonl and report.html into RUN. Ctrl-C ends with a checkpoint; --resume
goes on from the newest one and reaches the bits of an uninterrupted run.
"""

import sys

from train.checkpoint import CheckpointError
from train.command_line import Options, make_parser, open_run, refuse_unlike, seeds_of
from train.console import say_end, say_start, summarise
from train.data.files import DataError
from train.distributed import leave_world
from train.loop import TrainingError, train
from train.run import Run
from train.run_folder import hold_run

INTERRUPTED = 130  # exit code of a run that was stopped before its last iteration


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    options = vars(make_parser(__doc__).parse_args(arguments))
    try:
        return train_all(options)
    except (DataError, CheckpointError, TrainingError, ValueError, OSError) as error:
        return _complain(str(error))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        return _complain(
            "memory: found too little for these sizes; make the model or --batch smaller"
        )
    except KeyboardInterrupt:  # before or after the loop, which stops by itself
        return INTERRUPTED
    finally:
        leave_world()


def train_all(options: Options) -> int:
    """Train the run, or one run a seed and their summary; the exit code."""
    runs = list[Run]()
    for chosen in seeds_of(options):
        with hold_run(chosen["out"], chosen["resume"]):
            run = open_run(chosen)
            refuse_unlike(runs[0] if runs else run, run)
            say_start(run, options["quiet"])
            done = train(run, options["quiet"])
            say_end(run, done)
        if not done:
            return INTERRUPTED
        runs.append(run)
    if "seeds" in options:
        summarise(options["out"], runs)
    return 0


def _complain(problem: str) -> int:
    print(f"torsor train: {problem}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
