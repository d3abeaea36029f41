"""One run on several devices, as `torchrun` starts it.

Every process draws the same trials from the same generator and takes its part of them, so a run in
N processes sees what a run in one would see, and the mean of the gradients differs by rounding.

    torchrun --no-python --nproc-per-node 2 -- torsor train osm-rnn --out runs/osm

The `--` keeps torchrun from taking an option such as `--n` for a short form of one of its own. Only
the first process writes and prints.
"""

import os
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from train.settings import Settings


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a run, and the device of this one."""

    rank: int
    size: int
    device: torch.device

    def average(self, tensors: list[Tensor]) -> None:
        """Replace every tensor by its mean over the processes, in one exchange."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        pieces = torch.split(flat / self.size, [tensor.numel() for tensor in tensors])
        for tensor, piece in zip(tensors, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))

    def any(self, here: bool) -> bool:
        """Whether it is so in any process."""
        if self.size == 1:
            return here
        flag = torch.tensor([float(here)], device=self.device)
        distributed.all_reduce(flag)
        return bool(flag > 0)

    def wait(self) -> None:
        """Go on when all processes are here."""
        if self.size > 1:
            distributed.barrier()


def join_world(settings: Settings) -> World:
    """The processes that `torchrun` started, or this one alone.

    Raises `ValueError` for a batch that they can't share, or a device that isn't there.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if settings.batch % size:
        raise ValueError(f"batch: found {settings.batch}, expected a multiple of {size} processes")
    device = torch.device(settings.device)
    if device.type == "cuda":
        device = cuda_device(int(os.environ.get("LOCAL_RANK", "0")), settings.precision == "tf32")
    if size > 1 and not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return World(rank, size, device)


def leave_world() -> None:
    """Part with the other processes, if there are any."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def cuda_device(index: int, tf32: bool) -> torch.device:
    """The CUDA device of a process; its float32 products are rounded to TF32 only if asked for."""
    if index >= (found := torch.cuda.device_count()):
        raise ValueError(
            f"device: found {found} CUDA devices, expected more than {index}; use --device cpu"
        )
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
