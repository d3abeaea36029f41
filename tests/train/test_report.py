"""The report page and the TensorBoard event files of a run."""

import importlib.util
import json
import math
import re
import struct
import sys
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from train.__main__ import main
from train.checkpoint import CheckpointError
from train.loop import train, train_iteration
from train.report.page import visible, write_report
from train.report.plots import (
    MOST,
    Series,
    angle_plot,
    band_plot,
    line_plot,
    plain,
    plane_plot,
    thin,
)
from train.run import Run, resume_run, save_run, start_run
from train.run_folder import EVENTS, MARK, REPORT, REPORT_PART, refuse_other_things
from train.settings import Settings

SIZES = {"osm-rnn": {"d": 3}, "tanh-rnn": {"n": 8}, "lru": {"width": 8}}
VOID = {"meta", "link", "input", "br"}
HOSTILE = "<script>alert(1)</script> & \x07\x1b \u202e\u2028"
NAN, INFINITE = math.nan, math.inf

Start = Callable[..., Run]

needs_tensorboard = pytest.mark.skipif(
    not importlib.util.find_spec("tensorboardX"), reason="needs the tensorboard extra"
)


@pytest.fixture
def start(text_file: Path, tmp_path: Path) -> Start:
    """Starts a small run in a folder of its own."""

    def start_small(name: str = "tanh-rnn", folder: str = "run", **settings: Any) -> Run:
        chosen = {"data": str(text_file), "iterations": 20, "window": 8, "batch": 4, **settings}
        return start_run(tmp_path / folder, name, SIZES[name], Settings(**chosen))

    return start_small


def train_until(run: Run, iterations: int) -> None:
    """The loop by hand, with a record an iteration."""
    while run.iteration < iterations:
        loss, norm = train_iteration(run)
        run.record(loss=loss, gradient_norm=norm)


