"""Tasks of trials: shapes, rules against plain references, scores, files."""

import functools
import gzip
import io
import math
import re
import struct
import tarfile
import wave
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from train.data.files import DataError
from train.model import scan_reference
from train.models.tanh_rnn import TanhRnn, TanhRnnConfig
from train.settings import Settings
from train.tasks import list_ops, mnist, spoken_digits
from train.tasks.list_ops import PADDING, TOKENS, ListOpsConfig, Tree
from train.tasks.task import Trials, task_kind, task_names
from train.tasks.trial_task import TrialTask, unexplained_variance

NAMES = [name for name in task_names() if name != "text"]
SMALL: dict[str, dict[str, Any]] = {
    "copy": {"train_lags": 12, "lags": 20},
    "adding": {"length": 21},
    "list-ops": {"num_train": 200, "max_length": 60},
    "mnist": {"step": "row", "num_valid": 40, "num_test": 10},
    "spoken-digits": {"frame": 50, "max_samples": 420},
}
POOLED = ("adding", "list-ops", "mnist", "spoken-digits")
B = 16

every_task = pytest.mark.parametrize("name", NAMES)
every_reader = pytest.mark.parametrize("name", ["mnist", "spoken-digits"])


def make(name: str, **options: Any) -> TrialTask:
    kind: Any = task_kind(name)
    task = kind(kind.Config(**{**SMALL.get(name, {}), **options}), Settings())
    assert isinstance(task, TrialTask)
    return task


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sample(task: TrialTask, count: int = B, seed: int = 0) -> Trials:
    return task.sample(count, seeded(seed))


def idx(items: bytes, *sizes: int) -> bytes:
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, 8, len(sizes), *sizes) + items


def wav(samples: list[int], channels: int = 1, width: int = 2, rate: int = 8000) -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return content.getvalue()


def noise(count: int, seed: int) -> Tensor:
    return torch.randint(256, (count,), dtype=torch.uint8, generator=seeded(seed))


def write_mnist(folder: Path) -> None:
    """5,100 images of noise to train and validate on, 10 to test."""
    folder.mkdir(parents=True)
    for seed, (half, count) in enumerate({"train": 5100, "test": 10}.items()):
        images, labels = mnist.FILES[half]
        pixels, digits = noise(count * 784, seed), noise(count, seed + 10) % 10
        packed = gzip.compress(idx(pixels.numpy().tobytes(), count, 28, 28), 1)
        (folder / f"{images}.gz").write_bytes(packed)
        (folder / labels).write_bytes(idx(digits.numpy().tobytes(), count))


def write_recordings(folder: Path) -> None:
    """12 recordings of each digit, 100 to 480 samples long."""
    folder.mkdir(parents=True)
    for digit in range(10):
        for number in range(12):
            samples = noise(100 + 20 * digit + 18 * number, 100 * digit + number).int() * 90 - 9000
            (folder / f"{digit}_ann_{number}.wav").write_bytes(wav(samples.tolist()))


@pytest.fixture(scope="module")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_mnist(folder / "mnist")
    write_recordings(folder / "fsdd/recordings")
    return folder


