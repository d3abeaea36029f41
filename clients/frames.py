"""Results as tables of pandas, for those who have it; nothing here needs it until it is asked for.

| result         | a row is                                                                     |
|----------------|------------------------------------------------------------------------------|
| `TrialsResult` | a score: baseline, ablated and delta, each with its interval                 |
| `CompareResult`| an ablation, and the baseline first: entropy, distances, the characters' own |
| `ScoreResult`  | a character: log-probabilities of both models and KL (with detail=True)      |
| `Structure`    | a target                                                                     |
| others         | the result itself, or each of a tuple of them                                |
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib import import_module
from typing import Any

from clients.results import ScoreResult, Structure

Row = Mapping[str, Any]


def frame(rows: Sequence[Row]) -> Any:
    """A `pandas.DataFrame` of these rows; ImportError where there is no pandas."""
    try:
        pandas = import_module("pandas")
    except ModuleNotFoundError:
        raise ImportError(
            "to_pandas: found no pandas, expected it beside torsor: pip install pandas"
        ) from None
    return pandas.DataFrame(list(rows))


def to_pandas(result: Any) -> Any:
    """A result of any verb as a `pandas.DataFrame`."""
    return frame(rows_of(result))


def rows_of(result: Any) -> list[Row]:
    """The rows of a result's table."""
    if isinstance(result, ScoreResult):
        return _score_rows(result)
    if isinstance(result, Structure):
        return [asdict(target) for target in result.targets]
    rows = getattr(result, "rows", None)
    if callable(rows):
        found: list[Row] = rows()
        return found
    several = result if isinstance(result, list | tuple) else [result]
    return [asdict(item) if is_dataclass(item) else dict(item) for item in several]  # type: ignore[arg-type]


def _score_rows(result: ScoreResult) -> list[Row]:
    ablated = result.ablated
    if not result.baseline.logprobs:
        other = None if ablated is None else ablated.bpc
        return [
            {"bpc": result.baseline.bpc, "ablated_bpc": other}
            | {"delta_bpc": result.delta_bpc, "mean_kl": result.mean_kl}
        ]
    none = [None] * result.num_characters
    columns = {
        "logprob": result.baseline.logprobs,
        "ablated_logprob": ablated.logprobs if ablated else none,
        "kl": result.kl or none,
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