class Page(HTMLParser):
    """A page taken apart; fails where its tags don't nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open = list[str]()
        self.seen = list[str]()
        self.attributes = list[tuple[str, str]]()
        self.texts = dict[str, list[str]]()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def text_of(self, tag: str) -> str:
        return "".join(self.texts.get(tag, []))


def page_of(run: Run) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def metrics(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics_path.read_text().splitlines()]


# --- the page


@pytest.mark.parametrize("name", SIZES)
def test_a_finished_run_has_a_page_with_its_scores_curves_and_spectra(
    start: Start, name: str
) -> None:
    run = start(name)
    assert train(run, quiet=True)
    page = Page((run.folder / REPORT).read_text(encoding="utf-8"))
    told, last = " ".join(sum(page.texts.values(), [])), metrics(run)[-1]
    for piece in (name, "text.txt", "iteration 20 of 20", plain(last["test_bpc"]), "Gradient norm"):
        assert piece in told, piece
    assert f"{run.model.num_parameters():,} parameters" in told
    assert page.seen.count("svg") == len(page.texts["title"]) - 1 == len(page.texts["desc"]) >= 7
    for piece in ("orthogonality", "generator norms"):
        assert (piece in told.lower()) == (name == "osm-rnn"), piece
    assert "torsor export" in page.text_of("pre") and "--resume" not in page.text_of("pre")


def test_the_page_fetches_nothing_and_runs_nothing(start: Start) -> None:
    run = start()
    assert train(run, quiet=True)
    text, page = (run.folder / REPORT).read_text(encoding="utf-8"), page_of(run)
    assert text.startswith(MARK) and "://" not in text and "@import" not in text
    assert re.findall(r"url\(", text) == []
    assert not {"script", "img", "iframe", "object"} & set(page.seen)
    assert [value for name, value in page.attributes if name in ("src", "href")] == ["data:,"]
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not (run.folder / REPORT_PART).exists()


def test_samples_of_any_characters_are_shown_as_text(tmp_path: Path) -> None:
    path = tmp_path / "<i>hostile & text.txt"
    path.write_text(HOSTILE * 60, encoding="utf-8")
    settings = Settings(data=str(path), iterations=4, window=8, batch=4, valid_every=2)
    run = start_run(tmp_path / "run", "tanh-rnn", {"n": 8}, settings)
    assert train(run, quiet=True)
    run.record(sample=HOSTILE + "\x00\ud800")
    page = page_of(run)
    assert "script" not in page.seen
    assert "<script>alert(1)</script> & " in page.text_of("pre")
    assert {"\\u0000", "\\ud800", "\\u0007", "\\u202e", "\\u2028"} <= set(page.texts["span"])
    assert page.seen.count("details") == 2  # of iterations 2 and 4
    assert "<i>hostile" in page.text_of("p")


def test_what_has_no_glyph_is_shown_by_its_code() -> None:
    assert visible("a\n\tb\u3000é😀<") == "a\n\tb\u3000é😀&lt;"
    assert visible("\x7f") == '<span class="dim">\\u007f</span>'


@pytest.mark.parametrize(
    "records",
    [
        [],
        [{}],
        [{"loss": NAN, "bpc": NAN, "gradient_norm": NAN, "characters_per_s": 0}],
        [{"valid_bpc": INFINITE, "state_rms": NAN, "orthogonality_error": 0.0}],
        [{"loss": 1e300, "gradient_norm": 1e-300, "step_angles": [0.0, NAN, 1.0, 2.0, 3.0]}],
        [{"step_angles": [], "sample": ""}, {"step_angles": "none", "sample": 3, "loss": True}],
        [{"loss": 1.0}, {"loss": 1.0 + 2e-16}, {"loss": -1e-30}],
        [{"gradient_norm": 1e-90}, {"gradient_norm": 1e90}, {"new": 3, "<b>": 4.0}],
    ],
)
def test_a_run_with_hardly_any_numbers_has_a_page(
    start: Start, records: list[dict[str, Any]]
) -> None:
    run = start("osm-rnn")
    for record in records:
        run.record(**record)
    page = page_of(run)
    assert "iteration 0 of 20" in page.text_of("p") and "--resume" in page.text_of("pre")
    assert "svg" in page.seen


def test_lines_that_are_broken_and_weights_that_are_not_finite_are_left_out(start: Start) -> None:
    run = start()
    run.metrics_path.write_text('{"iteration": 1, "loss": 2.5}\n[]\n{"loss": 1}\n{"iterat')
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.fill_(NAN)
    page = page_of(run)
    assert "2.5" in page.text_of("b") and "Weights" not in page.texts["h2"]
    run.metrics_path.unlink()
    assert "Nothing is measured yet." in page_of(run).text_of("p")


def test_the_page_of_a_long_run_is_written_fast(start: Start) -> None:
    run = start("osm-rnn", iterations=4000)
    for i in range(1, 401):
        run.iteration = 10 * i
        run.record(loss=1 / i, bpc=1.5 / i, gradient_norm=1.0, characters_per_s=1000 + i)
        if i % 10 == 0:
            run.record(valid_bpc=1 / i, sample="x" * 160, step_angles=[0.0, 0.1, 0.2, 0.3, 0.4])
    times = []
    for _ in range(3):
        begun = time.process_time()
        size = write_report(run).stat().st_size
        times.append(time.process_time() - begun)
    assert min(times) < 0.3 and size < 300_000


# --- the plots


def test_curves_are_thinned_evenly_with_both_ends() -> None:
    for count in (0, 1, 2, MOST, MOST + 1, 12_345):
        kept = thin(list(range(count)))
        assert len(kept) <= MOST and kept[:1] == list(range(count))[:1]
        assert kept[-1:] == list(range(count))[-1:]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.0, "0"),
        (1234.5, "1,234"),
        (1.23456, "1.235"),
        (-0.5, "−0.5"),
        (3.2e-7, "3.2×10⁻⁷"),
        (1e-7, "10⁻⁷"),
        (NAN, "not a number"),
        (INFINITE, "infinite"),
    ],
)
def test_numbers_are_plain(value: float, told: str) -> None:
    assert plain(value) == told


def test_points_lie_where_their_numbers_say() -> None:
    svg = line_plot("t", "l", [Series("s", [(0.0, 1.0), (50.0, 3.0), (100.0, 2.0)])])
    x, y = zip(
        *(map(float, p) for p in re.findall(r"([\d.]+),([\d.]+)", path_of(svg))), strict=True
    )
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)
    assert y[0] - y[1] == pytest.approx(2 * (y[2] - y[1]), abs=0.3)


def path_of(svg: str) -> str:
    found = re.search(r'class="curve c0" d="([^"]*)"', svg)
    assert found
    return found[1]


def test_a_gap_parts_a_curve_and_a_lonely_point_is_marked() -> None:
    svg = line_plot("t", "l", [Series("s", [(0.0, 1.0), (1.0, 2.0), (2.0, NAN), (3.0, 1.0)])])
    assert path_of(svg).count("M") == 2 and svg.count("h0") == 1
    logged = line_plot("t", "l", [Series("s", [(0.0, 1.0), (1.0, 0.0), (2.0, 9.0)])], log=True)
    assert logged.count("h0") == 2


def test_without_numbers_there_is_no_plot() -> None:
    assert line_plot("t", "l", []) == line_plot("t", "l", [Series("s", [(0.0, NAN)])]) == ""
    assert band_plot("t", "l", [(0.0, [1.0])]) == plane_plot("t", "n", []) == ""
    assert angle_plot("t", "n", [NAN]) == ""


def test_a_histogram_counts_every_angle() -> None:
    svg = angle_plot("t", "n", [0.0, 0.01, math.pi], bins=2)
    heights = [float(h) for h in re.findall(r'class="bar".*?height="([\d.]+)"', svg)]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)


# --- what stands in the folder of a run


def test_what_a_killed_run_leaves_gives_way(start: Start) -> None:
    run = start()
    write_report(run)
    (run.folder / REPORT_PART).write_text("half")
    (run.folder / EVENTS).mkdir()
    (run.folder / EVENTS / "events.out.tfevents.1.here").write_bytes(b"x")
    start()
    assert [path.name for path in run.folder.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("name", [REPORT, f"{EVENTS}/notes.txt", EVENTS])
def test_files_of_others_by_these_names_are_left_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("<!doctype html>\n<p>mine")
    with pytest.raises(CheckpointError, match="expected a new or empty folder"):
        refuse_other_things(tmp_path)


def test_a_resumed_run_needs_no_report_and_writes_one(start: Start) -> None:
    run = start(checkpoint_every=10)
    train_until(run, 10)
    save_run(run)
    assert not (run.folder / REPORT).exists()
    resumed = resume_run(run.folder)
    assert train(resumed, quiet=True)
    assert "iteration 20 of 20" in (run.folder / REPORT).read_text(encoding="utf-8")


# --- TensorBoard


def events_of(folder: Path) -> list[Any]:
    """The events that TensorBoard shows: a start event voids earlier ones from its step on."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    shown = list[Any]()
    for path in sorted(folder.iterdir()):
        content, at = path.read_bytes(), 0
        while at < len(content):  # length, its CRC, the event, its CRC
            (length,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + length])
            at += length + 16
            if event.session_log.status == SessionLog.START:
                shown = [other for other in shown if other.step < event.step]
            shown += [event] if event.HasField("summary") else []
    return shown


