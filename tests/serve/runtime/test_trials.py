"""Trials on the server: read, run in pieces, scored as training scores them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from trial_scores import run_trials, score_trials

from serve.manifest.page import TRIALS_FILE, Manifest, TaskSpec
from serve.manifest.read import describe_file
from serve.manifest.read import write_manifest as write
from serve.manifest.values import BundleError
from serve.runtime.bundle import Bundle
from serve.runtime.checks import check_trials
from serve.runtime.device import Device
from serve.runtime.trials import Trials
from train.settings import Settings
from train.tasks.task import Trials as Tensors
from train.tasks.task import make_task, task_names
from train.tasks.trial_task import TrialTask

Array = NDArray[Any]
GENERATED = sorted(set(task_names()) - {"text", "mnist", "spoken-digits"})


@pytest.fixture(scope="module")
def small(exported_task: Any, for_device: Any, device: Device) -> Bundle:
    return Bundle(for_device(exported_task("osm-rnn", "copy") / "bundle"), device)


def spec_of(bundle: Bundle, **changes: Any) -> TaskSpec:
    assert bundle.manifest.task is not None
    return dataclasses.replace(bundle.manifest.task, **changes)


# Scores


@pytest.mark.parametrize("name", GENERATED)
def test_scores_are_those_of_training(small: Bundle, name: str) -> None:
    options = {"num_train": 50, "max_length": 40} if name == "list-ops" else {}
    task = make_task(Settings(task=name), options)
    assert isinstance(task, TrialTask)
    generator = torch.Generator().manual_seed(0)
    trials = task.sample(9, generator)
    outputs = torch.randn(*trials.mask.shape, task.output_size, generator=generator)
    answers = outputs
    if task.pooled:
        mask = trials.mask.unsqueeze(-1)
        answers = (outputs * mask).sum(0, keepdim=True) / mask.sum(0, keepdim=True)
    expected = task.score(answers, trials)
    spec = spec_of(small, targets=task.targets, pooled=task.pooled)
    found = score_trials(spec, outputs.numpy(), Trials(*(t.numpy() for t in trials)))
    assert found == pytest.approx({name: expected[name] for name in found}, rel=1e-5)


def test_targets_that_never_change_leave_no_variance_to_explain(small: Bundle) -> None:
    ones = np.ones((2, 3, 2), np.float32)
    trials = Trials(ones, ones, np.ones((2, 3), np.float32))
    assert score_trials(spec_of(small), 2 * ones, trials)["fvu"] == np.inf
    assert score_trials(spec_of(small), 2 * ones, trials)["loss"] == 1.0


# Runs


@given(batch=st.integers(1, 12), T=st.integers(1, 40))
def test_pieces_of_any_size_have_the_same_bits(small: Bundle, batch: int, T: int) -> None:
    inputs = np.concatenate([small.trials.inputs[:, :11]] * 2)[:T]
    run, manifest, initial = small.plain.session.run, small.manifest, small.initial
    whole = run_trials(run, manifest, initial, inputs)
    assert whole.shape == (T, 11, 2)
    assert run_trials(run, manifest, initial, inputs, batch).tobytes() == whole.tobytes()


def test_no_run_is_longer_than_the_manifest_says_or_passes_a_correction(small: Bundle) -> None:
    def calls_of(every: int, most: int) -> list[tuple[int, int, int]]:
        """First position, steps and batch of all runs of 40 steps and 5 trials."""
        calls = []

        def run(feeds: dict[str, Array]) -> dict[str, Array]:
            K, B = feeds["inputs"].shape[:2]
            assert (feeds["num_steps"] == K).all()
            calls.append((int(feeds["position"][0]), K, B))
            return {"outputs": np.zeros((K, B, 2)), "next.H": feeds["state.H"]}

        graph = dataclasses.replace(small.manifest.graph, correct_every=every, max_steps=most)
        manifest = dataclasses.replace(small.manifest, graph=graph)
        run_trials(run, manifest, small.initial, np.zeros((40, 5, 2), np.float32), 3)
        return calls

    assert calls_of(0, 16) == [(k, n, B) for B in (3, 2) for k, n in [(0, 16), (16, 16), (32, 8)]]
    starts = [(0, 10), (10, 6), (16, 10), (26, 6), (32, 8)]
    assert calls_of(16, 10) == [(k, n, B) for B in (3, 2) for k, n in starts]


# The file


def arrays_of(small: Bundle) -> dict[str, Array]:
    return {name: value.copy() for name, value in small.trials._asdict().items()}


def test_trials_of_every_kind_are_fine(small: Bundle) -> None:
    check_trials(small.folder, spec_of(small), arrays_of(small))
    N = small.trials.mask.shape[1]
    spec = spec_of(small, inputs="characters", targets="classes", pooled=True)
    inputs, targets = np.zeros((4, N), np.int64), np.ones((1, N), np.int64)
    mask = np.ones((4, N), np.float32)
    check_trials(small.folder, spec, {"inputs": inputs, "targets": targets, "mask": mask})
    for name, values in (("inputs", inputs), ("targets", targets)):
        for wrong in (-1, 2):
            arrays: dict[str, Array] = {"inputs": inputs, "targets": targets, "mask": mask}
            arrays[name] = values.copy()
            arrays[name][0, 3] = wrong
            with pytest.raises(BundleError, match=f"{name}: found .* expected 0 to 1"):
                check_trials(small.folder, spec, arrays)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("mask"),
        lambda arrays: arrays.pop("inputs"),
        lambda arrays: arrays.update(other=arrays["mask"]),
        lambda arrays: arrays.update(mask=arrays["mask"][1:]),
        lambda arrays: arrays.update(mask=arrays["mask"][:, 1:]),
        lambda arrays: arrays.update(targets=arrays["targets"][..., :1]),
        lambda arrays: arrays.update(inputs=arrays["inputs"].astype(np.float64)),
        lambda arrays: arrays.update({name: value[:0] for name, value in arrays.items()}),
        lambda arrays: arrays.update(inputs=np.float32(1.0)),
    ],
)
def test_trials_that_are_not_as_the_task_says_are_refused(small: Bundle, change: Any) -> None:
    arrays = arrays_of(small)
    change(arrays)
    with pytest.raises(BundleError, match=rf"{TRIALS_FILE}: found .*, expected .* some steps"):
        check_trials(small.folder, spec_of(small), arrays)


def reseal(folder: Path, manifest: Manifest) -> None:
    files = {name: describe_file(folder / name) for name in manifest.files}
    write(folder, dataclasses.replace(manifest, files=files))


def test_trials_are_read_when_they_are_asked_for(small: Bundle, tmp_path: Path) -> None:
    for name in small.manifest.files:
        (tmp_path / name).write_bytes((small.folder / name).read_bytes())
    (tmp_path / TRIALS_FILE).write_bytes(b"no safetensors file")
    reseal(tmp_path, small.manifest)
    bundle = Bundle(tmp_path, small.device)
    with pytest.raises(BundleError, match=f"{TRIALS_FILE}: not a safetensors file"):
        assert bundle.trials
    arrays = load_file(small.folder / TRIALS_FILE)
    save_file({name: value[:7] for name, value in arrays.items()}, tmp_path / TRIALS_FILE)
    reseal(tmp_path, small.manifest)
    assert Bundle(tmp_path, small.device).trials.inputs.shape[0] == 7


def test_the_names_of_the_file_are_those_that_training_uses() -> None:
    assert Trials._fields == Tensors._fields
