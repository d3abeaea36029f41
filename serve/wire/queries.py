"""Requests of the queries about ablations, once for HTTP and gRPC: compare, trials, sweep.

Text is measured in characters.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from serve.wire.limits import (
    MAX_COMPARED,
    MAX_CONTROLS,
    MAX_EDIT_SEED,
    MAX_EDITS,
    MAX_POINTS,
    MAX_PROMPT_CHARACTERS,
    MAX_RESAMPLES,
    MAX_SWEEP_TEXT,
    MAX_TOP,
    MAX_UPLOAD_CHARACTERS,
)
from serve.wire.requests import AblationJson, Unknown
from serve.wire.validation import Strict

MIN_RESAMPLES = 100  # of which an interval's ends can be told


class CompareRequest(Strict):
    """The body of `POST /v1/ablations/compare`: what comes next after a prompt."""

    model: str | None = None
    prompt: str = Field("", max_length=MAX_PROMPT_CHARACTERS, description="empty: from the start")
    unknown: Unknown | None = None
    ablations: list[AblationJson] = Field(min_length=1, max_length=MAX_COMPARED)
    top: int = Field(10, ge=1, le=MAX_TOP, description="characters of each distribution to name")

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        seen = {"baseline": "the plain model's"}
        for index, ablation in enumerate(self.ablations):
            name = ablation.get("name")
            if isinstance(name, str) and name in seen:
                found = f"ablations[{index}].name: found {name!r:.60}, which is {seen[name]}"
                raise ValueError(f"{found}, expected one of its own; choose another name")
            if isinstance(name, str) and name:
                seen[name] = f"that of ablations[{index}]"
        return self


class UploadedTrials(Strict):
    """Trials that a caller brings: N of T steps. `serve.manifest.page` says what each part is."""

    inputs: list[Any] = Field(
        description="shape (T, N, X): T steps, N trials, X the input_size of the model's task "
        "(GET /v1/models), numbers of float32; of a task of characters (T, N), whole numbers"
    )
    targets: list[Any] = Field(
        description="shape (T, N, Y): Y the output_size, numbers of float32; of classes (T, N), "
        "whole numbers; of a pooled task T is 1"
    )
    mask: list[list[Annotated[float, Field(ge=0, le=1)]]] | None = Field(
        None, description="shape (T, N), 1 where a step counts; left out: every step does"
    )


class TrialsRequest(Strict):
    """The body of `POST /v1/ablations/trials`: how well a model of a task does."""

    model: str | None = None
    ablation: AblationJson | None = None
    trials: UploadedTrials | None = Field(None, description="left out: the bundle's own")
    safetensors: str | None = Field(
        None,
        max_length=MAX_UPLOAD_CHARACTERS,
        description="the same three as a safetensors file in base64, instead of `trials`; vectors "
        "and mask are float32 in it, characters and classes int64",
    )
    resamples: int = Field(
        1000,
        ge=0,
        le=MAX_RESAMPLES,
        description=f"of the trials, for the intervals, {MIN_RESAMPLES} or more; 0: none",
    )
    seed: int = Field(0, ge=0, le=MAX_EDIT_SEED, description="of the resamples")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.trials is not None and self.safetensors is not None:
            raise ValueError("safetensors: found beside trials, expected one of them")
        if 0 < self.resamples < MIN_RESAMPLES:
            expected = f"{MIN_RESAMPLES} to {MAX_RESAMPLES}, or 0 for no intervals"
            raise ValueError(
                f"resamples: found {self.resamples}, expected {expected}; ask for more"
            )
        return self


class Grid(Strict):
    """A template of edits and the values of what it leaves open, as `$NAME`.

    {"edits": [{"target": "recurrent", "op": "schur", "alpha": "$alpha", "zero": "$zero"}],
     "axes": {"alpha": [0.85, 0.9], "zero": [["CC"], ["C→R"]]}}     four ablations
    """

    edits: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_EDITS)
    axes: dict[str, list[Any]] = {}
    order: list[str] | None = Field(
        None,
        description="of the axes, the slowest first; left out: as they stand, over gRPC, whose "
        "Struct keeps no order, by name",
    )


class SweepRequest(Strict):
    """The body of `POST /v1/sweeps`: one query for many ablations, as a job."""

    model: str | None = None
    query: Literal["score", "trials"] = "score"
    text: str | None = Field(
        None, min_length=1, description="to score", json_schema_extra={"maxLength": MAX_SWEEP_TEXT}
    )
    unknown: Unknown | None = None
    ablations: list[AblationJson] = Field([], max_length=MAX_POINTS)
    grid: Grid | None = None
    controls: int = Field(
        0, ge=0, le=MAX_CONTROLS, description="random ablations of the same mass beside each point"
    )
    seed: int = Field(0, ge=0, le=MAX_EDIT_SEED, description="of the first control")

    @model_validator(mode="after")
    def _check_query(self) -> Self:
        if self.text is not None and len(self.text) > MAX_SWEEP_TEXT:
            expected = f"at most {MAX_SWEEP_TEXT} (max_sweep_text); cut it"
            raise ValueError(f"text: found {len(self.text)} characters, expected {expected}")
        if self.query == "score" and self.text is None:
            raise ValueError("text: found none, expected a text to score")
        if self.query == "trials" and self.text is not None:
            raise ValueError("text: found one, expected none beside query trials")
        if not self.ablations and self.grid is None:
            raise ValueError("ablations: found neither ablations nor a grid, expected some points")
        return self
