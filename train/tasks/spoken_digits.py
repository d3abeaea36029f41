"""Spoken digits: which digit is said, heard as raw samples.

The Free Spoken Digit Dataset: 8 kHz mono 16-bit WAV files named DIGIT_SPEAKER_NUMBER.wav, from
fsdd/fsdd_recordings.tar.gz or the unpacked folder fsdd/recordings, in $TORSOR_DATA_DIR or the
cache. Recordings numbered 0-4 are the official test; of its training part ours takes 5-9 to
validate. A step hears `frame` samples in [-1, 1] side by side, none twice (32 are 4 ms). Recordings
are cut at `max_samples` and padded with silence to it; outputs count where there is sound.
"""

import hashlib
import io
import os
import re
import tarfile
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from train.data.files import DataError
from train.data.named import data_folders, read_unpacked
from train.settings import Settings, check_range
from train.tasks.task import Part, Trials
from train.tasks.trial_task import TrialTask

ARCHIVE, FOLDER = "fsdd/fsdd_recordings.tar.gz", "fsdd/recordings"
NAME = re.compile(r"(\d)_\w+_(\d{1,4})\.wav")
KIND = (1, 16, 8000)  # channels, bits a sample, samples a second
FULL_SCALE, DIGITS = 32_768.0, 10
NUMBERS = {"test": range(0, 5), "valid": range(5, 10), "train": range(10, 10_000)}


class Recordings(NamedTuple):
    """Recordings side by side, N of them."""

    samples: Tensor  # (N, max_samples) int16, silent after their end
    lengths: Tensor  # (N) samples
    labels: Tensor  # (N) the digits


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenDigitsConfig:
    """How recordings become sequences."""

    frame: int = field(default=32, metadata={"help": "samples a step; 1 is sample by sample"})
    max_samples: int = field(default=6400, metadata={"help": "longest part heard; 8,000 a second"})

    def __post_init__(self) -> None:
        check_range("frame", self.frame, 1, 8000)
        check_range("max_samples", self.max_samples, self.frame, 80_000)


class SpokenDigits(TrialTask):
    """Accuracy of the digit."""

    name = "spoken-digits"
    Config = SpokenDigitsConfig
    targets, pooled = "classes", True
    long = True
    headline = "accuracy"
    better = "higher"

    def __init__(self, config: SpokenDigitsConfig, settings: Settings) -> None:
        super().__init__(config, settings)
        self.input_size, self.output_size = config.frame, DIGITS
        files = sorted(read_files())  # the same order from an archive and from a folder
        self.parts = make_parts(files, config.max_samples)
        digest = hashlib.sha256()
        for name, content in files:
            digest.update(name.encode() + hashlib.sha256(content).digest())
        self.source = self.describe(len(files), files=digest.hexdigest())

    def sample(self, num_trials: int, generator: torch.Generator) -> Trials:
        """Training recordings, each drawn apart from the others."""
        count = len(self.parts["train"].labels)
        return self._trials("train", torch.randint(count, (num_trials,), generator=generator))

    def draw_held_out(self, part: Part, generator: torch.Generator) -> Trials:
        """All recordings of a part."""
        del generator
        return self._trials(part, torch.arange(len(self.parts[part].labels)))

    def _trials(self, part: str, chosen: Tensor) -> Trials:
        samples, lengths, labels = (tensor[chosen] for tensor in self.parts[part])
        num_steps = -(-self.config.max_samples // self.config.frame)
        missing = num_steps * self.config.frame - samples.shape[1]
        frames = pad(samples, (0, missing)).view(len(chosen), num_steps, -1).transpose(0, 1)
        starts = torch.arange(0, num_steps * self.config.frame, self.config.frame).unsqueeze(-1)
        mask = (starts < lengths).float()
        return Trials(frames.float() / FULL_SCALE, labels.unsqueeze(0), mask)


def make_parts(files: list[tuple[str, bytes]], max_samples: int) -> dict[str, Recordings]:
    """Training, validation and test part, by the recordings' numbers."""
    rows: dict[str, list[tuple[Tensor, int]]] = {part: [] for part in NUMBERS}
    for name, content in files:
        label, number = map(int, NAME.fullmatch(name).groups())  # type: ignore[union-attr]
        part = next(part for part, numbers in NUMBERS.items() if number in numbers)
        rows[part].append((parse_wav(name, content)[:max_samples], label))
    if empty := [f"{part} ({NUMBERS[part]})" for part, found in rows.items() if not found]:
        raise DataError(
            f"spoken-digits: found no recordings for {', '.join(empty)}, expected some with "
            "these numbers; fetch the data set again"
        )
    return {part: _stack(found, max_samples) for part, found in rows.items()}


def parse_wav(name: str, content: bytes) -> Tensor:
    """The samples of a WAV file, int16."""
    try:
        with wave.open(io.BytesIO(content)) as reader:
            kind = (reader.getnchannels(), 8 * reader.getsampwidth(), reader.getframerate())
            expected, samples = reader.getnframes(), reader.readframes(reader.getnframes())
    except (EOFError, wave.Error) as error:
        raise DataError(
            f"{name}: found {len(content)} bytes that are no WAV file ({str(error) or 'it ends'}), "
            "expected 16-bit PCM; fetch it again or remove it"
        ) from None
    if kind != KIND:
        raise DataError(
            f"{name}: found {kind}, expected {KIND} as channels, bits and samples a second; "
            "convert it or remove it"
        )
    if len(samples) != 2 * expected or not expected:
        raise DataError(
            f"{name}: found {len(samples) // 2} samples, expected {expected or 'some'}; fetch it "
            "again or remove it"
        )
    return torch.from_numpy(np.frombuffer(samples, "<i2").astype(np.int16))


def read_files() -> Iterator[tuple[str, bytes]]:
    """Names without their folder, and contents, of all recordings."""
    for folder in data_folders():
        if os.path.isfile(path := folder / ARCHIVE):
            return _read_archive(path)
        if os.path.isdir(path := folder / FOLDER):
            return ((p.name, p.read_bytes()) for p in path.iterdir() if NAME.fullmatch(p.name))
    places = " nor ".join(f"{folder / ARCHIVE} nor {folder / FOLDER}" for folder in data_folders())
    raise DataError(
        f"spoken-digits: found neither {places}; set TORSOR_DATA_DIR to a folder that holds one"
    )


def _read_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(read_unpacked(path)), mode="r:") as archive:
            for member in archive:
                name = Path(member.name).name
                if NAME.fullmatch(name) and (stream := archive.extractfile(member)):
                    yield name, stream.read()
    except tarfile.TarError as error:
        raise DataError(
            f"{path}: found no whole tar archive ({error}), expected one; fetch it again"
        ) from None


def _stack(rows: list[tuple[Tensor, int]], max_samples: int) -> Recordings:
    samples = torch.zeros(len(rows), max_samples, dtype=torch.int16)
    for row, (heard, _) in zip(samples, rows, strict=True):
        row[: len(heard)] = heard
    lengths = torch.tensor([len(heard) for heard, _ in rows])
    return Recordings(samples, lengths, torch.tensor([label for _, label in rows]))
