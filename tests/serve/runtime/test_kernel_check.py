"""Kernels that compute something else are found when a bundle loads, and the bodies serve.

On CUDA this happens by itself; here, on the CPU, it is asked for, with a library that is wrong on
purpose: the sources as they are, but for one number.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serve.ablation.parse import parse_ablation
from serve.models import Models
from serve.native import build
from serve.native.library import Library, load, status
from serve.runtime import session as sessions
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.runtime.kernel_check import kernel_difference, largest_error, tokens_agree
from serve.runtime.session import BODIES
from serve.settings import SHIPPED

OSM = SHIPPED / "osm-rnn-shakespeare"
CPU = Device("cpu", 1)
MUTATIONS = {  # of a source: a number in it, and the wrong one
    "exponential": ("cpu/constants.h", "0x1.fffff87124d44p-2", "0x1.f0fff87124d44p-2"),
}


@pytest.fixture(autouse=True)
def _needs_kernels() -> None:
    if load() is None:
        pytest.skip(f"needs native kernels: {status()}")


@pytest.fixture(scope="module", params=MUTATIONS)
def wrong_library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Library:
    """A library that is wrong; compiled once."""
    source, number, other = MUTATIONS[request.param]
    folder = tmp_path_factory.mktemp("wrong")
    shutil.copytree(build.SOURCES, folder / "native")
    text = (folder / "native" / source).read_text()
    assert number in text
    (folder / "native" / source).write_text(text.replace(number, other))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "SOURCES", folder / "native")
        patch.setattr(build, "FLAGS", tuple(f for f in build.FLAGS if f != "-O3"))  # it may be slow
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return Library(build.build())


@pytest.fixture
def wrong(wrong_library: Library, monkeypatch: pytest.MonkeyPatch) -> Library:
    """That library, in place of the right one."""
    monkeypatch.setattr(sessions, "load", lambda: wrong_library)
    return wrong_library


def test_right_kernels_are_kept() -> None:
    bundle = Bundle(OSM, CPU, checks_kernels=True)
    assert bundle.plain.session.kernels.startswith("native (")


def test_wrong_kernels_are_refused_and_the_bodies_serve(
    wrong: Library, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("torsor"), "propagate", True)
    bundle = Bundle(OSM, CPU, checks_kernels=True)
    told = bundle.plain.session.kernels
    assert told.startswith(f"{BODIES}: the native (") and "tolerance 5e-05" in told
    warning = next(r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert warning.startswith("osm-rnn-shakespeare: the native (")
    assert warning.endswith("; the operators' bodies run instead")
    ready = Models({bundle.name: bundle}).readiness().models
    assert [model.kernels for model in ready] == [told]


def test_ablated_sessions_follow_without_a_check_of_their_own(
    wrong: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle(OSM, CPU, checks_kernels=True)
    compared = list[Any]()
    monkeypatch.setattr("serve.runtime.bundle.kernel_difference", compared.append)
    edits = {"edits": [{"target": "mixing", "op": "identity"}]}
    ablated = bundle.variant(parse_ablation(edits, bundle.manifest))
    assert ablated.session.kernels == bundle.plain.session.kernels and compared == []


def test_without_a_check_wrong_kernels_would_serve(wrong: Library) -> None:
    bundle = Bundle(OSM, CPU)  # as on the CPU, whose kernels the tests hold
    assert bundle.plain.session.kernels.startswith("native (")
    bodies = bundle._session({}, BODIES)
    difference = kernel_difference(
        bundle.plain.session.run, bodies.run, bundle.manifest, bundle.initial
    )
    assert difference > bundle.manifest.parity.tolerance


@pytest.mark.parametrize("family", ["tanh-rnn", "transformer", "lightning"])
def test_a_session_agrees_with_itself(exported: Callable[[str], Path], family: str) -> None:
    bundle = Bundle(exported(family) / "bundle", CPU)
    run = bundle.plain.session.run
    assert kernel_difference(run, run, bundle.manifest, bundle.initial) == 0.0


@pytest.mark.parametrize(
    ("family", "task"), [("osm-rnn", "copy"), ("osm-rnn", "sine"), ("sparse-xor", "sparse-xor")]
)
def test_models_of_tasks_are_compared_too(
    exported_task: Callable[[str, str], Path], family: str, task: str
) -> None:
    bundle = Bundle(exported_task(family, task) / "bundle", CPU, checks_kernels=True)
    run = bundle.plain.session.run

    def off(feeds: Any) -> Any:
        return {name: value * 1.01 for name, value in run(feeds).items()}

    assert kernel_difference(run, run, bundle.manifest, bundle.initial) == 0.0
    assert kernel_difference(off, run, bundle.manifest, bundle.initial) > 1e-4


def test_what_is_not_finite_or_fails_is_wrong() -> None:
    bundle = Bundle(OSM, CPU)
    run, rest = bundle.plain.session.run, (bundle.manifest, bundle.initial)

    def nan(feeds: Any) -> Any:
        return {name: value * np.nan for name, value in run(feeds).items()}

    def fail(feeds: Any) -> Any:
        raise RuntimeError("no kernel for this device")

    assert kernel_difference(nan, run, *rest) == np.inf
    assert kernel_difference(fail, run, *rest) == np.inf
    assert largest_error({"a": np.ones(0)}, {"a": np.ones(0)}) == 0.0


def test_a_character_may_differ_only_at_an_edge() -> None:
    logits = np.log(np.array([[[0.25, 0.25, 0.5]]]))

    def agree(mine: int, other: int, uniform: float, temperature: float) -> bool:
        feeds = {"uniform": np.array([[uniform]]), "temperature": np.array([temperature])}
        expected = {"tokens": np.array([[other]]), "logits": logits}
        return tokens_agree({"tokens": np.array([[mine]])}, expected, feeds)

    assert agree(1, 1, 0.9, 1.0) and agree(0, 1, 0.2501, 1.0) and agree(0, 1, 0.0, 0.0)
    assert not agree(0, 1, 0.3, 1.0) and not agree(0, 2, 0.5, 1.0)
    assert not agree(0, 2, 0.0, 0.0) and not agree(-1, 0, 0.25, 1.0)
