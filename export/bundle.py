"""From a checkpoint to a bundle: the graph, the weights, the parity report, the manifest.

The bundle is made in a folder beside its place and renamed when it is whole. The same checkpoint
gives the same bytes on one machine.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch

from export.graph import MAX_STEPS, build_advance, runs_end_every
from export.matrix_exp import body_range, body_squarings
from export.parity import Subject, measure_parity
from export.weights import set_weights, write_weights
from serve.manifest import (
    DOMAIN,
    GRAPH_FILE,
    IR_VERSION,
    MANIFEST_FILE,
    NAME_RULE,
    OPSET,
    VERSION,
    WEIGHTS_FILE,
    GraphSpec,
    Manifest,
    StateSpec,
    Target,
    TensorSpec,
    describe_file,
    is_model_name,
    parse_manifest,
    write_manifest,
)
from train.checkpoint import CheckpointError, find_checkpoint, read_checkpoint
from train.matrix_exp import observed_angles
from train.model import Model, Weights, family
from train.tasks.text import VALID_LANES

INITIAL = "initial."  # prefix of initial states among the weights
BPC_PROTOCOL = (
    "mean -log2 p over every character of the split, state carried throughout; the test as one "
    f"stream from its start, the validation in {VALID_LANES} lanes"
)
PROBE_STREAMS, PROBE_CHARACTERS = 32, 512


def export_bundle(run: Path, out: Path, name: str | None = None, quiet: bool = False) -> Manifest:
    """Export the newest checkpoint of a run into the bundle folder `out`.

    Raises `CheckpointError`, `ParityError`, or `ValueError` for a model that can't be exported or a
    place that holds something else; `out` is then as it was. Where `out` is a link, the bundle
    takes the place of the folder that it points to.
    """
    name = name if name is not None else Path(os.path.abspath(out)).name
    if not is_model_name(name):
        raise ValueError(f"name: found {name!r:.120}, expected {NAME_RULE}; choose another --name")
    out = Path(os.path.realpath(out))
    _refuse_other_things(out)
    folder = find_checkpoint(run)
    iteration, config, parameters, _ = read_checkpoint(folder)
    _refuse_untold(folder, config)
    model = restore_model(folder, config, parameters)
    training = provenance(folder, config, iteration)
    with _whole_folder(out) as part:
        manifest = _fill(part, name, model, config, training, quiet)
        write_manifest(part, manifest)
    return manifest


def _refuse_untold(folder: Path, config: dict[str, Any]) -> None:
    training = config["training"]
    if (training["task"], training["symbols"]) != ("text", "characters"):
        raise ValueError(
            f"{folder}: found a model of {training['task']} ({training['symbols']}), expected one "
            "of text made of characters; a bundle can't hold others yet"
        )


def restore_model(folder: Path, config: dict[str, Any], parameters: dict[str, Any]) -> Model:
    """The model of a checkpoint."""
    try:
        kind = family(config["family"])
        model = kind(kind.Config(**config["config"]))
    except (KeyError, TypeError) as error:
        raise CheckpointError(folder / "config.json", f"{error}; newer torsor?") from None
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in parameters.items()}
    if found != expected:
        raise CheckpointError(
            folder / "parameters.safetensors", f"found {found}, expected {expected}"
        )
    model.load_state_dict(parameters)
    return model.requires_grad_(False).eval()


def provenance(folder: Path, config: dict[str, Any], iteration: int) -> dict[str, Any]:
    """How the model was trained and what it scored, from the checkpoint's own record."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scores = {k: line[k] for line in lines for k in ("valid_bpc", "test_bpc") if k in line}
    return {
        "data": config["data"],
        "split": "characters in order: 90 % training, 5 % validation, 5 % test",
        "protocol": BPC_PROTOCOL,
        "iteration": iteration,
        **scores,
        "settings": config["training"] | {"data": config["data"]["name"]},  # not a path
    }


def probe_angle(model: Model, weights: Weights) -> float:
    """Largest angle bound that `MatrixExp` met while the model read characters; 0 if none.

    Half of the streams read random characters, half what the model itself writes.
    """
    generator = torch.Generator().manual_seed(0)
    state, half = model.init_state(PROBE_STREAMS), PROBE_STREAMS // 2
    with observed_angles() as angles, torch.no_grad():
        for position in range(PROBE_CHARACTERS):
            if model.correct_every and position % model.correct_every == 0:
                state = model.correct(state)
            odds = model.readout(weights, state).softmax(-1)
            if not odds.isfinite().all():
                raise ValueError(
                    f"the model's probabilities are not finite after {position} characters; "
                    "train it with a smaller learning rate"
                )
            odds[half:] = 1.0
            x = torch.multinomial(odds, 1, generator=generator).squeeze(-1)  # (PROBE_STREAMS)
            state = model.update(weights, state, x)
    return max(angles, default=0.0)


