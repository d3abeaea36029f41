"""`torsor sweep`: grid files in, sweeps on the server, files and a table out."""

import csv
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from clients.command_line import sweep as sweep_command
from clients.command_line.grid_file import read_sweep_file
from clients.command_line.main import main
from clients.command_line.progress import Progress
from clients.command_line.sweep_folder import SweepFolder
from clients.files import write_whole
from clients.grpc_client import GrpcClient
from clients.http_client import HttpClient
from clients.plots.svg import Bar, bar_chart, ticks
from serve.wire.query_responses import point_json

TANH, OSM = "tanh-rnn-shakespeare", "osm-rnn-shakespeare"
TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n"
GRID = f"""
[[sweep]]
name = "schur"
model = "{TANH}"
text_file = "$TORSOR_TEST_TEXTS/text.txt"
start = 6
characters = 40
controls = 2

[sweep.axes]
zero = [["CC"], ["C→R"], ["RR"]]

[[sweep.edits]]
target = "recurrent"
op = "schur"
zero = "$zero"

[[sweep]]
name = "all"
models = ["{OSM}", "{TANH}"]
text_file = "texts/text.txt"

[[sweep.ablations]]
name = "none & <nothing>"
edits = []
"""
AXIS = 'zero = [["CC"], ["C→R"], ["RR"]]'
ABLATIONS = '[[sweep.ablations]]\nname = "none & <nothing>"\nedits = []\n'


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A grid file of three sweeps, and its text."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "text.txt").write_text(TEXT)
    (tmp_path / "texts" / "empty.txt").touch()
    monkeypatch.setenv("TORSOR_TEST_TEXTS", str(tmp_path / "texts"))
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    return path


