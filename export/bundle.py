"""From a checkpoint to a bundle: the graph, the weights, the parity report, the manifest.

The bundle is made in a folder beside its place and renamed when it is whole. The same checkpoint
gives the same bytes on one machine.
"""

import functools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import onnx
import torch

from export.graph.advance import MAX_STEPS, build_advance, runs_end_every
from export.graph.matrix_exp import body_range, body_squarings
from export.graph.task_advance import build_task_advance
from export.graph.unrolled import write_unrolled
from export.out_folder import refuse_other_things, whole_folder
from export.parity.task import measure_task_case
from export.parity.text import ParityError, Subject, measure_parity
from export.parity.unrolled import measure_unrolled, with_unrolled
from export.targets import describe_symmetries, describe_targets, find_subspaces
from export.trials import (
    TaskTrials,
    open_task,
    probe_task_angle,
    task_protocol,
    write_trials,
)
from export.weights_file import set_weights, write_weights
from serve.manifest.page import (
    DOMAIN,
    GRAPH_FILE,
    IR_VERSION,
    NAME_RULE,
    OPSET,
    TRIALS_FILE,
    UNROLLED_FILE,
    VERSION,
    WEIGHTS_FILE,
    GraphSpec,
    Manifest,
    Parity,
    StateSpec,
    TensorSpec,
)
from serve.manifest.read import describe_file, is_model_name, write_manifest
from serve.runtime.bundle import load_as_served
from train.checkpoint import CheckpointError, find_checkpoint, read_checkpoint
from train.groups.matrix_exp import observed_angles
from train.model import Model, State, Weights, family
from train.settings import Settings
from train.tasks.text import text_protocol

INITIAL = "initial."  # prefix of initial states among the weights
SCORES = ("valid_", "test_")  # prefixes of scores in metrics.jsonl
PROBE_STREAMS, PROBE_CHARACTERS = 32, 512


def export_bundle(
    run: Path,
    out: Path,
    name: str | None = None,
    quiet: bool = False,
    cuda: bool = False,
    trials: int | None = None,
) -> Manifest:
    """Export the newest checkpoint of a run into the bundle folder `out`; for CUDA unrolled too.

    At most `trials` of a task's held-out trials travel; None: all that fit.

    Raises `CheckpointError`, `ParityError`, or `ValueError` for a model that can't be exported or a
    place that holds something else; `out` is then as it was. Where `out` is a link, the bundle
    takes the place of the folder that it points to.
    """
    name = name if name is not None else Path(os.path.abspath(out)).name
    if not is_model_name(name):
        raise ValueError(f"name: found {name!r:.120}, expected {NAME_RULE}; choose another --name")
    out = Path(os.path.realpath(out))
    refuse_other_things(out)
    folder = find_checkpoint(run)
    iteration, config, parameters, _ = read_checkpoint(folder)
    model = restore_model(folder, config, parameters)
    is_text = config["training"]["task"] == "text"
    if is_text and trials is not None:
        raise ValueError("trials: found a number, expected none for a model of text; leave it out")
    task = None if is_text else open_task(folder, config, trials)
    training = provenance(folder, config, iteration, task)
    with whole_folder(out) as part:
        try:
            manifest = _fill(part, name, model, config, training, task, quiet, cuda)
        except ParityError as error:
            raise ParityError(f"{error}; no bundle was written") from None
        write_manifest(part, manifest)
        load_as_served(part)
    return manifest


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