def shown_numbers(folder: Path) -> list[tuple[int, str, float]]:
    return [
        (event.step, value.tag, value.simple_value)
        for event in events_of(folder)
        for value in event.summary.value
        if value.WhichOneof("value") == "simple_value"
    ]


def recorded_numbers(run: Run) -> list[tuple[int, str, float]]:
    """The same of metrics.jsonl; event files hold float32."""
    found = list[tuple[int, str, float]]()
    for line in metrics(run):
        step = line.pop("iteration")
        for key, value in line.items():
            numbers = {key: value}
            if isinstance(value, list):
                numbers = {f"{key}/{i}": x for i, x in enumerate(value)}
            for name, number in numbers.items():
                if not isinstance(number, str):
                    found.append((step, name, float(torch.tensor(float(number)))))
    return found


@needs_tensorboard
def test_event_files_hold_what_was_recorded(start: Start) -> None:
    run = start("osm-rnn", tensorboard="on", valid_every=10)
    assert train(run, quiet=True)
    found = shown_numbers(run.folder / EVENTS)
    assert found == recorded_numbers(run)
    assert {tag for _, tag, _ in found} >= {"loss", "valid_bpc", "test_bpc", "step_angles/4"}
    texts = [
        value.tensor.string_val[0].decode()
        for event in events_of(run.folder / EVENTS)
        for value in event.summary.value
        if value.tag == "sample/text_summary"
    ]
    assert [text.replace("    ", "", 1) for text in texts] == [
        line["sample"].replace("\n", "\n    ") for line in metrics(run) if "sample" in line
    ]


@needs_tensorboard
def test_a_resumed_run_shows_no_point_twice(start: Start) -> None:
    run = start(tensorboard="on")
    train_until(run, 10)
    save_run(run)
    train_until(run, 15)  # is killed there: what came after the checkpoint is lost
    resumed = resume_run(run.folder)
    train_until(resumed, 20)
    for one in (run, resumed):
        assert one.events
        one.events.close()
    assert len(list((run.folder / EVENTS).iterdir())) == 2
    found = shown_numbers(run.folder / EVENTS)
    assert found == recorded_numbers(resumed)
    assert [step for step, tag, _ in found if tag == "loss"] == list(range(1, 21))


def test_without_the_package_the_option_names_the_extra(
    text_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    out = tmp_path / "run"
    arguments = ["tanh-rnn", "--data", str(text_file), "--out", str(out), "--tensorboard", "on"]
    assert main(arguments) == 1
    problem = capsys.readouterr().err
    assert problem.count("\n") == 1 and "pip install 'torsor[tensorboard]'" in problem
    assert not out.exists()
