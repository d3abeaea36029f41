"""The reference that parity is measured against."""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import parser

from export.parity.text import reference


def test_the_reference_bears_logits_that_lie_far_apart(tmp_path: Path) -> None:
    graph = """<ir_version: 10, opset_import: ["" : 20]>
    agraph (float[2, 3] x) => (float[2, 3] y) { y = LogSoftmax <axis: int = 1> (x) }"""
    onnx.save(parser.parse_model(graph), tmp_path / "model.onnx")
    x = np.array([[0, 300, -40], [1, 2, 3]], np.float32)
    found = reference(tmp_path / "model.onnx")({"x": x})["y"]
    np.testing.assert_allclose(found, torch.from_numpy(x).log_softmax(-1).numpy(), rtol=1e-6)
