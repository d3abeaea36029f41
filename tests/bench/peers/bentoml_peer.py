"""A plain BentoML service: each request steps the bundle's graph by itself, one character a run.

    bentoml serve bentoml_peer:Writer --port PORT

Server-sent events, a character each. The graph runs as ONNX Runtime has it, without our kernels;
it samples by the random number that it is given. Spans are off, which BentoML opens for each chunk.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from typing import Any

import bentoml
import numpy as np
import onnxruntime
from safetensors.numpy import load_file

from serve.manifest.page import GRAPH_FILE, WEIGHTS_FILE
from serve.manifest.read import read_manifest
from serve.settings import SHIPPED

ON_CUDA = os.environ.get("TORSOR_BENCH_DEVICE") == "cuda"
BUNDLE = SHIPPED / os.environ.get("TORSOR_BENCH_MODEL", "osm-rnn-shakespeare")


@bentoml.service(traffic={"timeout": 600}, tracing={"excluded_urls": ["generate"]})
class Writer:
    """Writes text."""

    def __init__(self) -> None:
        manifest, tensors = read_manifest(BUNDLE), load_file(BUNDLE / WEIGHTS_FILE)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        providers: list[Any] = ["CPUExecutionProvider"]
        if ON_CUDA:
            onnxruntime.preload_dlls()
            providers.insert(0, ("CUDAExecutionProvider", {"use_tf32": "0"}))
        self.session = onnxruntime.InferenceSession(
            BUNDLE / GRAPH_FILE, options, providers=providers
        )
        self.vocabulary, self.generator = manifest.vocabulary, np.random.default_rng()
        self.initial = {f"state.{s.name}": tensors[s.initial][None] for s in manifest.states}
        self.states = [f"next.{state.name}" for state in manifest.states]
        self.constant = {
            "forced": np.full((1, 1), -1),
            "num_steps": np.ones(1, np.int64),
            "temperature": np.ones(1, np.float32),
            "top_k": np.zeros(1, np.int64),
            "top_p": np.ones(1, np.float32),
            "bias": np.zeros((1, len(self.vocabulary)), np.float32),
        }

    @bentoml.api
    async def generate(self, max_tokens: int) -> AsyncGenerator[str, None]:
        """Text, a character an event."""
        feeds, outputs = {**self.constant, **self.initial}, ["tokens", *self.states]
        for position in range(max_tokens):
            feeds["position"] = np.array([position])
            feeds["uniform"] = self.generator.random((1, 1), np.float32)
            tokens, *states = self.session.run(outputs, feeds)
            feeds |= zip(self.initial, states, strict=True)
            yield f"data: {json.dumps({'text': self.vocabulary[int(tokens[0, 0])]})}\n\n"
            await asyncio.sleep(0)
        yield "data: [DONE]\n\n"