def test_sweeps_are_run_written_and_not_run_again(
    server: Any, grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["sweep", str(grid), "--out", str(out), "--url", server.url]
    assert main(words) == 0
    table, errors = capsys.readouterr()
    assert errors == ""  # no bar where there is no terminal
    assert f"schur: {TANH}, score, 3 of 3 points, 1 failed; the plain model: bpc" in table
    assert "POINT     MASS    BPC     Δ bpc" in table and " ± " in table
    names = ["schur", f"all-{OSM}", f"all-{TANH}"]
    kinds = ("jsonl", "csv", "svg")
    expected = {"sweeps.json", *(f"{name}.{kind}" for name in names for kind in kinds)}
    assert {path.name for path in out.iterdir()} == expected

    ids = {n: e["id"] for n, e in json.loads((out / "sweeps.json").read_text())["sweeps"].items()}
    assert list(ids) == names
    with HttpClient(server.url) as http, GrpcClient(server.grpc_address) as grpc:
        held = len(http.sweeps.list())
        for name in names:
            lines = (out / f"{name}.jsonl").read_text().splitlines()
            points = [json.loads(line) for line in lines]
            for client in (http, grpc):
                assert [point_json(point) for point in client.sweeps.points(ids[name])] == points
        assert http.sweeps.get(ids["schur"]).baseline["num_characters"] == 40  # type: ignore[index]
        # Again: from the files, also where no server answers
        assert main([*words[:-1], "http://127.0.0.1:9"]) == 0
        assert capsys.readouterr().out == table and len(http.sweeps.list()) == held
        assert main([*words, "--again", "--json"]) == 0
        assert len(http.sweeps.list()) == held + 3
    pages = json.loads(capsys.readouterr().out)
    assert [page["name"] for page in pages] == names
    assert [page["state"] for page in pages] == ["done"] * 3
    rows = list(csv.DictReader((out / "schur.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["name"] for row in rows] == ["zero=CC", "zero=C→R", "zero=RR"]
    assert float(rows[0]["delta"]) == pages[0]["points"][0]["delta"] and rows[2]["delta"] == ""
    drawn = ElementTree.parse(out / f"all-{OSM}.svg").getroot()
    assert any("none & <nothing>" in (node.text or "") for node in drawn.iter())


def test_a_sweep_is_a_picture_and_a_frame_too(server: Any, grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["sweep", str(grid), "--out", str(out), "--url", server.url, "--png"]) == 0
    for name in ("schur", f"all-{OSM}", f"all-{TANH}"):
        pixels = matplotlib.image.imread(out / f"{name}.png")
        assert pixels.ndim == 3 and pixels[:, :, :3].min() < 0.5  # not a white page
    points = SweepFolder(out).ended("schur")
    assert points is not None
    table = points[1].to_pandas()
    assert table["name"].tolist() == ["zero=CC", "zero=C→R", "zero=RR"]
    assert table["delta"].tolist()[:2] == [point.delta for point in points[1][:2]]
    assert table["delta"].isna().tolist() == [False, False, True]


def test_without_matplotlib_no_sweep_starts(
    server: Any,
    grid: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    out = tmp_path / "out"
    assert main(["sweep", str(grid), "--out", str(out), "--url", server.url, "--png"]) == 1
    assert "--png: found no matplotlib, expected it beside torsor" in capsys.readouterr().err
    assert not out.exists()


def test_ctrl_c_leaves_the_sweep_and_the_same_command_comes_back(
    server: Any,
    grid: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["sweep", str(grid), "--out", str(tmp_path / "out"), "--grpc", "--url"]
    words.append(server.grpc_address)

    class Interrupted(Progress):
        def show(self, done: int, note: str = "") -> None:
            if done == 1:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sweep_command, "Progress", Interrupted)
        assert main(words) == 130
    said = capsys.readouterr().err
    assert "The sweeps go on without us" in said and f"--out {tmp_path / 'out'} --cancel" in said
    known = json.loads((tmp_path / "out" / "sweeps.json").read_text())["sweeps"]
    assert len(known) == 3
    with HttpClient(server.url) as http:
        held = len(http.sweeps.list())
        assert main(words) == 0
        assert len(http.sweeps.list()) == held
    after = json.loads((tmp_path / "out" / "sweeps.json").read_text())["sweeps"]
    assert {n: e["id"] for n, e in after.items()} == {n: e["id"] for n, e in known.items()}


def test_what_a_folder_remembers_is_cancelled(
    server: Any, grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ablations = '[[sweep.ablations]]\nname = "none"\nedits = []\n' * 300
    (tmp_path / "long.txt").write_text(TEXT * 200)
    long = f'[[sweep]]\nname = "long"\nmodel = "{TANH}"\ntext_file = "long.txt"\n{ablations}'
    grid.write_text(long)
    out = tmp_path / "out"
    words = ["sweep", str(grid), "--out", str(out), "--url", server.url]
    plan = read_sweep_file(str(grid))[0]
    with HttpClient(server.url) as http:
        folder = SweepFolder(out)
        folder.remember(plan.name, http.sweeps.start(**plan.options), plan.digest)
    assert main([*words, "--cancel"]) == 0
    assert capsys.readouterr().out == "long: cancelled\n"
    assert main(words) == 1
    assert "long: the sweep was cancelled; start it anew with --again" in capsys.readouterr().err
    assert main([*words, "--cancel"]) == 0
    assert "remembers no sweep that goes on" in capsys.readouterr().out
    grid.write_text(long.replace(TANH, OSM))
    assert main(words) == 1
    assert "found a sweep 'long' of another question" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("[[sweep]]", "[[sweeps]]", "found 'sweeps', expected [[sweep]] tables and nothing else"),
        ("controls = 2", "control = 2", "sweep[0].control: found this key, expected none but"),
        ("controls = 2", "controls = -1", "sweep[0].controls: found -1"),
        ('name = "schur"', 'name = "a/b"', "sweep[0].name: found 'a/b', expected 1 to 100"),
        (f'model = "{TANH}"', f'model = "{TANH}"\nmodels = []', "found beside model"),
        ("$TORSOR_TEST_TEXTS", "$TORSOR_NO_SUCH", "text_file: found $TORSOR_NO_SUCH unset"),
        ("texts/text.txt", "none.txt", "No such file or directory; name a file that is there"),
        ("start = 6", "start = 600", "sweep[0].start: found 600, expected fewer than 61"),
        ("characters = 40", "characters = 0", "characters: found 0, expected a whole number, 1"),
        (
            "controls = 2",
            'query = "trials"',
            "].text_file: found one, expected none beside",
        ),
        (f'models = ["{OSM}", "{TANH}"]', 'models = "a"', "sweep[1].models: found 'a'"),
        (f'"{OSM}", "{TANH}"', f'"{OSM}", "{OSM}"', f"found the name 'all-{OSM}' twice"),
        ("[[sweep]]", "[[sweep", "found no TOML"),
        (AXIS, "x = [1, 2020-01-01]", "sweep[0].axes.x[1]: found the date '2020-01-01', expected"),
        (AXIS, "x = [nan]", "sweep[0].axes.x[0]: found NaN, expected a finite number"),
        (AXIS, "x = [{y = -inf}]", "sweep[0].axes.x[0].y: found -Infinity, expected a finite"),
        (AXIS, "x = 3", "sweep[0].axes.x: found 3, expected a valid list"),
        ("texts/text.txt", "texts/empty.txt", "sweep[1].text_file: found no character in texts"),
        ("controls = 2", 'text = "a"', "found this key, expected none but name, model"),
        ("controls = 2", 'text = "a"', "; name a file of it: text_file"),
        ("controls = 2", "contrls = 2", "; did you mean controls?"),
        (ABLATIONS, "", "sweep[1].edits: found neither edits nor ablations, expected some; add"),
    ],
)
def test_what_is_wrong_in_a_grid_file_is_said(
    grid: Path,
    capsys: pytest.CaptureFixture[str],
    before: str,
    after: str,
    words: str,
) -> None:
    grid.write_text(GRID.replace(before, after))
    assert main(["sweep", str(grid), "--out", str(grid.parent / "out")]) == 1
    said = capsys.readouterr().err
    assert words in said and said.startswith("torsor sweep: ") and said.count("\n") == 1
    assert not (grid.parent / "out").exists()


def test_what_the_server_refuses_names_the_sweep(
    server: Any, grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid.write_text(GRID.replace('"recurrent"', '"other"'))
    words = ["sweep", str(grid), "--out", str(grid.parent / "out"), "--url", server.url]
    assert main(words) == 1
    assert "torsor sweep: schur: edits[0].target: found 'other'" in capsys.readouterr().err


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_axes_are_named_as_the_grid_file_has_them(
    server: Any, grid: Path, capsys: pytest.CaptureFixture[str], wire: str
) -> None:
    where = ["--url", server.url] if wire == "http" else ["--grpc", "--url", server.grpc_address]
    for axis, said in (
        (f"{AXIS}\nx = [1]", "axes.x: no edit names it, expected '$x' somewhere in edits; leave"),
        (f"{AXIS[:-1]}, ['CC']]", "axes.zero: found ['CC'] twice, expected each value once"),
    ):
        grid.write_text(GRID.replace(AXIS, axis))
        assert main(["sweep", str(grid), "--out", str(grid.parent / "out"), *where]) == 1
        assert f"torsor sweep: schur: {said}" in capsys.readouterr().err


def test_a_text_that_ends_early_is_said(
    server: Any, grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid.write_text(GRID.replace("characters = 40", "characters = 4000"))
    words = ["sweep", str(grid), "--out", str(grid.parent / "out"), "--url", server.url]
    assert main(words) == 0
    said = "sweep[0].characters: found 4000, and 55 up to the end of the text; these are scored"
    assert capsys.readouterr().err == f"torsor sweep: {grid}: {said}\n"


def test_a_folder_that_is_no_folder_is_said(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for out, found in ((grid, "a file"), (grid / "x", "Not a directory")):
        assert main(["sweep", str(grid), "--out", str(out)]) == 1
        said = f"torsor sweep: {out}: found {found}, expected a folder, or room for one; choose"
        assert capsys.readouterr().err == f"{said} another --out\n"


def test_two_that_write_one_file_do_not_take_each_others(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    script = "import sys; from pathlib import Path; from clients.files import write_whole\n"
    script += "for n in range(200): write_whole(Path(sys.argv[1]), sys.argv[2] * 1000)"
    words = [sys.executable, "-c", script, str(path)]
    running = [subprocess.Popen([*words, letter]) for letter in "ab"]
    assert [process.wait(60) for process in running] == [0, 0]
    assert path.read_text() in ("a" * 1000, "b" * 1000) and list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="found No such file or directory, expected a file that can"):
        write_whole(tmp_path / "none" / "x.svg", "")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder: found Is a directory, expected a file that can"):
        write_whole(tmp_path / "folder", "")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_of_something_else_is_refused(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweeps.json").write_text("[]")
    assert main(["sweep", str(grid), "--out", str(tmp_path)]) == 1
    assert "expected what torsor sweep wrote there" in capsys.readouterr().err


def test_a_plot_is_valid_xml_whatever_it_is_of() -> None:
    bars = [
        Bar(name='<a href="x">&\x00\ud800' + "y" * 60, value=-1.5, low=-2.0, high=0.5, mean=-0.5),
        Bar(name="failed", value=None),
    ]
    text = bar_chart("]]><script>", "Δ bpc", bars)
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "<script" not in text and "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert ElementTree.fromstring(bar_chart("none", "", [])) is not None
    assert ticks(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(-0.03, 0.021) == [-0.02, 0.0, 0.02]
