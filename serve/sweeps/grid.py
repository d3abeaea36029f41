"""The points of a sweep: explicit ablations first, then those that a grid spans.

A grid is a template of edits in which "$NAME" stands for a value of the axis NAME; "$NAME" within a
longer string puts the value into it, as in "layers.$layer.attention". All combinations are points,
the first axis slowest, named by their values: "alpha=0.9 zero=CC".

Whole numbers are int, whatever the wire said, so that HTTP and gRPC make equal points.
"""

import itertools
import json
import math
import re
from collections.abc import Iterator

from serve.ablation.ablation import AblationError
from serve.ablation.parse import parse_ablation
from serve.manifest.page import Manifest
from serve.wire.codec import Json, JsonObject
from serve.wire.errors import RequestError, invalid
from serve.wire.limits import MAX_GRID_CHARACTERS, MAX_NAME, MAX_POINTS
from serve.wire.preview import shown
from serve.wire.queries import Grid, SweepRequest

AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
PLACE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
MAX_WHOLE = 2**53  # above it a double does not hold every integer


def expand(request: SweepRequest, manifest: Manifest) -> list[JsonObject]:
    """The ablations of all points, each checked; `RequestError` names the field that is wrong.

    Can take a second for thousands of points: call it off the event loop.
    """
    given = [whole(ablation) for ablation in request.ablations]
    for index, ablation in enumerate(given):
        _check(ablation, manifest, f"ablations[{index}]", "")
    spanned = [] if request.grid is None else span(request.grid)
    if (found := len(given) + len(spanned)) > MAX_POINTS:
        raise _too_many(found)
    for ablation in spanned:
        _check(ablation, manifest, "grid", f" (at {ablation['name']})")
    return given + spanned


def span(grid: Grid) -> list[JsonObject]:
    """The ablations of a grid, not yet checked against a model."""
    order = list(grid.axes) if grid.order is None else grid.order
    if sorted(order) != sorted(grid.axes):
        expected = f"each axis once: {', '.join(grid.axes) or 'there is none'}"
        raise invalid("grid.order", f"found {', '.join(order):.200}, expected {expected}")
    axes = {name: [whole(value) for value in grid.axes[name]] for name in order}
    for name, values in axes.items():
        if not AXIS.fullmatch(name):
            expected = "1 to 32 letters, digits and _, no digit first; rename it"
            raise invalid(f"grid.axes.{name}", f"found this name, expected {expected}")
        if not values:
            expected = "some values; leave the axis out if there is nothing to choose"
            raise invalid(f"grid.axes.{name}", f"found none, expected {expected}")
    _check_places(grid.edits, axes)
    if (found := math.prod(map(len, axes.values()))) > MAX_POINTS:
        raise _too_many(found)
    for name, values in axes.items():
        _check_once(values, f"grid.axes.{name}")
    points, num_characters = list[JsonObject](), 0
    for combined in itertools.product(*axes.values()):
        chosen = dict(zip(axes, combined, strict=True))
        edits = [_filled(edit, chosen, f"grid.edits[{i}]") for i, edit in enumerate(grid.edits)]
        points.append({"name": name_of(chosen) or "the grid's edits", "edits": whole(edits)})
        num_characters += len(json.dumps(points[-1]))
        if num_characters > MAX_GRID_CHARACTERS:
            expected = f"at most {MAX_GRID_CHARACTERS} (max_grid_characters)"
            problem = f"its points are more than that many characters of JSON, expected {expected}"
            raise invalid("grid", f"{problem}; send fewer points at once")
    return points


def name_of(chosen: JsonObject) -> str:
    """A point's name: its values on the axes."""
    name = " ".join(f"{axis}={_shown(value)}" for axis, value in chosen.items())
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"


def whole(value: Json) -> Json:
    """JSON with its whole numbers as int."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_WHOLE
    return int(value) if is_whole else value


def _too_many(found: int) -> RequestError:
    expected = f"at most {MAX_POINTS} (max_points); send fewer at once"
    return invalid("grid", f"found {found} points, expected {expected}")


def _check_once(values: list[Json], field: str) -> None:
    seen = set[str]()
    for value in values:
        if (text := json.dumps(value, sort_keys=True)) in seen:
            expected = "each value once; leave one out"
            raise invalid(field, f"found {shown(value)} twice, expected {expected}")
        seen.add(text)


def _check_places(edits: list[JsonObject], axes: dict[str, list[Json]]) -> None:
    used = set[str]()
    for index, edit in enumerate(edits):
        for text in _texts(edit):
            names = PLACE.findall(text)
            if unknown := [name for name in names if name not in axes]:
                known = ", ".join(axes) or "none is given"
                problem = f"found '${unknown[0]:.40}', expected an axis: {known}"
                raise invalid(f"grid.edits[{index}]", f"{problem}; add it to grid.axes")
            used.update(names)
    if unused := [name for name in axes if name not in used]:
        problem = f"no edit names it, expected '${unused[0]}' somewhere in grid.edits"
        raise invalid(f"grid.axes.{unused[0]}", f"{problem}; leave the axis out, or use it")


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from _texts(item)


def _filled(value: Json, chosen: JsonObject, field: str) -> Json:
    if isinstance(value, dict):
        return {key: _filled(item, chosen, f"{field}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, chosen, f"{field}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    if place := PLACE.fullmatch(value):
        return chosen[place[1]]
    return PLACE.sub(lambda place: _inside(chosen[place[1]], place[1], field), value)


def _inside(value: Json, axis: str, field: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        problem = f"'${axis}' stands within a string, expected strings or numbers on that axis"
        raise invalid(field, f"{problem}, found {shown(value, 60)}")
    return str(value)


def _shown(value: Json) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "+".join(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _check(ablation: JsonObject, manifest: Manifest, field: str, where: str) -> None:
    try:
        parse_ablation(ablation, manifest)
    except AblationError as error:
        path = field + error.field.removeprefix("ablation")
        sentence = path + str(error).removeprefix(error.field)
        raise RequestError("invalid_request", sentence + where, path) from None