def _fill(
    part: Path,
    name: str,
    model: Model,
    config: dict[str, Any],
    training: dict[str, Any],
    quiet: bool,
) -> Manifest:
    weights = model.weights()
    squarings = body_squarings(probe_angle(model, weights))
    graph = build_advance(model, weights, squarings)
    _write_graph(part, graph, model, weights)
    twin = part / "random"
    random = _random_twin(config)
    twin.mkdir()
    _write_graph(twin, graph, random, random.weights())
    parity = measure_parity(
        [
            Subject(name="trained", model=model, weights=weights, graph=part / GRAPH_FILE),
            Subject(name="random", model=random, weights=random.weights(), graph=twin / GRAPH_FILE),
        ],
        quiet,
    )
    shutil.rmtree(twin)
    return Manifest(
        name=name,
        family=config["family"],
        config=config["config"],
        num_parameters=model.num_parameters(),
        vocabulary=tuple(config["vocabulary"]),
        states=_states(model),
        graph=_graph_spec(graph, model, squarings),
        targets=_targets(model, weights),
        training=training,
        parity=parity,
        files={file: describe_file(part / file) for file in (GRAPH_FILE, WEIGHTS_FILE)},
    )


def _write_graph(folder: Path, graph: onnx.ModelProto, model: Model, weights: Weights) -> None:
    arrays = {name: value.numpy() for name, value in weights.items()}
    initial = {INITIAL + name: value[0].numpy() for name, value in model.init_state(1).items()}
    offsets = write_weights(folder / WEIGHTS_FILE, arrays | initial)
    whole = onnx.ModelProto()
    whole.CopyFrom(graph)
    set_weights(whole, arrays, WEIGHTS_FILE, offsets)
    (folder / GRAPH_FILE).write_bytes(whole.SerializeToString(deterministic=True))
    onnx.checker.check_model(folder / GRAPH_FILE, full_check=True)


def _random_twin(config: dict[str, Any]) -> Model:
    kind = family(config["family"])
    generator = torch.Generator().manual_seed(1)
    model = kind(kind.Config(**config["config"]), generator)
    return model.requires_grad_(False).eval()


def _states(model: Model) -> tuple[StateSpec, ...]:
    return tuple(
        StateSpec(name=name, dtype="float32", shape=tuple(value.shape[1:]), initial=INITIAL + name)
        for name, value in model.init_state(1).items()
    )


def _graph_spec(graph: onnx.ModelProto, model: Model, squarings: int) -> GraphSpec:
    uses_exp = any(opset.domain == DOMAIN for opset in graph.opset_import)
    return GraphSpec(
        inputs=tuple(_tensor_spec(value) for value in graph.graph.input),
        outputs=tuple(_tensor_spec(value) for value in graph.graph.output),
        correct_every=runs_end_every(model),
        max_steps=MAX_STEPS,
        opset=OPSET,
        ir_version=IR_VERSION,
        operators={DOMAIN: VERSION} if uses_exp else {},
        ranges={"MatrixExp": body_range(squarings)} if uses_exp else {},
    )


def _tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    shape = tuple(d.dim_param or d.dim_value for d in kind.shape.dim)
    return TensorSpec(name=value.name, dtype=dtype, shape=shape)


def _targets(model: Model, weights: Weights) -> tuple[Target, ...]:
    def shape(slices: tuple[tuple[int, int], ...] | None, whole: torch.Size) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in slices) if slices else tuple(whole)

    return tuple(
        Target(
            name=target.name,
            weight=target.weight,
            slice=target.slice,
            shape=shape(target.slice, weights[target.weight].shape),
            ops=target.ops,
            meaning=target.meaning,
        )
        for target in model.targets()
    )


def _refuse_other_things(out: Path) -> None:
    if Path.cwd().is_relative_to(out):
        raise ValueError(
            f"{out}: found the folder you are in, expected one beside or below it, since a bundle "
            "takes the whole place of its folder; leave the folder, or choose another --out"
        )
    if (other := _other_thing(out)) is not None:
        raise ValueError(
            f"{out}: is no bundle: found {other}, expected nothing, an empty folder, or a bundle "
            "and nothing beside it; choose another --out, or remove it"
        )


def _other_thing(out: Path) -> str | None:
    """What of `out` an export must not replace."""
    if not out.is_dir():
        return "a file" if os.path.lexists(out) else None
    names = sorted(path.name for path in out.iterdir())
    if not names:
        return None
    if MANIFEST_FILE not in names:
        return f"{names[0]!r} and no {MANIFEST_FILE}"
    try:
        manifest = parse_manifest(json.loads((out / MANIFEST_FILE).read_bytes()))
    except (ValueError, RecursionError, OSError) as error:
        return f"a {MANIFEST_FILE} of something else ({error})"
    ours = (MANIFEST_FILE, *manifest.files)
    others = [name for name in names if name not in ours or not (out / name).is_file()]
    return f"{others[0]!r}, which its {MANIFEST_FILE} doesn't list" if others else None


@contextmanager
def _whole_folder(out: Path) -> Iterator[Path]:
    """A folder that takes the place of `out` if the block ends well, and vanishes if not."""
    part, old = out.parent / f".{out.name}.part", out.parent / f".{out.name}.old"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        shutil.rmtree(old, ignore_errors=True)
        if out.exists():
            _refuse_other_things(out)  # again: the export took a while
            os.rename(out, old)
        os.rename(part, out)
    except BaseException:
        if old.exists() and not out.exists():
            os.rename(old, out)
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