@pytest.fixture(autouse=True)
def data_places(small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data in $TORSOR_DATA_DIR, an empty cache."""
    monkeypatch.setenv("TORSOR_DATA_DIR", str(small_data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@functools.cache
def made(name: str) -> TrialTask:
    """The small task, made once."""
    return make(name)


def columns(trials: Trials) -> set[tuple[float, ...]]:
    """The inputs of every trial, without padding."""
    rows = trials.inputs.transpose(0, 1).flatten(1).tolist()
    return {tuple(x for x in row if x != PADDING) for row in rows}


def right_answers(task: TrialTask, trials: Trials) -> Tensor:
    """Outputs that say exactly what is owed."""
    if task.targets == "vectors":
        return trials.targets
    return 50.0 * torch.nn.functional.one_hot(trials.targets, task.output_size).float()


def small_model(task: TrialTask) -> TanhRnn:
    config = TanhRnnConfig(input_size=task.input_size, output_size=task.output_size, n=6)
    return TanhRnn(config, seeded(0))


def values(tensor: Tensor) -> list[float]:
    """The different values in a tensor, smallest first."""
    return sorted(set(tensor.flatten().tolist()))


@every_task
def test_trials_have_the_shapes_of_the_contract(name: str) -> None:
    task = made(name)
    xs, targets, mask = sample(task)
    T = len(xs)
    rows = 1 if task.pooled else T
    if task.takes == "vectors":
        assert xs.shape == (T, B, task.input_size)
        assert xs.dtype == torch.float32
        assert xs.isfinite().all()
    else:
        assert xs.shape == (T, B)
        assert xs.dtype == torch.int64
        assert 0 <= xs.min() and xs.max() < task.input_size
    if task.targets == "vectors":
        assert targets.shape == (rows, B, task.output_size)
        assert targets.dtype == torch.float32
    else:
        assert targets.shape == (rows, B)
        assert targets.dtype == torch.int64
        assert 0 <= targets.min() and targets.max() < task.output_size
    assert mask.shape == (T, B)
    assert mask.dtype == torch.float32
    assert values(mask) in ([1.0], [0.0, 1.0])
    assert mask.sum(0).min() >= 1


@every_task
def test_a_seed_decides_all_trials(name: str) -> None:
    task, again = made(name), make(name)
    global_state = torch.get_rng_state()
    for left, right in zip(sample(task, seed=3), sample(again, seed=3), strict=True):
        assert torch.equal(left, right)
    assert not torch.equal(sample(task, seed=3).targets, sample(task, 64, seed=4).targets[:, :B])
    assert torch.equal(torch.get_rng_state(), global_state)


@every_task
def test_held_out_trials_stay_and_are_never_trained_on(name: str) -> None:
    task, again = made(name), make(name)
    parts = [columns(task.held_out(part)) for part in ("valid", "test")]
    assert torch.equal(task.held_out("valid").inputs, again.held_out("valid").inputs)
    assert torch.equal(task.held_out("test").targets, again.held_out("test").targets)
    assert not parts[0] & parts[1]
    assert not columns(sample(task, 400)) & (parts[0] | parts[1])


@every_task
def test_a_part_is_every_nth_trial(name: str) -> None:
    trials = sample(made(name))
    parts = [trials.part(index, 3) for index in range(3)]
    assert [part.mask.shape[1] for part in parts] == [6, 5, 5]
    for whole, piece in zip(trials, parts[1], strict=True):
        assert torch.equal(piece[:, 2], whole[:, 7])


@every_task
def test_right_answers_get_the_best_scores(name: str) -> None:
    task = made(name)
    trials = task.held_out("valid")
    scores = task.score(right_answers(task, trials), trials)
    best = {"fvu": 0.0, "mse": 0.0, "accuracy": 1.0, "replay_accuracy": 1.0}
    assert scores["loss"] == pytest.approx(0.0, abs=1e-6)
    assert {key: scores[key] for key in best if key in scores} == {
        key: value for key, value in best.items() if key in scores
    }
    assert task.headline in scores
    assert task.better == ("lower" if best[task.headline] == 0.0 else "higher")


@every_task
def test_the_mean_explains_no_variance(name: str) -> None:
    task = made(name)
    trials = task.held_out("valid")
    if task.targets == "classes":
        guess = torch.zeros(1, trials.targets.shape[1], task.output_size)
        assert task.score(guess, trials)["loss"] == pytest.approx(math.log(task.output_size))
        return
    owed = trials.mask.bool() if not task.pooled else torch.ones(trials.targets.shape[:2]).bool()
    mean = trials.targets[owed].mean(0).expand(trials.targets.shape)
    assert task.score(mean, trials)["fvu"] == pytest.approx(1.0, abs=1e-5)


def test_steps_that_owe_nothing_dont_count() -> None:
    task = made("copy")
    trials = sample(task)
    outputs = trials.targets.clone()
    outputs[:8] = 7.0
    assert task.score(outputs, trials)["fvu"] == 0.0
    outputs[8] *= -1.0
    scores = task.score(outputs, trials)
    assert scores["replay_accuracy"] == pytest.approx(11 / 12)
    assert scores["loss"] == pytest.approx(4 / 12)


def test_unexplained_variance_is_per_output() -> None:
    targets = torch.tensor([[[0.0, 5.0]], [[2.0, 5.0]]])
    outputs = torch.tensor([[[0.0, 5.0]], [[1.0, 5.0]]])
    assert unexplained_variance(outputs, targets, torch.ones(2, 1)) == pytest.approx(0.5)


@every_task
def test_the_loss_is_the_score_of_the_same_trials(name: str) -> None:
    task = made(name)
    model, trials = small_model(task), sample(task)
    loss = task.loss(model, trials)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        scores = task.score(task.outputs(model, trials), trials)
    assert scores["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)


@every_task
def test_evaluation_covers_all_held_out_trials(name: str) -> None:
    task = made(name)
    model, trials = small_model(task), task.held_out("test")
    with torch.no_grad():
        expected = task.score(task.outputs(model, trials), trials)
    assert task.evaluate(model, "test") == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", POOLED)
def test_outputs_are_pooled_over_the_steps_that_count(name: str) -> None:
    task = made(name)
    model, trials = small_model(task), sample(task)
    with torch.no_grad():
        _, ys = scan_reference(model, model.weights(), model.init_state(B), trials.inputs)
        outputs = task.outputs(model, trials)
    for b in range(B):
        counted = torch.stack([y for y, m in zip(ys[:, b], trials.mask[:, b], strict=True) if m])
        torch.testing.assert_close(outputs[0, b], counted.mean(0))


def test_copy_repeats_the_symbols_with_their_period() -> None:
    for trials, lags in ((sample(made("copy")), 12), (made("copy").held_out("test"), 20)):
        xs, targets, mask = trials
        assert len(xs) == 8 + lags
        assert values(xs[:8]) == [-1.0, 1.0]
        assert xs[8:].abs().max() == 0.0
        for lag in range(1, lags + 1):
            assert torch.equal(targets[7 + lag], xs[(lag - 1) % 8])
        assert mask[:, 0].tolist() == [0.0] * 8 + [1.0] * lags


def test_flip_flop_holds_the_sign_of_the_last_pulse() -> None:
    xs, targets, _ = sample(made("flip-flop"), 64)
    for pulses, owed in zip(xs.flatten(1).T.tolist(), targets.flatten(1).T.tolist(), strict=True):
        held = 0.0
        for pulse, sign in zip(pulses, owed, strict=True):
            held = pulse or held
            assert sign == held
    assert (xs != 0.0).float().mean() == pytest.approx(0.2, abs=0.02)
    assert values(xs) == [-1.0, 0.0, 1.0]


def test_sine_swings_as_fast_as_its_cue_says() -> None:
    xs, targets, _ = sample(made("sine"), 64)
    for b in range(64):
        (cue,) = values(xs[:, b])
        frequency = 0.1 + 0.5 * (cue - 0.25)
        assert 0.1 <= frequency <= 0.6
        wave_form = [math.sin(frequency * (t + 1)) for t in range(50)]
        assert targets[:, b, 0].tolist() == pytest.approx(wave_form, abs=1e-4)


def test_integration_sums_the_stimulus_that_the_context_names() -> None:
    xs, targets, _ = sample(made("integration"), 64)
    chosen = xs[0, :, 3].tolist()
    assert 16 < sum(chosen) < 48
    for b in range(64):
        trial, total, sums = xs[:, b].tolist(), 0.0, []
        for step in trial:
            assert step[2:] == [1.0 - chosen[b], chosen[b]]
            total += step[int(chosen[b])]
            sums.append(total / math.sqrt(48))
        assert targets[:, b, 0].tolist() == pytest.approx(sums, abs=1e-5)


def test_adding_marks_one_number_in_each_half() -> None:
    xs, targets, mask = sample(made("adding"), 400)
    numbers, markers = xs.unbind(-1)
    assert values(markers[:10].sum(0)) == [1.0]
    assert values(markers[10:].sum(0)) == [1.0]
    assert (markers.sum(1) > 0).all()  # every step is marked at times
    for b in range(400):
        first, second = markers[:, b].nonzero().flatten().tolist()
        assert targets[0, b, 0] == pytest.approx(float(numbers[first, b] + numbers[second, b]))
    assert mask.sum(1).tolist() == [0.0] * 20 + [400.0]
    assert targets.var() == pytest.approx(1 / 6, abs=0.03)


def test_sparse_xor_depends_on_two_bits_that_a_seed_names() -> None:
    task: Any = made("sparse-xor")
    xs, targets, _ = sample(task)
    i, j = task.support
    assert i != j
    assert [float(y) for y in targets[0, :, 0]] == [float(-x[i] * x[j]) for x in xs[0]]
    supports = {tuple(make("sparse-xor", support_seed=seed).support) for seed in range(8)}  # type: ignore[attr-defined]
    assert len(supports) == 8


HAND_MADE = {
    "[MED 1 2 ]": 1,
    "[MED 3 9 8 ]": 8,
    "[MED 9 1 4 2 ]": 3,
    "[SM 7 8 9 ]": 4,
    "[MIN 4 [MAX 1 9 ] 6 ]": 4,
    "[MAX [SM 5 5 ] [MED 0 9 ] ]": 4,
    "7": 7,
}


def innermost_first(text: str) -> int:
    """The value of a text by replacing lists without lists in them, until none is left."""
    text = text.replace("(", " ").replace(")", " ")
    while found := re.search(r"\[(\w+)([ \d]*)\]", text):
        values = sorted(map(int, found[2].split()))
        middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2
        value = {"MIN": values[0], "MAX": values[-1], "MED": middle, "SM": sum(values) % 10}
        text = text.replace(found[0], str(value[found[1]]), 1)
    return int(text)


@pytest.mark.parametrize("text", HAND_MADE)
def test_lists_have_the_values_that_people_work_out(text: str) -> None:
    tree = list_ops.from_text(text)
    assert list_ops.evaluate(tree) == HAND_MADE[text] == innermost_first(text)
    assert " ".join(list_ops.to_tokens(tree)) == text


def test_lists_are_written_as_in_the_original_files() -> None:
    tree: Tree = ("[MAX", (3, ("[SM", (4, 5)), 6))
    text = "( ( ( ( [MAX 3 ) ( ( ( [SM 4 ) 5 ) ] ) ) 6 ) ] )"
    assert list_ops.to_text(tree) == text
    assert list_ops.from_text(text) == tree


@pytest.mark.parametrize("text", ["", "]", "[MAX ]", "[MAX 1", "1 2", "[FIRST 1 2 ]", "12"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="^list: found .* expected"):
        list_ops.from_text(text)


def test_lists_in_the_pool_are_distinct_and_right() -> None:
    task: Any = made("list-ops")
    texts = {" ".join(TOKENS[i] for i in tokens): value for tokens, value in task.pool}
    assert len(texts) == len(task.pool) == 200 + 2 * 1024
    for text, value in texts.items():
        assert 20 < len(text.split()) < 60
        assert innermost_first(text) == value
        assert text == " ".join(list_ops.to_tokens(list_ops.from_text(text)))
    shares = torch.tensor(list(texts.values())).bincount() / len(texts)
    assert shares[[0, 9]].min() > 1.2 * shares[1:9].max()
    scores = task.score(torch.zeros(1, 1024, 10), task.held_out("valid"))
    assert scores["majority"] == pytest.approx(0.16, abs=0.03)


def length_shares(config: ListOpsConfig) -> list[float]:
    """The exact probability of each length of a tree below max_length, by the rules."""
    limit = config.max_length
    shares = [float(length == 1) for length in range(limit)]
    for _ in range(config.max_depth - 1):  # from the deepest level up
        above, sums = [0.75 * (length == 1) for length in range(limit)], shares
        for _ in range(2, config.max_args + 1):
            sums = [sum(sums[i] * shares[n - i] for i in range(n + 1)) for n in range(limit)]
            for length in range(2, limit):
                above[length] += 0.25 / (config.max_args - 1) * sums[length - 2]
        shares = above
    return shares


def test_lists_are_as_long_and_as_mixed_as_the_rules_make_them() -> None:
    config = ListOpsConfig(min_length=3, max_length=40, max_depth=5, max_args=6)
    tries = 40_000
    lists = list(map(list_ops.to_tokens, list_ops.draw_trees(config, tries, seeded(0))))
    shares = length_shares(config)
    found = torch.bincount(torch.tensor([len(words) for words in lists]), minlength=40) / tries
    for length in range(40):
        expected = shares[length] if length > 3 else 0.0
        spread = 4.0 * math.sqrt(expected / tries)
        assert found[length] == pytest.approx(expected, abs=spread)
    for kind in ("0123456789", ("[MIN", "[MAX", "[MED", "[SM")):
        counts = [sum(words.count(word) for words in lists) for word in kind]
        assert max(counts) < 1.1 * min(counts)
    depths = [max(accumulate((w in list_ops.OPERATIONS) - (w == "]") for w in x)) for x in lists]
    assert max(depths) == 4


def test_lists_end_where_their_mask_is_one() -> None:
    xs, _, mask = sample(made("list-ops"))
    for b in range(B):
        (last,) = mask[:, b].nonzero().flatten().tolist()
        assert xs[last, b] == TOKENS.index("]")
        assert (xs[last + 1 :, b] == PADDING).all()
        assert (xs[: last + 1, b] != PADDING).all()


def test_lists_that_cant_be_had_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_ops, "MOST_TRIES", 4)
    with pytest.raises(ValueError, match="^num_train: found 10 distinct lists .* expected 100"):
        list_ops.draw_pool(ListOpsConfig(min_length=0, max_length=2), 100)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("copy", {"symbols": 0}),
        ("flip-flop", {"rate": 0.0}),
        ("flip-flop", {"rate": math.nan}),
        ("sine", {"slowest": 0.6}),
        ("sine", {"fastest": 4.0}),
        ("integration", {"noise": -1.0}),
        ("integration", {"noise": 0.0, "drift": 0.0}),
        ("adding", {"length": 1}),
        ("list-ops", {"max_length": 21}),
        ("list-ops", {"max_depth": 11}),
        ("mnist", {"permutation": "random"}),
        ("mnist", {"num_test": 10_001}),
        ("spoken-digits", {"frame": 0}),
        ("sparse-xor", {"d": 1}),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}.*: found .* expected"):
        task_kind(name).Config(**options)


@every_task
def test_a_source_tells_options_apart(name: str) -> None:
    other: dict[str, Any] = {
        "copy": {"bits": 4},
        "list-ops": {"pool_seed": 1},
        "mnist": {"permutation": "fixed"},
    }
    fallback: dict[str, Any] = {
        "flip-flop": {"bits": 2},
        "spoken-digits": {"frame": 10},
        "sparse-xor": {"d": 9},
    }
    options = {**other, **fallback}.get(name, {"length": 9})
    assert made(name).source == make(name).source
    assert make(name, **options).source.sha256 != made(name).source.sha256


def test_mnist_shows_pixels_rows_and_permuted_pixels(small_data: Path) -> None:
    packed = (small_data / "mnist" / (mnist.FILES["test"][0] + ".gz")).read_bytes()
    image = torch.tensor(list(gzip.decompress(packed)[16:800])) / 255.0
    pixels, rows = make("mnist", step="pixel"), make("mnist")
    shuffled = make("mnist", step="pixel", permutation="fixed", pool="last")
    assert torch.equal(pixels.held_out("test").inputs[:, 0, 0], image)
    assert torch.equal(rows.held_out("test").inputs[:, 0], image.view(28, 28))
    order = np.random.RandomState(92916).permutation(784)
    assert torch.equal(shuffled.held_out("test").inputs[:, 0, 0], image[torch.from_numpy(order)])
    assert shuffled.held_out("test").mask[:, 0].tolist() == [0.0] * 783 + [1.0]
    assert order[:4].tolist() == [319, 576, 323, 107]
    assert re.search("SHA-256 [0-9a-f]{64}", " ".join(shuffled.notes))


def test_recordings_are_the_same_from_an_archive(small_data: Path, tmp_path: Path) -> None:
    (tmp_path / "fsdd").mkdir()
    with tarfile.open(tmp_path / spoken_digits.ARCHIVE, "w:gz") as archive:
        archive.add(small_data / spoken_digits.FOLDER, "recordings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORSOR_DATA_DIR", str(tmp_path))
        assert make("spoken-digits").source == made("spoken-digits").source


def test_recordings_are_cut_padded_and_masked(small_data: Path) -> None:
    task = made("spoken-digits")
    content = (small_data / spoken_digits.FOLDER / "0_ann_0.wav").read_bytes()
    xs, targets, mask = task.held_out("test")
    assert xs.shape == (9, 50, 50)
    assert targets[0].tolist() == [digit for digit in range(10) for _ in range(5)]
    heard = spoken_digits.parse_wav("wav", content)
    assert len(heard) == 100
    assert torch.equal(xs[:, 0].flatten()[:100], heard / 32768)
    assert xs[2:, 0].abs().max() == 0.0
    assert mask[:, 0].tolist() == [1.0] * 2 + [0.0] * 7
    assert mask[:, 1].tolist() == [1.0] * 3 + [0.0] * 6  # 118 samples
    assert xs.abs().max() <= 1.0


@every_reader
def test_missing_files_are_told_with_their_places(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(DataError) as caught:
        make(name)
    sentence = str(caught.value)
    assert sentence.startswith(f"{name}: found ")
    assert f"{tmp_path}/nowhere/" in sentence
    assert f"{tmp_path}/cache/torsor/" in sentence
    assert "set TORSOR_DATA_DIR" in sentence


IMAGES = idx(bytes(2 * 784), 2, 28, 28)
BAD_IDX = {
    "nothing": (b"", "found nothing as the first bytes, expected the magic number 00000803"),
    "labels": (idx(b"12", 2), "found 00000801 .* expected the magic number 00000803"),
    "floats": (b"\0\0\x0d\x03" + IMAGES[4:], "found 00000d03 .* expected"),
    "short header": (IMAGES[:9], "found 9 bytes, expected a header of 16"),
    "short body": (IMAGES[:-5], "found 1563 bytes after the header, expected 1568 for 2 items"),
    "long body": (IMAGES + b"x", "found 1569 bytes after the header, expected 1568"),
    "other size": (idx(bytes(64), 1, 8, 8), r"found items of \(8, 8\), expected \(28, 28\)"),
}


@pytest.mark.parametrize("case", BAD_IDX)
def test_bad_idx_files_are_refused(case: str) -> None:
    content, sentence = BAD_IDX[case]
    with pytest.raises(DataError, match=f"^images: {sentence}"):
        mnist.parse_idx("images", content, (28, 28))


def test_images_without_labels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / mnist.FILES["train"][1]).write_bytes(idx(bytes(9), 9))
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path))
    with pytest.raises(DataError, match="found 5100 images in train.* and 9 labels in train"):
        make("mnist")


def test_a_truncated_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path))
    (archive := tmp_path / spoken_digits.ARCHIVE).parent.mkdir()
    archive.write_bytes(gzip.compress(b"no tar at all" * 99)[:-9])
    with pytest.raises(DataError, match="found a gzip file that doesn't unpack"):
        make("spoken-digits")
    archive.write_bytes(gzip.compress(b"no tar at all" * 99))
    with pytest.raises(DataError, match="found no whole tar archive .* fetch it again"):
        make("spoken-digits")


GOOD_WAV = wav([1, -2, 3])
BAD_WAV = {
    "nothing": (b"", "found 0 bytes that are no WAV file"),
    "text": (b"not a sound at all", "found 18 bytes that are no WAV file .*RIFF"),
    "short header": (GOOD_WAV[:30], "found 30 bytes that are no WAV file"),
    "short body": (GOOD_WAV[:-3], "found 1 samples, expected 3"),
    "silence": (wav([]), "found 0 samples, expected some"),
    "stereo": (wav([1, 2], channels=2), r"found \(2, 16, 8000\), expected \(1, 16, 8000\)"),
    "8 bits": (wav([1, 2], width=1), r"found \(1, 8, 8000\), expected \(1, 16, 8000\)"),
    "other rate": (wav([1, 2], rate=16_000), r"found \(1, 16, 16000\), expected"),
}


@pytest.mark.parametrize("case", BAD_WAV)
def test_bad_recordings_are_refused_by_name(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, sentence = BAD_WAV[case]
    write_recordings(tmp_path / spoken_digits.FOLDER)
    (tmp_path / spoken_digits.FOLDER / "3_ann_7.wav").write_bytes(content)
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path))
    with pytest.raises(DataError, match=f"^3_ann_7.wav: {sentence}"):
        make("spoken-digits")


def test_recordings_must_be_there_for_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / spoken_digits.FOLDER).mkdir(parents=True)
    (folder / "0_ann_3.wav").write_bytes(GOOD_WAV)
    monkeypatch.setenv("TORSOR_DATA_DIR", str(tmp_path))
    with pytest.raises(DataError, match="found no recordings for valid .* train .* expected"):
        make("spoken-digits")


@pytest.fixture
def real_data(data_places: None, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The public data sets in $TORSOR_DATA_DIR again."""
    monkeypatch.setenv("TORSOR_DATA_DIR", str(data_dir))


def test_mnist_itself(real_data: None) -> None:
    task: Any = make("mnist", num_valid=5000, num_test=10_000)
    (train, labels), (test, test_labels) = task.halves
    assert (train.shape, test.shape) == ((60_000, 784), (10_000, 784))
    assert labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert labels.bincount().tolist()[:3] == [5923, 6742, 5958]
    assert task.held_out("valid").inputs.shape == (28, 5000, 28)
    assert torch.equal(task.held_out("valid").targets[0], labels[55_000:].long())
    assert float(train.float().mean() / 255) == pytest.approx(0.1307, abs=1e-4)


def test_the_spoken_digits_themselves(real_data: None) -> None:
    task: Any = make("spoken-digits", frame=32, max_samples=6400)
    assert [len(task.parts[part].labels) for part in ("train", "valid", "test")] == [2400, 300, 300]
    assert all(
        (task.parts[part].labels.bincount() == n // 10).all()
        for part, n in (("train", 2400), ("valid", 300))
    )
    assert task.held_out("test").inputs.shape == (200, 300, 32)
    assert task.source.size == 3000
