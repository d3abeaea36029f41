"""ONNX Runtime without its telemetry: whoever needs it takes it from here.

Its builds for Linux look up their maker's host as soon as they are loaded, and write an identifier
of the device into the cache. The variable turns all of that off, if it is set before; the function
`disable_telemetry_events` comes too late.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime

__all__ = ["onnxruntime"]
