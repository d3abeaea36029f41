"""ONNX graphs: one step traced from torch, folded into `advance`."""
