"""Parity of the unrolled form: to torch, and to the form with a loop.

The cases are like those of `export.parity.text`, every run of them `MAX_STEPS` steps long. ONNX
Runtime on the CPU runs both forms.
"""

import dataclasses

from export.graph.advance import MAX_STEPS
from export.parity.text import (
    Arrays,
    Evaluate,
    Measure,
    Shape,
    Subject,
    largest_of,
    measure_case,
    refuse,
    runtime,
)
from serve.manifest.page import UNROLLED_FILE, Parity, UnrolledCase

UNROLLED_SHAPES = (Shape(3, MAX_STEPS), Shape(7, MAX_STEPS, under_way=True))


def measure_unrolled(subjects: list[Subject], measure: Measure | None = None) -> list[UnrolledCase]:
    """Of each subject, whose folder has the unrolled form; `ParityError` above the tolerance."""
    cases = []
    for subject in subjects:
        loop = runtime(subject.graph)
        unrolled = runtime(subject.graph.with_name(UNROLLED_FILE))
        for shape in UNROLLED_SHAPES:
            heard = list[Arrays](), list[Arrays]()
            forms = _listen(loop, heard[0]), _listen(unrolled, heard[1])
            case, tolerance = (measure or measure_case)(subject, *forms, shape)
            refuse(case, tolerance, " of the unrolled form")
            made = UnrolledCase(
                weights=subject.name,
                batch=shape.batch,
                start=case.start,
                torch_error=case.runtime_error,
                loop_error=largest_of(heard[1], heard[0]),
            )
            cases.append(made)
    return cases


def with_unrolled(parity: Parity, cases: list[UnrolledCase]) -> Parity:
    """The report with these cases in it."""
    worst = max(max(case.torch_error, case.loop_error) for case in cases)
    return dataclasses.replace(
        parity, max_error=max(parity.max_error, worst), unrolled=tuple(cases)
    )


def _listen(evaluate: Evaluate, heard: list[Arrays]) -> Evaluate:
    def run(feeds: Arrays) -> Arrays:
        heard.append(evaluate(feeds))
        return heard[-1]

    return run
