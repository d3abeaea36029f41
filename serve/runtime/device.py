"""Devices that sessions run on, and whether a GPU is there."""

import ctypes
from dataclasses import dataclass


class DeviceError(ValueError):
    """The device that was asked for doesn't work here."""


@dataclass(frozen=True, slots=True)
class Device:
    """Where sessions run: "cpu" or "cuda"; `num_threads` of one run on the CPU."""

    kind: str
    num_threads: int

    @property
    def provider(self) -> str:
        """ONNX Runtime's name for it."""
        return {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}[self.kind]


def cuda_device_present() -> bool:
    """Whether the driver answers and counts at least one GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    ready = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return ready and count.value > 0
