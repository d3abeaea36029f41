"""Sequential MNIST: which digit is it, seen pixel by pixel.

Images come from mnist/*-ubyte in $TORSOR_DATA_DIR or the cache, packed with gzip or not, in the IDX
format. A step shows one pixel in [0, 1] (784 steps) or one row of 28; `permutation fixed` shuffles
the pixels of every image alike, by numpy's RandomState(92916), which is expRNN's and the scaled
Cayley paper's; there is no canonical one, so its SHA-256 is noted. Of the 60,000 training images
the last 5,000 validate. Validation takes the first 2,000 of these, because it comes often, and the
test all 10,000, because it comes once: `num_valid` and `num_test` change that.
"""

import hashlib
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from train.data.files import DataError
from train.data.named import data_folders, find_file, read_unpacked
from train.settings import Settings, check_choices, check_range
from train.tasks.task import Part, Trials
from train.tasks.trial_task import TrialTask

SIDE, PIXELS, DIGITS = 28, 784, 10
NUM_VALID, NUM_TEST = 5000, 10_000
PERMUTATION_SEED = 92916
FILES = {  # of each half: images, labels
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
UNSIGNED_BYTES = 0x08  # the type code of IDX files
Half = tuple[Tensor, Tensor]  # images (N, 784) and labels (N), uint8


@dataclass(frozen=True, slots=True, kw_only=True)
class MnistConfig:
    """How images become sequences."""

    step: str = field(
        default="pixel", metadata={"help": "what a step shows", "choices": ("pixel", "row")}
    )
    permutation: str = field(
        default="none", metadata={"help": "of the pixels", "choices": ("none", "fixed")}
    )
    pool: str = field(
        default="mean", metadata={"help": "outputs that count", "choices": ("mean", "last")}
    )
    num_valid: int = field(default=2000, metadata={"help": "validation images, up to 5,000"})
    num_test: int = field(default=10_000, metadata={"help": "test images, up to 10,000"})

    def __post_init__(self) -> None:
        check_choices(self)
        check_range("num_valid", self.num_valid, 1, NUM_VALID)
        check_range("num_test", self.num_test, 1, NUM_TEST)


class Mnist(TrialTask):
    """Accuracy of the digit."""

    name = "mnist"
    Config = MnistConfig
    targets, pooled = "classes", True
    long = True
    headline = "accuracy"
    better = "higher"

    def __init__(self, config: MnistConfig, settings: Settings) -> None:
        super().__init__(config, settings)
        self.input_size, self.output_size = (1 if config.step == "pixel" else SIDE), DIGITS
        self.order = pixel_order(config.permutation)
        self.halves, digests = load_mnist()
        shuffle = hashlib.sha256(self.order.numpy().astype("<i8").tobytes()).hexdigest()
        if config.permutation != "none":
            self.notes = (f"pixels in the order of SHA-256 {shuffle} (as 784 int64)",)
        size = sum(len(labels) for _, labels in self.halves)
        self.source = self.describe(size, files=digests, permutation=shuffle)

    def sample(self, num_trials: int, generator: torch.Generator) -> Trials:
        """Training images, each drawn apart from the others."""
        count = len(self.halves[0][1]) - NUM_VALID
        return self._trials(
            self.halves[0], torch.randint(count, (num_trials,), generator=generator)
        )

    def draw_held_out(self, part: Part, generator: torch.Generator) -> Trials:
        """The first images of a part."""
        del generator
        if part == "test":
            return self._trials(self.halves[1], torch.arange(self.config.num_test))
        first = len(self.halves[0][1]) - NUM_VALID
        return self._trials(self.halves[0], torch.arange(first, first + self.config.num_valid))

    def _trials(self, half: Half, chosen: Tensor) -> Trials:
        images, labels = half
        pixels = images[chosen][:, self.order].float() / 255.0
        inputs = pixels.view(len(chosen), -1, self.input_size).transpose(0, 1).contiguous()
        mask = torch.ones(inputs.shape[:2])
        if self.config.pool == "last":
            mask[:-1] = 0.0
        return Trials(inputs, labels[chosen].long().unsqueeze(0), mask)


def pixel_order(permutation: str) -> Tensor:
    """The places of an image's pixels in the order of the steps."""
    if permutation == "none":
        return torch.arange(PIXELS)
    return torch.from_numpy(np.random.RandomState(PERMUTATION_SEED).permutation(PIXELS))


def load_mnist() -> tuple[list[Half], dict[str, str]]:
    """Training and test half, and the SHA-256 of the unpacked files."""
    halves, digests = [], {}
    for images_name, labels_name in FILES.values():
        images, digests[images_name] = _read(images_name, (SIDE, SIDE))
        labels, digests[labels_name] = _read(labels_name, ())
        if len(images) != len(labels):
            raise DataError(
                f"mnist: found {len(images)} images in {images_name} and {len(labels)} labels in "
                f"{labels_name}, expected one label an image; fetch both files again"
            )
        halves.append((images.view(-1, PIXELS), labels))
    return halves, digests


def parse_idx(name: str, content: bytes, shape: tuple[int, ...]) -> Tensor:
    """The items (N, *shape) of an unpacked IDX file of unsigned bytes."""
    num_axes = 1 + len(shape)
    header = 4 + 4 * num_axes
    magic = bytes((0, 0, UNSIGNED_BYTES, num_axes))
    if content[:4] != magic:
        raise DataError(
            f"{name}: found {content[:4].hex() or 'nothing'} as the first bytes, expected the "
            f"magic number {magic.hex()} of IDX bytes with {num_axes} axes; fetch the file again"
        )
    if len(content) < header:
        raise DataError(
            f"{name}: found {len(content)} bytes, expected a header of {header}; fetch the file "
            "again"
        )
    sizes = tuple(np.frombuffer(content, ">u4", num_axes, 4).tolist())
    if sizes[1:] != shape:
        raise DataError(f"{name}: found items of {sizes[1:]}, expected {shape}; is it MNIST?")
    if (found := len(content) - header) != (expected := math.prod(sizes)):
        raise DataError(
            f"{name}: found {found} bytes after the header, expected {expected} for "
            f"{sizes[0]} items; fetch the file again"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).view(sizes)


def _read(name: str, shape: tuple[int, ...]) -> tuple[Tensor, str]:
    if (path := find_file(f"mnist/{name}")) is None:
        folders = " nor ".join(str(folder / "mnist") for folder in data_folders())
        raise DataError(
            f"mnist: found no {name}.gz in {folders}; set TORSOR_DATA_DIR to a folder whose folder "
            "mnist holds the four IDX files"
        )
    content = read_unpacked(path)
    return parse_idx(str(path), content, shape), hashlib.sha256(content).hexdigest()
