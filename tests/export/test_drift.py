"""Long streams stay on their group: the shipped OSM-RNN, 100,000 characters in float32."""

import numpy as np
import pytest

import serve.runtime.session
from serve.native.library import load, status
from serve.runtime.bundle import Bundle
from serve.runtime.device import Device
from serve.settings import SHIPPED

STEPS = {"native": 100_000, "standard": 20_000}  # bodies are slower


@pytest.mark.parametrize("kernels", STEPS)
def test_a_long_stream_stays_orthogonal(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels == "standard":
        monkeypatch.setattr(serve.runtime.session, "load", lambda: None)
    elif load() is None:
        pytest.skip(status())
    bundle = Bundle(SHIPPED / "osm-rnn-shakespeare", Device("cpu", 1))
    assert bundle.plain.session.kernels.startswith(kernels)
    V, rng, K = len(bundle.manifest.vocabulary), np.random.default_rng(0), 16
    feeds = {f"state.{name}": value[None] for name, value in bundle.initial.items()} | {
        "num_steps": np.array([K]),
        "uniform": np.zeros((K, 1), np.float32),
        "temperature": np.ones(1, np.float32),
        "top_k": np.zeros(1, np.int64),
        "top_p": np.ones(1, np.float32),
        "bias": np.zeros((1, V), np.float32),
    }
    worst = 0.0
    for position in range(0, STEPS[kernels], K):
        steps = {"position": np.array([position]), "forced": rng.integers(0, V, (K, 1))}
        H = bundle.plain.session.run(feeds | steps)["next.H"]
        feeds["state.H"] = H
        if position % 4096 == 0 or position + K >= STEPS[kernels]:
            worst = max(worst, float(np.abs(H[0].T @ H[0] - np.eye(H.shape[-1])).max()))
    assert worst <= 1e-5
