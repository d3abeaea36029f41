"""The commands that ask a server, with a client that answers from memory."""

import dataclasses
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from xml.etree import ElementTree

import pytest

from clients.command_line import commands, tables
from clients.command_line.main import main
from clients.errors import ServerError
from clients.plots.spectrum import spectrum_plot
from clients.results import (
    Character,
    Choice,
    Chunk,
    Completion,
    ModelInfo,
    Score,
    ScoreResult,
    Spectrum,
    Structure,
    Summary,
    Target,
    Usage,
)

USAGE = Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3)
EDITS = {"edits": [{"target": "recurrent", "op": "zero"}]}
REMOVED = [{"target": "recurrent", "op": "zero", "mass": 1, "warnings": ["all of it"]}]
ABLATION = {"name": "", "hash": "00", **EDITS, "removed": REMOVED}
SPECTRUM = Spectrum(
    alpha=0.9,
    n_R=1,
    n_C=0,
    rho=1.5,
    eigenvalues=(1.5 + 0j,),
    block_sizes=(1,),
    masses={"RR": 0.0, "C→R": 0.25, "CC": 0.0},
    backward_error=0.0,
    warnings=(),
)


class FakeClient:
    """Answers one thing and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, dict[str, Any]]] = []
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _ask(self, *given: Any, **options: Any) -> None:
        self.asked.append((given, {k: v for k, v in options.items() if v is not None}))

    def models(self) -> tuple[ModelInfo, ...]:
        model = ModelInfo(
            id="osm",
            family="osm-rnn",
            config={"d": 16},
            num_parameters=77_000,
            root="osm",
            max_model_len=1000,
            symbols="characters",
            vocabulary_size=65,
            task=None,
            device="cpu",
            provider="CPUExecutionProvider",
            kernels="standard operators",
            targets=("recurrent",),
            training={"test_bpc": 2.125},
        )
        task = {"name": "copy", "input_size": 8, "output_size": 6, "headline": "replay_accuracy"}
        of_a_task = dataclasses.replace(
            model, id="copy", vocabulary_size=0, task=task, training={"test_replay_accuracy": 0.75}
        )
        return model, of_a_task, dataclasses.replace(of_a_task, training={})

    def structure(self, model: str | None) -> Structure:
        self._ask(model)
        page: dict[str, Any] = {"weight": "w", "ops": ("zero",), "meaning": "m", "norm": 1.0}
        square = Target(name="recurrent", shape=(1, 1), spectrum=SPECTRUM, **page)
        flat = Target(name="readout", shape=(1, 65), spectrum=None, **page)
        return Structure(model="osm", targets=(square, flat))

    def generate(self, prompt: str, **options: Any) -> Iterator[Chunk]:
        self._ask(prompt, **options)
        yield Chunk(text="ROMEO:\n", seed=7)
        yield Chunk(text="é")
        if self.error:
            raise self.error
        ablation = ABLATION if options["ablation"] else None
        yield Chunk(summary=Summary(model="osm", usage=USAGE, ablation=ablation))

    def complete(self, prompt: str, **options: Any) -> Completion:
        self._ask(prompt, **options)
        letter = Character(text="é", logprob=-1.0)
        choice = Choice(
            index=0, text="é", finish_reason="length", seed=7, stop=None, characters=(letter,)
        )
        return Completion(model="osm", choices=(choice,), usage=USAGE, ablation=None)

    def generate_pair(self, prompt: str, ablation: Any, **options: Any) -> Iterator[Chunk]:
        self._ask(prompt, ablation, **options)
        yield Chunk(branch="baseline", text="ab", finish_reason="length", seed=7)
        yield Chunk(branch="ablated", text="ax", finish_reason="length", seed=7)
        summary = Summary(model="osm", usage=USAGE, ablation=ABLATION, first_difference=1)
        yield Chunk(summary=summary)

    def score(self, text: str, ablation: Any, **options: Any) -> ScoreResult:
        self._ask(text, ablation, **options)
        return ScoreResult(
            model="osm",
            num_characters=len(text),
            baseline=Score(bpc=2.0, logprobs=()),
            ablated=Score(bpc=2.5, logprobs=()) if ablation else None,
            delta_bpc=0.5 if ablation else None,
            mean_kl=0.25 if ablation else None,
            kl=(),
            ablation=ABLATION if ablation else None,
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    client = FakeClient()
    monkeypatch.setattr(commands, "open_client", lambda url, over_grpc, ca: client)
    return client


Capture = pytest.CaptureFixture[str]


def test_generate_prints_the_text_and_nothing_else(fake: FakeClient, capsys: Capture) -> None:
    assert main(["generate", "x", "--stop", "a", "--stop", "b", "--top-k", "5"]) == 0
    assert capsys.readouterr() == ("ROMEO:\né", "seed 7\n")
    assert fake.asked == [(("x",), {"max_tokens": 200, "stop": ["a", "b"], "top_k": 5})]


def test_generate_notes_what_was_removed(fake: FakeClient, capsys: Capture) -> None:
    assert main(["generate", "--seed", "7", "--ablation", json.dumps(EDITS)]) == 0
    assert capsys.readouterr() == (
        "ROMEO:\né",
        "removed recurrent zero: mass 1.0000; all of it\n",
    )
    assert fake.asked[0][1] == {"max_tokens": 200, "seed": 7, "ablation": EDITS}


def test_generate_json_is_one_object(fake: FakeClient, capsys: Capture) -> None:
    assert main(["generate", "x", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["choices"][0]["text"] == "é" and page["usage"]["total_tokens"] == 3


def test_an_error_is_one_line_and_code_1(fake: FakeClient, capsys: Capture) -> None:
    fake.error = ServerError("timeout", "total: found 60 s, expected less: ask for less")
    assert main(["generate", "--seed", "1"]) == 1
    found = capsys.readouterr()
    assert found.err == "torsor generate: total: found 60 s, expected less: ask for less\n"
    assert found.out == "ROMEO:\né"


def test_ctrl_c_is_code_130(fake: FakeClient) -> None:
    fake.error = KeyboardInterrupt()
    assert main(["generate"]) == 130


def test_an_ablation_comes_from_text_or_file(
    fake: FakeClient, capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "no-recurrence.json"
    path.write_text(json.dumps(EDITS))
    for source in (str(path), f"  {json.dumps(EDITS)}"):
        assert main(["ablate", "x", "--ablation", source]) == 0
    assert [asked[0] for asked in fake.asked] == [("x", EDITS)] * 2
    assert "first difference  character 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('{"edits": [}', "--ablation: found invalid JSON: Expecting value: line 1 column 12"),
        ("[]", "--ablation: found [], expected an object"),
        ("nowhere.json", "--ablation: 'nowhere.json': No such file or directory; give JSON"),
    ],
)
def test_a_bad_ablation_is_explained(
    fake: FakeClient, capsys: Capture, source: str, words: str
) -> None:
    for command in (["generate"], ["ablate"], ["score", "-"]):
        assert main([*command, "--ablation", source]) == 1
        assert f"torsor {command[0]}: {words}" in capsys.readouterr().err
    assert not fake.asked


def test_edits_are_one_ablation(fake: FakeClient, capsys: Capture, tmp_path: Path) -> None:
    path, edit = tmp_path / "text", EDITS["edits"][0]
    path.write_text("abc")
    edits = ["--edit", json.dumps(edit)] * 2
    for words in (["score", str(path)], ["ablate", "--text", str(path)], ["ablate", "x"]):
        assert main([*words, *edits]) == 0
    assert [asked[0][1] for asked in fake.asked] == [{"edits": [edit, edit]}] * 3
    capsys.readouterr()
    for source, said in (("[]", "found [], expected an object"), ("{", "found invalid JSON")):
        assert main(["generate", "--edit", source]) == 1
        assert f"torsor generate: --edit: {said}" in capsys.readouterr().err
    assert main(["ablate", "x", "--text", str(path), *edits]) == 1
    assert "--text: found beside a prompt" in capsys.readouterr().err


ONE = json.dumps(EDITS["edits"][0])
HINTS: list[tuple[list[str], str]] = [
    (
        ["--ablation", ONE],
        '{"edits": [{"target": ..., "op": ...}]}; put it into "edits", or',
    ),
    (["--ablation", ""], "--ablation: found an empty name; give JSON, "),
    (["--ablation", "."], "--ablation: '.': Is a directory; give JSON, "),
    (["--ablation", '{"edits": [], "edits": []}'], "--ablation: found the key 'edits' twice"),
    (["--ablation", "[" * 100_000], "--ablation: found invalid JSON"),
    (["--edit", "no-cc.json"], "--edit: found 'no-cc.json', expected JSON, "),
    (["--edit", "no-cc.json"], "; a file goes with --ablation, and holds an ablation"),
    (["--edit", json.dumps(EDITS)], "--edit: found an ablation, expected "),
    (["--edit", '{"op": "zero", "op": "rank"}'], "--edit: found the key 'op' twice, expected each"),
]


@pytest.mark.parametrize(("words", "said"), HINTS)
def test_what_was_meant_is_hinted_at(
    fake: FakeClient, capsys: Capture, words: list[str], said: str
) -> None:
    assert main(["ablate", "x", *words]) == 1
    assert said in capsys.readouterr().err and not fake.asked


@pytest.mark.parametrize(
    "words",
    [["--max-tokens", "5"], ["--seed", "3"], ["--temperature", "0"], ["--top-k", "1"]]
    + [["--top-p", "0.5"], ["--stop", "a"]],
)
def test_what_a_scored_text_has_no_use_for_is_refused(
    fake: FakeClient, capsys: Capture, words: list[str]
) -> None:
    assert main(["ablate", "--text", "-", "--edit", ONE, *words]) == 1
    assert f"{words[0]}: found beside --text, which is scored" in capsys.readouterr().err
    assert not fake.asked


def test_numbers_fit_their_columns() -> None:
    values = [None, 1.25, -0.00001, 0.0, 1e30, -2e5, 9999.5]
    assert [tables.number(value, ".4f") for value in values] == [
        *("-", "1.2500", "0.0000", "0.0000", "1e+30", "-2e+05", "9999.5000")
    ]
    assert [tables.number(value, "+.4f") for value in values[2:5]] == [
        "+0.0000",
        "+0.0000",
        "+1e+30",
    ]


def test_a_symmetry_moves_and_removes_nothing() -> None:
    edit = {"op": "symmetry", "kind": "mirror", "seed": 1}
    page = {"edits": [edit], "removed": [{"op": "symmetry", "target": "mirror", "mass": 1.4}]}
    (row,) = tables.changes(page)
    assert row == ("moved", "mirror symmetry (kind mirror, seed 1): mass 1.4000")


def test_what_was_removed_says_its_settings() -> None:
    schur = {"target": "recurrent", "op": "schur", "alpha": 0.9, "zero": ["C→R", "CC"]}
    control = {"op": "random", "like": schur, "seed": 3}
    removed = {"target": "recurrent", "mass": 0.5, "warnings": []}
    page = {
        "edits": [schur, control],
        "removed": [removed | {"op": "schur"}, removed | {"op": "random"}],
    }
    assert tables.removed(page) == [
        "recurrent schur (alpha 0.9, zero C→R CC): mass 0.5000",
        "recurrent random (like recurrent schur (alpha 0.9, zero C→R CC), seed 3): mass 0.5000",
    ]


def test_a_bad_ablation_file_is_named(fake: FakeClient, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"\xff")
    assert main(["generate", "--ablation", str(path)]) == 1
    assert f"{path}: found bytes that are not UTF-8" in capsys.readouterr().err


def test_ablate_json_holds_both_texts(fake: FakeClient, capsys: Capture) -> None:
    assert main(["ablate", "x", "--ablation", json.dumps(EDITS), "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert (page["baseline"]["text"], page["ablated"]["text"], page["seed"]) == ("ab", "ax", 7)


def test_score_takes_a_file_as_it_is(fake: FakeClient, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("é\r\nabc".encode())
    assert main(["score", str(path), "--limit", "4", "--unknown", "skip"]) == 0
    assert fake.asked == [(("é\r\na", None), {"unknown": "skip"})]
    assert capsys.readouterr().out == "model       osm\ncharacters  4\nBPC         2.0000\n"


def test_score_reads_stdin_and_compares(
    fake: FakeClient, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab")))
    assert main(["score", "-", "--ablation", json.dumps(EDITS)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:] == [
        "ablated BPC  2.5000",
        "ΔBPC         +0.5000",
        "mean KL      0.2500 bits",
        "removed      recurrent zero: mass 1.0000; all of it",
    ]


def test_models_and_structure_are_tables_or_json(fake: FakeClient, capsys: Capture) -> None:
    assert main(["models"]) == 0 and main(["structure", "--model", "osm"]) == 0
    out = capsys.readouterr().out
    assert "77,000" in out and "1×65" in out
    words = [line.split() for line in out.splitlines()[1:4]]
    assert words[0][3:8] == ["text", "65", "characters", "BPC", "2.125"]
    assert words[1][3:10] == ["copy", "8", "→", "6", "replay", "accuracy", "0.750"]
    assert words[2][3:9] == ["copy", "8", "→", "6", "-", "cpu"]
    assert main(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["id"] == "osm"
    assert main(["structure", "--json"]) == 0
    targets = json.loads(capsys.readouterr().out)["targets"]
    assert targets[0]["spectrum"]["eigenvalues"] == [[1.5, 0.0]]


def test_structure_draws_every_eigenvalue_into_a_file(fake: FakeClient, tmp_path: Path) -> None:
    path = tmp_path / "spectra.svg"
    assert main(["structure", "--plot", str(path)]) == 0
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    circles = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    assert [circle.get("class") for circle in circles] == ["u", "l", "R"]
    rho, half = 1.5, 120
    unit, boundary, dot = circles
    assert float(dot.get("cx", "")) == pytest.approx(half * (1 + 1 / 1.08), abs=0.01)  # 1.5 = rho
    assert float(unit.get("r", "")) == pytest.approx(half / (1.08 * rho), abs=0.01)
    assert float(boundary.get("r", "")) < float(dot.get("cx", "")) - half
    assert not list(tmp_path.glob("*.part"))


def test_the_title_of_a_drawing_fits(fake: FakeClient, tmp_path: Path) -> None:
    assert main(["structure", "--plot", str(tmp_path / "a.svg")]) == 0
    root = ElementTree.fromstring((tmp_path / "a.svg").read_text(encoding="utf-8"))
    lines = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert int(root.get("width", "")) > 8 * len(lines[0]) > 400


def test_a_drawing_that_cannot_be_written_leaves_the_table(
    fake: FakeClient, capsys: Capture, tmp_path: Path
) -> None:
    assert main(["structure", "--plot", str(tmp_path / "spectra.png")]) == 1
    assert "expected a name that ends in .svg; it draws SVG only" in capsys.readouterr().err
    assert not fake.asked
    path = tmp_path / "none" / "x.svg"
    assert main(["structure", "--plot", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("osm\n") and "1×65" in out
    assert err.startswith(f"torsor structure: {path}: found No such file or directory, expected")


def test_a_plot_without_a_square_target_is_refused() -> None:
    page = Structure(model="small", targets=())
    with pytest.raises(ValueError, match="found no square target in small"):
        spectrum_plot(page)


@pytest.mark.parametrize("wire", ["http", "grpc"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["generate", "ROMEO\N{SNOWMAN}"], "or set --unknown to skip or replace"),
        (["generate", "A", "--max-tokens", "-1"], "torsor generate: --max-tokens: found -1"),
        (["generate", "A", "--top-p", "7"], "torsor generate: --top-p: found 7"),
        (["generate", "A", "--model", "none"], "torsor generate: --model: found 'none'"),
        (["ablate", "A", "--ablation", '{"edits": 3}'], "torsor ablate: --ablation.edits: found 3"),
    ],
)
def test_errors_name_the_flags_of_the_tool(
    server: Any, wire: str, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--url", server.url] if wire == "http" else ["--grpc", "--url", server.grpc_address]
    assert main([*words, *where]) == 1
    assert expected in capsys.readouterr().err
