"""A grid is the product of its axes, and what is wrong in one is said by field."""

import json
from typing import Any

import pytest

from serve.manifest.page import Manifest
from serve.manifest.read import read_manifest
from serve.settings import SHIPPED
from serve.sweeps.grid import expand, name_of, span
from serve.sweeps.runner import control_of, seeds_of, summary_of
from serve.wire.errors import RequestError
from serve.wire.limits import MAX_EDIT_SEED, MAX_POINTS
from serve.wire.queries import Grid, SweepRequest
from serve.wire.query_responses import Control
from serve.wire.requests import parse_request

SCHUR = {"target": "recurrent", "op": "schur", "alpha": "$alpha", "zero": "$zero"}
AXES = {"alpha": [0.85, 1.0], "zero": [["CC"], ["CC", "C→R"]]}


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest(SHIPPED / "tanh-rnn-shakespeare")


def grid_of(edits: Any, axes: Any, order: Any = None) -> Grid:
    return Grid(edits=edits, axes=axes, order=order)


def request(**fields: Any) -> SweepRequest:
    return parse_request(SweepRequest, {"text": "a", **fields})


def refused(manifest: Manifest, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        expand(request(**fields), manifest)
    assert caught.value.code == "invalid_request"
    return caught.value


def test_points_are_all_combinations_the_first_axis_slowest(manifest: Manifest) -> None:
    own = {"name": "own", "edits": [{"target": "readout", "op": "zero"}]}
    points = expand(request(ablations=[own], grid={"edits": [SCHUR], "axes": AXES}), manifest)
    assert [point["name"] for point in points] == [
        "own",
        "alpha=0.85 zero=CC",
        "alpha=0.85 zero=CC+C→R",
        "alpha=1 zero=CC",
        "alpha=1 zero=CC+C→R",
    ]
    expected = {"target": "recurrent", "op": "schur", "alpha": 1, "zero": ["CC", "C→R"]}
    assert points[0] == own and points[-1]["edits"] == [expected]


def test_whole_numbers_are_int_whatever_the_wire_says() -> None:
    grids = [grid_of([{"seed": "$s", "rows": [one, 2]}], {"s": [one]}) for one in (1, 1.0)]
    texts = [json.dumps(span(grid)) for grid in grids]
    assert texts[0] == texts[1] == '[{"name": "s=1", "edits": [{"seed": 1, "rows": [1, 2]}]}]'


def test_the_order_of_the_axes_can_be_said() -> None:
    axes: Any = {"a": [1, 2], "b": [3, 4]}
    edits = [{"alpha": "$a", "keep": "$b"}]
    points = span(Grid(edits=edits, axes=axes, order=["b", "a"]))
    assert [point["name"] for point in points] == ["b=3 a=1", "b=3 a=2", "b=4 a=1", "b=4 a=2"]
    with pytest.raises(RequestError, match="grid.order: found b, b, expected each axis once: a, b"):
        span(Grid(edits=edits, axes=axes, order=["b", "b"]))


def test_a_value_goes_into_a_longer_string() -> None:
    grid = grid_of([{"target": "layers.$i.$part"}], {"i": [0, 1], "part": ["mixing"]})
    assert [p["edits"][0]["target"] for p in span(grid)] == ["layers.0.mixing", "layers.1.mixing"]
    with pytest.raises(RequestError, match=r"grid.edits\[0\].target: '\$i' stands within"):
        span(grid_of([{"target": "layers.$i"}], {"i": [[0]]}))


def test_a_grid_without_axes_is_one_point(manifest: Manifest) -> None:
    edits = [{"target": "readout", "op": "zero"}]
    points = expand(request(grid={"edits": edits}), manifest)
    assert [point["edits"] for point in points] == [edits]


def test_long_names_are_cut() -> None:
    assert len(name_of({"x": "y" * 500})) == 100


@pytest.mark.parametrize(
    ("grid", "field", "words"),
    [
        ({"edits": [SCHUR], "axes": {"alpha": [0.9]}}, "grid.edits[0]", "$zero"),
        ({"edits": [SCHUR], "axes": {**AXES, "x": [1]}}, "grid.axes.x", "no edit names it"),
        ({"edits": [SCHUR], "axes": {**AXES, "zero": []}}, "grid.axes.zero", "found none"),
        (
            {"edits": [SCHUR], "axes": {**AXES, "alpha": [1, True, 0.5, 1.0]}},
            "grid.axes.alpha",
            "found 1 twice, expected each value once; leave one out",
        ),
        ({"edits": [SCHUR], "axes": {"0": [1]}}, "grid.axes.0", "expected 1 to 32 letters"),
        (
            {"edits": [SCHUR], "axes": {**AXES, "alpha": [0.9, 2]}},
            "grid.edits[0].alpha",
            "(at alpha=2 zero=CC)",
        ),
        (
            {"edits": [{**SCHUR, "target": "other"}], "axes": AXES},
            "grid.edits[0].target",
            "expected a target",
        ),
        (
            {"edits": [SCHUR], "axes": {**AXES, "alpha": [0.9] * 4000}},
            "grid",
            "(max_points)",
        ),
        (
            {"edits": [{"a": "x" * 10_000, "b": "$b"}], "axes": {"b": list(range(1000))}},
            "grid",
            "(max_grid_characters)",
        ),
    ],
)
def test_what_is_wrong_in_a_grid_is_said_by_field(
    manifest: Manifest, grid: Any, field: str, words: str
) -> None:
    error = refused(manifest, grid=grid)
    assert error.field == field and words in error.message
    assert error.message.startswith(f"{field}: ")


def test_what_is_wrong_in_an_ablation_is_said_by_field(manifest: Manifest) -> None:
    good = {"edits": [{"target": "readout", "op": "zero"}]}
    wrong = {"edits": [{"target": "readout", "op": "nothing"}]}
    error = refused(manifest, ablations=[good, wrong])
    assert error.field == "ablations[1].edits[0].op"
    assert error.message.startswith("ablations[1].edits[0].op: found 'nothing'")


def test_ablations_and_grid_are_counted_together(manifest: Manifest) -> None:
    grid = {"edits": [{"target": "readout", "op": "$op"}], "axes": {"op": ["zero"]}}
    error = refused(manifest, ablations=[{}] * MAX_POINTS, grid=grid)
    assert f"found {MAX_POINTS + 1} points" in error.message


def test_controls_replace_every_edit_and_seeds_follow(manifest: Manifest) -> None:
    edits = [{"target": "readout", "op": "zero"}, {"target": "recurrent", "op": "identity"}]
    control = control_of({"name": "x", "edits": edits}, 7, manifest)
    assert control["edits"] == [{"op": "random", "like": edit, "seed": 7} for edit in edits]
    for has_none in (control, {"edits": list[Any]()}):  # a control's would be itself
        with pytest.raises(RequestError, match="neither random nor a symmetry"):
            control_of(has_none, 8, manifest)
    assert seeds_of(MAX_EDIT_SEED, 2) == [MAX_EDIT_SEED, 0]


def test_controls_are_summed_up_without_those_that_failed() -> None:
    deltas = (1.0, None, 3.0)
    runs = tuple(Control(seed=1, mass=1.0, delta=delta, error=None) for delta in deltas)
    page = summary_of(runs)
    assert (page["controls_mean"], page["controls_deviation"]) == (2.0, 2.0**0.5)
    assert summary_of(runs[:1])["controls_deviation"] is None
