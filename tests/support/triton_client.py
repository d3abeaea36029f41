"""Asks a server through tritonclient, over gRPC and HTTP; prints what it wrote. Not a test."""

import json
import sys
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

grpc_address, http_address, model = sys.argv[1:]


def ask(module: Any, address: str) -> Any:
    client = module.InferenceServerClient(address)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model)
    metadata = client.get_model_metadata(model)
    inputs = metadata["inputs"] if isinstance(metadata, dict) else metadata.inputs
    assert len(inputs) == 9
    assert client.get_server_metadata()
    arrays = {
        "forced": np.array([[1, 2], [-1, -1]]),
        "uniform": np.full((2, 2), 0.5, np.float32),
    }
    tensors = []
    for name, value in arrays.items():
        datatype = "INT64" if value.dtype == np.int64 else "FP32"
        tensors.append(module.InferInput(name, value.shape, datatype))
        tensors[-1].set_data_from_numpy(value)
    whole = client.infer(model, tensors, request_id="one")
    wanted = module.InferRequestedOutput("tokens")
    part = client.infer(model, tensors, outputs=[wanted])
    assert np.isfinite(whole.as_numpy("logits")).all()
    assert np.array_equal(whole.as_numpy("tokens"), part.as_numpy("tokens"))
    try:
        client.infer(model, tensors[:1])
    except module.InferenceServerException as error:
        assert "uniform: missing" in error.message(), error
    else:
        raise AssertionError("a random number was missing, and nothing was said")
    return part.as_numpy("tokens").tolist()


grpc_tokens = ask(tritonclient.grpc, grpc_address)
print(json.dumps([grpc_tokens, ask(tritonclient.http, http_address)]))
