"""The option --device of the tests: where models run, and what numbers may differ by there.

Without it all runs on the CPU. With `--device cuda` the tests that run models take the GPU: in
sessions of their own and in servers. What one device promises, such as the same bits in any batch,
is tested as an equality on both. Between devices floats are near, no more. Tests of the CPU's own
kernels stay on the CPU.
"""

import pytest

from serve.runtime.device import Device, DeviceError

CLOSE_ON_CUDA = 1e-4  # |a - b| / (1 + |b|), to torch and to numpy on the CPU


def add_option(parser: pytest.Parser) -> None:
    """For conftest.py."""
    told = "where models run (default: cpu)"
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu", help=told)


def chosen(config: pytest.Config) -> Device:
    """The device that the command line says."""
    return Device(config.getoption("--device"), 1)


def check(config: pytest.Config) -> None:
    """One error before all tests where the device doesn't work."""
    if chosen(config).kind == "cpu":
        return
    from where import require

    try:
        require(chosen(config).kind)
    except DeviceError as error:
        raise pytest.UsageError(str(error)) from None


def tolerance(device: Device, on_cpu: float) -> float:
    """What a comparison with another device or another form allows."""
    return on_cpu if device.kind == "cpu" else CLOSE_ON_CUDA
