"""What the torch peers share: the shipped weights and the plain eager step, one thread.

Our native kernels are off (the caller sets TORSOR_NATIVE): a peer is torch alone, with the faster
of its two exponentials, our polynomial.
"""

import os
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from serve.manifest.page import WEIGHTS_FILE
from serve.manifest.read import read_manifest
from serve.settings import SHIPPED
from train.model import State, family

DEVICE = os.environ.get("TORSOR_BENCH_DEVICE", "cpu")
BUNDLE = SHIPPED / os.environ.get("TORSOR_BENCH_MODEL", "osm-rnn-shakespeare")


class TorchStep:
    """The model of a bundle: a state in, a sampled character and the next state out."""

    def __init__(self, folder: Path = BUNDLE) -> None:
        torch.set_num_threads(1)
        manifest, tensors = read_manifest(folder), load_file(folder / WEIGHTS_FILE)
        kind = family(manifest.family)
        model = kind(kind.Config(**manifest.config)).requires_grad_(False).eval()
        self._model = model.to(DEVICE)
        self._weights = {name: tensors[name].to(DEVICE) for name in model.weights()}
        self.vocabulary = manifest.vocabulary

    @torch.inference_mode()
    def start(self, batch: int) -> tuple[State, Tensor]:
        """Fresh streams, and their first odds (B, V)."""
        state = self._model.init_state(batch)
        return state, self._model.readout(self._weights, state).softmax(-1)

    @torch.inference_mode()
    def step(self, state: State, odds: Tensor) -> tuple[State, Tensor, list[str]]:
        """Draw a character a stream and take it: the next state and odds, and the characters."""
        x = torch.multinomial(odds, 1).squeeze(-1)
        state, logits = self._model.step(self._weights, state, x)
        return state, logits.softmax(-1), [self.vocabulary[i] for i in x.tolist()]