def provenance(
    folder: Path, config: dict[str, Any], iteration: int, task: TaskTrials | None
) -> dict[str, Any]:
    """How the model was trained and what it scored, from the checkpoint's own record."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scores = {k: x for line in lines for k, x in line.items() if k.startswith(SCORES)}
    return {
        "data": config["data"],
        **(text_protocol(Settings(**config["training"])) if task is None else task_protocol(task)),
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
    task: TaskTrials | None,
    quiet: bool,
    cuda: bool,
) -> Manifest:
    weights, random = model.weights(), _random_twin(config)
    graph, squarings = _build(model, random, task)
    every = runs_end_every(model) if task is None else model.correct_every
    subspaces = find_subspaces(model, weights, None if task is None else task.spec)
    _write_graph(part, graph, model, weights, subspaces)
    files = [GRAPH_FILE, WEIGHTS_FILE]
    if cuda and write_unrolled(part):
        files.append(UNROLLED_FILE)
    parity = _compare(part, graph, model, random, task, quiet)
    if task is not None:
        write_trials(part / TRIALS_FILE, task.trials)
        files.append(TRIALS_FILE)
    return Manifest(
        name=name,
        family=config["family"],
        config=config["config"],
        num_parameters=model.num_parameters(),
        symbols=config["training"]["symbols"] if task is None else "characters",
        vocabulary=tuple(config["vocabulary"]),
        task=None if task is None else task.spec,
        states=_states(graph, model),
        graph=_graph_spec(graph, squarings, every),
        targets=describe_targets(model, weights),
        symmetries=describe_symmetries(model),
        training=training,
        parity=parity,
        files={file: describe_file(part / file) for file in files},
    )


def _build(model: Model, random: Model, task: TaskTrials | None) -> tuple[onnx.ModelProto, int]:
    weights = model.weights()
    if task is None:
        squarings = body_squarings(probe_angle(model, weights))
        return build_advance(model, weights, squarings), squarings
    inputs, characters = task.trials.inputs, task.spec.inputs == "characters"
    # Which of the two turns further depends on the task's inputs, and one graph serves both.
    angles = [probe_task_angle(m, m.weights(), inputs) for m in (model, random)]
    squarings = body_squarings(max(angles))
    return build_task_advance(model, weights, squarings, characters), squarings


def _compare(
    part: Path,
    graph: onnx.ModelProto,
    model: Model,
    random: Model,
    task: TaskTrials | None,
    quiet: bool,
) -> Parity:
    twin = part / "random"
    twin.mkdir()
    _write_graph(twin, graph, random, random.weights(), {})
    folders = {"trained": (model, part), "random": (random, twin)}
    subjects = [
        Subject(name=name, model=m, weights=m.weights(), graph=folder / GRAPH_FILE)
        for name, (m, folder) in folders.items()
    ]
    measure = None
    if task is not None:
        names = frozenset(value.name for value in graph.graph.input)
        measure = functools.partial(measure_task_case, task.trials.inputs, names)
    parity = measure_parity(subjects, quiet, measure)
    if (part / UNROLLED_FILE).exists():
        write_unrolled(twin)
        parity = with_unrolled(parity, measure_unrolled(subjects, measure))
    shutil.rmtree(twin)
    return parity


def _write_graph(
    folder: Path, graph: onnx.ModelProto, model: Model, weights: Weights, subspaces: Weights
) -> None:
    arrays = {name: value.numpy() for name, value in weights.items()}
    beside = {INITIAL + name: x.numpy() for name, x in _initial_states(graph, model).items()}
    beside |= {name: value.numpy() for name, value in subspaces.items()}
    offsets = write_weights(folder / WEIGHTS_FILE, arrays | beside)
    whole = onnx.ModelProto()
    whole.CopyFrom(graph)
    set_weights(whole, arrays, WEIGHTS_FILE, offsets)
    (folder / GRAPH_FILE).write_bytes(whole.SerializeToString(deterministic=True))
    onnx.checker.check_model(folder / GRAPH_FILE, full_check=True)


def _initial_states(graph: onnx.ModelProto, model: Model) -> State:
    """The state tensors of one fresh stream that the graph takes: a whole-input graph, none."""
    taken = {value.name for value in graph.graph.input}
    return {n: x[0] for n, x in model.init_state(1).items() if f"state.{n}" in taken}


def _random_twin(config: dict[str, Any]) -> Model:
    kind = family(config["family"])
    generator = torch.Generator().manual_seed(1)
    model = kind(kind.Config(**config["config"]), generator)
    return model.requires_grad_(False).eval()


def _states(graph: onnx.ModelProto, model: Model) -> tuple[StateSpec, ...]:
    state = model.init_state(1)
    element = model.elements(state)

    def spec(name: str, value: torch.Tensor) -> StateSpec:
        names = {"name": name, "dtype": "float32", "initial": INITIAL + name}
        return StateSpec(**names, shape=tuple(value.shape), orthogonal=state[name] is element)

    return tuple(spec(name, value) for name, value in _initial_states(graph, model).items())


def _graph_spec(graph: onnx.ModelProto, squarings: int, every: int) -> GraphSpec:
    uses_exp = any(function.name == "MatrixExp" for function in graph.functions)
    return GraphSpec(
        inputs=tuple(_tensor_spec(value) for value in graph.graph.input),
        outputs=tuple(_tensor_spec(value) for value in graph.graph.output),
        correct_every=every,
        max_steps=MAX_STEPS,
        opset=OPSET,
        ir_version=IR_VERSION,
        operators={DOMAIN: VERSION} if graph.functions else {},
        ranges={"MatrixExp": body_range(squarings)} if uses_exp else {},
    )


def _tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    shape = tuple(d.dim_param or d.dim_value for d in kind.shape.dim)
    return TensorSpec(name=value.name, dtype=dtype, shape=shape)
