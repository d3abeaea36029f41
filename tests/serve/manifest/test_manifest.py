"""The manifest: its exact bytes, and everything that a reader refuses."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.manifest.page import (
    FORMAT,
    GRAPH_FILE,
    IR_VERSION,
    MANIFEST_FILE,
    OPSET,
    TRIALS_FILE,
    VERSION,
    WEIGHTS_FILE,
    Action,
    FileSpec,
    GraphSpec,
    Manifest,
    Parity,
    ParityCase,
    StateSpec,
    Symmetry,
    Target,
    TaskSpec,
    TensorSpec,
    TrialsSpec,
    UnrolledCase,
)
from serve.manifest.read import (
    describe_file,
    manifest_bytes,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from serve.manifest.values import MOST, BundleError

GOLDEN = """\
{
 "format": 2,
 "name": "so2",
 "family": "osm-rnn",
 "config": {
  "vocabulary_size": 2,
  "d": 2
 },
 "num_parameters": 21,
 "symbols": "characters",
 "vocabulary": [
  "a",
  "é"
 ],
 "task": null,
 "states": [
  {
   "name": "H",
   "dtype": "float32",
   "shape": [
    2,
    2
   ],
   "initial": "initial.H",
   "orthogonal": false
  }
 ],
 "graph": {
  "inputs": [
   {
    "name": "forced",
    "dtype": "int64",
    "shape": [
     "K",
     "B"
    ]
   },
   {
    "name": "bias",
    "dtype": "float32",
    "shape": [
     "B",
     2
    ]
   }
  ],
  "outputs": [
   {
    "name": "next.H",
    "dtype": "float32",
    "shape": [
     "B",
     2,
     2
    ]
   }
  ],
  "correct_every": 16,
  "max_steps": 16,
  "opset": 20,
  "ir_version": 10,
  "operators": {
   "torsor": 1
  },
  "ranges": {
   "MatrixExp": 4.5
  }
 },
 "targets": [
  {
   "name": "mixing",
   "weight": "mixing",
   "slice": null,
   "shape": [
    1,
    1
   ],
   "ops": [
    "schur"
   ],
   "meaning": "linear map Γ",
   "subspace": "subspace.visible"
  },
  {
   "name": "first",
   "weight": "input",
   "slice": [
    [
     0,
     1
    ]
   ],
   "shape": [
    1,
    2
   ],
   "ops": [],
   "meaning": "",
   "subspace": null
  }
 ],
 "symmetries": [
  {
   "name": "left-multiplication",
   "group": "special-orthogonal",
   "size": 2,
   "meaning": "from the left",
   "actions": [
    {
     "weight": "input",
     "axis": 1,
     "slice": null,
     "inner": 1,
     "dual": false,
     "algebra": null
    },
    {
     "weight": "initial.H",
     "axis": 0,
     "slice": [
      [
       0,
       2
      ],
      [
       0,
       1
      ]
     ],
     "inner": 1,
     "dual": true,
     "algebra": null
    }
   ]
  }
 ],
 "training": {
  "seed": 0
 },
 "parity": {
  "tolerance": 1e-05,
  "max_error": 2e-06,
  "cases": [
   {
    "weights": "trained",
    "batch": 3,
    "num_steps": 5,
    "start": 0,
    "reference_error": 1e-06,
    "runtime_error": 2e-06
   }
  ],
  "unrolled": []
 },
 "files": {
  "model.onnx": {
   "sha256": "8a7dbcd6b0a5e8d2d7d2dcd1ea4e3e8e",
   "size": 5
  },
  "weights.safetensors": {
   "sha256": "00",
   "size": 7
  }
 }
}
"""

FIRST = Target(name="first", weight="input", slice=((0, 1),), shape=(1, 2), ops=(), meaning="")
MIXING = Target(
    name="mixing",
    weight="mixing",
    slice=None,
    shape=(1, 1),
    ops=("schur",),
    meaning="linear map Γ",
    subspace="subspace.visible",
)
LEFT = Symmetry(
    name="left-multiplication",
    group="special-orthogonal",
    size=2,
    meaning="from the left",
    actions=(
        Action(weight="input", axis=1),
        Action(weight="initial.H", axis=0, slice=((0, 2), (0, 1)), dual=True),
    ),
)
SMALL = Manifest(
    name="so2",
    family="osm-rnn",
    config={"vocabulary_size": 2, "d": 2},
    num_parameters=21,
    symbols="characters",
    vocabulary=("a", "é"),
    task=None,
    states=(StateSpec(name="H", dtype="float32", shape=(2, 2), initial="initial.H"),),
    graph=GraphSpec(
        inputs=(
            TensorSpec(name="forced", dtype="int64", shape=("K", "B")),
            TensorSpec(name="bias", dtype="float32", shape=("B", 2)),
        ),
        outputs=(TensorSpec(name="next.H", dtype="float32", shape=("B", 2, 2)),),
        correct_every=16,
        max_steps=16,
        opset=20,
        ir_version=10,
        operators={"torsor": 1},
        ranges={"MatrixExp": 4.5},
    ),
    targets=(MIXING, FIRST),
    symmetries=(LEFT,),
    training={"seed": 0},
    parity=Parity(
        tolerance=1e-5,
        max_error=2e-6,
        cases=(
            ParityCase(
                weights="trained",
                batch=3,
                num_steps=5,
                reference_error=1e-6,
                runtime_error=2e-6,
            ),
        ),
    ),
    files={
        GRAPH_FILE: FileSpec(sha256="8a7dbcd6b0a5e8d2d7d2dcd1ea4e3e8e", size=5),
        WEIGHTS_FILE: FileSpec(sha256="00", size=7),
    },
)


GOLDEN_TASK = """\
{
 "name": "copy",
 "options": {
  "bits": 3
 },
 "input_size": 3,
 "output_size": 2,
 "inputs": "vectors",
 "targets": "vectors",
 "pooled": false,
 "headline": "replay_accuracy",
 "better": "higher",
 "trials": {
  "count": 5,
  "of": 9,
  "seed": 7
 }
}"""
TASK = TaskSpec(
    name="copy",
    options={"bits": 3},
    input_size=3,
    output_size=2,
    inputs="vectors",
    targets="vectors",
    pooled=False,
    headline="replay_accuracy",
    better="higher",
    trials=TrialsSpec(count=5, of=9, seed=7),
)
SMALL_TASK = dataclasses.replace(
    SMALL,
    symbols="characters",
    vocabulary=(),
    task=TASK,
    graph=dataclasses.replace(
        SMALL.graph,
        inputs=(TensorSpec(name="inputs", dtype="float32", shape=("K", "B", 3)),),
        outputs=(TensorSpec(name="outputs", dtype="float32", shape=("K", "B", 2)),),
    ),
)


def write_bundle(folder: Path, manifest: Manifest, *names: str) -> Path:
    """These files, with their names for content, and a manifest of them."""
    for name in names:
        (folder / name).write_bytes(name.encode())
    files = {name: describe_file(folder / name) for name in names}
    write_manifest(folder, dataclasses.replace(manifest, files=files))
    return folder


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A folder that `read_manifest` accepts."""
    return write_bundle(tmp_path, SMALL, GRAPH_FILE, WEIGHTS_FILE)


@pytest.fixture
def task_bundle(tmp_path: Path) -> Path:
    """The same of a task."""
    return write_bundle(tmp_path, SMALL_TASK, GRAPH_FILE, WEIGHTS_FILE, TRIALS_FILE)


def rewrite(bundle: Path, place: tuple[str | int, ...], value: Any) -> None:
    """Change one value of the bundle's page."""
    path = bundle / MANIFEST_FILE
    page = json.loads(path.read_text())
    inner = page
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    path.write_text(json.dumps(page))


def remove(bundle: Path, place: tuple[str | int, ...]) -> None:
    """Take one key out of the bundle's page."""
    path = bundle / MANIFEST_FILE
    page = json.loads(path.read_text())
    inner = page
    for part in place[:-1]:
        inner = inner[part]
    del inner[place[-1]]
    path.write_text(json.dumps(page))


def refusal(bundle: Path, file: str = MANIFEST_FILE) -> str:
    """What `read_manifest` says about a file of the bundle, behind the file's path."""
    with pytest.raises(BundleError) as caught:
        read_manifest(bundle)
    start = f"{bundle / file}: "
    assert str(caught.value).startswith(start)
    return str(caught.value).removeprefix(start)


def test_the_bytes_of_a_manifest_never_change() -> None:
    assert manifest_bytes(SMALL).decode() == GOLDEN


def test_the_bytes_of_a_task_never_change() -> None:
    inner = json.dumps(dataclasses.asdict(TASK), ensure_ascii=False, indent=1)
    assert inner == GOLDEN_TASK
    page = GOLDEN_TASK.replace("\n", "\n ")
    assert f' "task": {page},\n' in manifest_bytes(SMALL_TASK).decode()


def test_a_bundle_of_a_task_reads_back_as_it_was_written(task_bundle: Path) -> None:
    manifest = read_manifest(task_bundle)
    assert dataclasses.replace(manifest, files=SMALL.files) == SMALL_TASK
    assert manifest_bytes(manifest) == (task_bundle / MANIFEST_FILE).read_bytes()


def test_a_task_may_have_no_states(task_bundle: Path) -> None:
    rewrite(task_bundle, ("states",), [])
    assert read_manifest(task_bundle).states == ()


def test_the_golden_bytes_read_back_as_the_value() -> None:
    assert parse_manifest(json.loads(GOLDEN)) == SMALL


def test_a_bundle_reads_back_as_it_was_written(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    assert dataclasses.replace(manifest, files=SMALL.files) == SMALL
    assert manifest_bytes(manifest) == (bundle / MANIFEST_FILE).read_bytes()


def test_writing_leaves_only_the_whole_page(bundle: Path) -> None:
    assert {path.name for path in bundle.iterdir()} == {GRAPH_FILE, WEIGHTS_FILE, MANIFEST_FILE}


def test_targets_are_found_by_name() -> None:
    assert SMALL.target("mixing") == MIXING
    assert SMALL.target("nothing") is None


def test_numbers_that_json_lacks_are_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        manifest_bytes(dataclasses.replace(SMALL, training={"bpc": float("nan")}))


st.register_type_strategy(int, st.integers(-MOST, MOST))  # which a manifest holds at most
finite = st.floats(allow_nan=False, allow_infinity=False)
free_form = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text())
graphs = st.builds(GraphSpec, ranges=st.dictionaries(st.text(), finite, max_size=2))
parity_cases = st.builds(ParityCase, reference_error=finite, runtime_error=finite)
unrolled_cases = st.builds(UnrolledCase, torch_error=finite, loop_error=finite)
parities = st.builds(
    Parity,
    tolerance=finite,
    max_error=finite,
    cases=st.lists(parity_cases, max_size=2).map(tuple),
    unrolled=st.lists(unrolled_cases, max_size=2).map(tuple),
)
tasks = st.none() | st.builds(TaskSpec, options=free_form)
manifests = st.builds(
    Manifest,
    task=tasks,
    format=st.just(FORMAT),
    config=free_form,
    training=free_form,
    graph=graphs,
    parity=parities,
)


@settings(deadline=None, max_examples=30)
@given(manifests)
def test_every_manifest_survives_its_file_form(manifest: Manifest) -> None:
    assert parse_manifest(json.loads(manifest_bytes(manifest))) == manifest


UNKNOWN = {
    "extra": ("extra",),
    "graph.extra": ("graph", "extra"),
    "graph.inputs[0].extra": ("graph", "inputs", 0, "extra"),
    "states[0].extra": ("states", 0, "extra"),
    "targets[1].extra": ("targets", 1, "extra"),
    "parity.extra": ("parity", "extra"),
    "parity.cases[0].extra": ("parity", "cases", 0, "extra"),
    "files.model.onnx.extra": ("files", GRAPH_FILE, "extra"),
}


@pytest.mark.parametrize("key", UNKNOWN)
def test_unknown_keys_are_refused(bundle: Path, key: str) -> None:
    rewrite(bundle, UNKNOWN[key], 1)
    assert refusal(bundle) == f"{key}: unknown key; use the torsor that wrote it"


MISSING = {
    **{
        f.name: (f.name,)
        for f in dataclasses.fields(Manifest)
        if f.name not in ("format", "symmetries")
    },
    **{f"graph.{f.name}": ("graph", f.name) for f in dataclasses.fields(GraphSpec)},
    **{
        f"states[0].{f.name}": ("states", 0, f.name)
        for f in dataclasses.fields(StateSpec)
        if f.name != "orthogonal"
    },
    **{
        f"targets[0].{f.name}": ("targets", 0, f.name)
        for f in dataclasses.fields(Target)
        if f.name != "subspace"
    },
    **{f"symmetries[0].{n}": ("symmetries", 0, n) for n in ("name", "group", "size", "actions")},
    **{f"parity.{name}": ("parity", name) for name in ("tolerance", "max_error", "cases")},
    "parity.cases[0].batch": ("parity", "cases", 0, "batch"),
    "graph.outputs[0].shape": ("graph", "outputs", 0, "shape"),
    "files.weights.safetensors.size": ("files", WEIGHTS_FILE, "size"),
}


@pytest.mark.parametrize("place", [("parity", "unrolled"), ("parity", "cases", 0, "start")])
def test_pages_from_before_a_key_was_added_are_read(
    bundle: Path, place: tuple[str | int, ...]
) -> None:
    remove(bundle, place)
    assert read_manifest(bundle).parity == SMALL.parity


@pytest.mark.parametrize("key", MISSING)
def test_missing_keys_are_refused(bundle: Path, key: str) -> None:
    remove(bundle, MISSING[key])
    assert refusal(bundle) == f"{key}: missing key"


def test_a_bundle_from_before_states_said_that_they_are_orthogonal_is_read(bundle: Path) -> None:
    remove(bundle, ("states", 0, "orthogonal"))
    assert not read_manifest(bundle).states[0].orthogonal


def test_a_bundle_from_before_symmetries_and_subspaces_is_read(bundle: Path) -> None:
    remove(bundle, ("symmetries",))
    for target in (0, 1):
        remove(bundle, ("targets", target, "subspace"))
    manifest = read_manifest(bundle)
    assert manifest.symmetries == ()
    assert [target.subspace for target in manifest.targets] == [None, None]


def test_symmetries_have_names_of_their_own(bundle: Path) -> None:
    twice = [dataclasses.asdict(LEFT)] * 2
    rewrite(bundle, ("symmetries",), twice)
    expected = "symmetries: found 'left-multiplication' twice, expected every name once"
    assert refusal(bundle) == expected


TASK_KEYS = {
    **{f"task.{f.name}": ("task", f.name) for f in dataclasses.fields(TaskSpec)},
    **{f"task.trials.{f.name}": ("task", "trials", f.name) for f in dataclasses.fields(TrialsSpec)},
}


@pytest.mark.parametrize("key", TASK_KEYS)
def test_missing_keys_of_a_task_are_refused(task_bundle: Path, key: str) -> None:
    remove(task_bundle, TASK_KEYS[key])
    assert refusal(task_bundle) == f"{key}: missing key"


@pytest.mark.parametrize("place", [("task",), ("task", "trials")])
def test_unknown_keys_of_a_task_are_refused(task_bundle: Path, place: tuple[str, ...]) -> None:
    rewrite(task_bundle, (*place, "extra"), 1)
    expected = f"{'.'.join(place)}.extra: unknown key; use the torsor that wrote it"
    assert refusal(task_bundle) == expected


WRONG: list[tuple[str, tuple[str | int, ...], Any, str]] = [
    ("name", ("name",), 3, "found 3, expected str"),
    ("name", ("name",), None, "found None, expected str"),
    ("config", ("config",), [], "found [], expected dict[str, typing.Any]"),
    ("num_parameters", ("num_parameters",), True, "found True, expected int"),
    ("num_parameters", ("num_parameters",), 1.5, "found 1.5, expected int"),
    ("num_parameters", ("num_parameters",), "21", "found '21', expected int"),
    ("vocabulary", ("vocabulary",), "ab", "found 'ab', expected tuple[str, ...]"),
    ("vocabulary[1]", ("vocabulary", 1), 7, "found 7, expected str"),
    ("task", ("task",), "copy", "found 'copy', expected TaskSpec | None"),
    ("states", ("states",), {}, "found {}, expected tuple[StateSpec, ...]"),
    ("states[0]", ("states", 0), "H", "found 'H', expected StateSpec"),
    ("states[0].shape[1]", ("states", 0, "shape", 1), "d", "found 'd', expected int"),
    ("graph", ("graph",), [], "found [], expected GraphSpec"),
    ("graph.opset", ("graph", "opset"), False, "found False, expected int"),
    ("graph.inputs[0].shape[0]", ("graph", "inputs", 0, "shape", 0), True, "found True, expected"),
    ("graph.inputs[0].shape[0]", ("graph", "inputs", 0, "shape", 0), 1.0, "found 1.0, expected"),
    ("graph.operators", ("graph", "operators"), [], "found [], expected dict[str, int]"),
    ("graph.operators.torsor", ("graph", "operators", "torsor"), 1.0, "found 1.0, expected int"),
    ("graph.ranges.MatrixExp", ("graph", "ranges", "MatrixExp"), "4", "found '4', expected float"),
    ("targets[0].slice", ("targets", 0, "slice"), 3, "found 3, expected"),
    ("targets[0].slice[0]", ("targets", 0, "slice"), [[0]], "found 1 entries, expected 2"),
    ("targets[0].slice[0][1]", ("targets", 0, "slice"), [[0, "1"]], "found '1', expected int"),
    ("parity.tolerance", ("parity", "tolerance"), True, "found True, expected float"),
    ("parity.tolerance", ("parity", "tolerance"), float("nan"), "found nan, expected float"),
    ("parity.tolerance", ("parity", "tolerance"), float("inf"), "found inf, expected float"),
    ("parity.tolerance", ("parity", "tolerance"), 10**400, "found 1000"),
    ("files", ("files",), [], "found [], expected dict[str, FileSpec]"),
    ("files.model.onnx", ("files", GRAPH_FILE), 5, "found 5, expected FileSpec"),
    ("files.model.onnx.size", ("files", GRAPH_FILE, "size"), "5", "found '5', expected int"),
]


@pytest.mark.parametrize(("key", "place", "value", "problem"), WRONG)
def test_values_of_another_type_are_refused(
    bundle: Path, key: str, place: tuple[str | int, ...], value: Any, problem: str
) -> None:
    rewrite(bundle, place, value)
    assert refusal(bundle).startswith(f"{key}: {problem}")


def test_a_whole_number_is_a_fine_float(bundle: Path) -> None:
    rewrite(bundle, ("parity", "tolerance"), 1)
    assert read_manifest(bundle).parity.tolerance == 1.0


@pytest.mark.parametrize("found", [FORMAT + 1, 0, "1", None, [1]])
def test_other_formats_are_refused(bundle: Path, found: Any) -> None:
    rewrite(bundle, ("format",), found)
    assert refusal(bundle).startswith(f"format: found {found!r}, expected 2; use the torsor that")


def test_a_format_that_only_equals_two_is_refused(bundle: Path) -> None:
    rewrite(bundle, ("format",), 2.0)
    assert refusal(bundle) == "format: found 2.0, expected int"


@pytest.mark.parametrize("page", ["[]", "3", "null", '"x"', "{}"])
def test_a_page_that_is_no_object_of_ours_is_refused(bundle: Path, page: str) -> None:
    (bundle / MANIFEST_FILE).write_text(page)
    assert refusal(bundle).startswith("format: found None, expected 2")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\xfd", b"\x00", b"[" * 100_000])
def test_what_is_not_json_is_refused(bundle: Path, content: bytes) -> None:
    (bundle / MANIFEST_FILE).write_bytes(content)
    assert refusal(bundle).startswith("not JSON (")


def test_a_manifest_cut_anywhere_is_refused(bundle: Path) -> None:
    whole = (bundle / MANIFEST_FILE).read_bytes().rstrip()
    for length in range(0, len(whole), 97):
        (bundle / MANIFEST_FILE).write_bytes(whole[:length])
        assert refusal(bundle).startswith("not JSON (")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="nowhere: no such folder; make one with: torsor export"):
        read_manifest(tmp_path / "nowhere")


def test_a_half_written_bundle_is_refused(bundle: Path) -> None:
    (bundle / MANIFEST_FILE).rename(bundle / (MANIFEST_FILE + ".part"))
    assert refusal(bundle).startswith("missing; the folder is not a whole bundle")


@pytest.mark.parametrize("name", [GRAPH_FILE, WEIGHTS_FILE])
def test_a_missing_file_is_refused(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    assert refusal(bundle, name) == "missing; export the bundle again"


@pytest.mark.parametrize("name", [GRAPH_FILE, WEIGHTS_FILE])
def test_a_truncated_file_is_refused(bundle: Path, name: str) -> None:
    whole = (bundle / name).read_bytes()
    (bundle / name).write_bytes(whole[:-1])
    sizes = f"found {len(whole) - 1} bytes, expected {len(whole)}"
    assert refusal(bundle, name) == f"size: {sizes}; truncated?"


@pytest.mark.parametrize("name", [GRAPH_FILE, WEIGHTS_FILE])
def test_a_tampered_file_is_refused(bundle: Path, name: str) -> None:
    expected = describe_file(bundle / name).sha256
    (bundle / name).write_bytes((bundle / name).read_bytes()[::-1])
    found = describe_file(bundle / name).sha256
    assert refusal(bundle, name) == f"sha256: found {found}, expected {expected}; changed?"


@pytest.mark.parametrize(
    "name", ["../model.onnx", "/etc/passwd", "a/b", "a\\b", "..", ".", "", "../"]
)
def test_file_names_that_leave_the_folder_are_refused(bundle: Path, name: str) -> None:
    spec = dataclasses.asdict(describe_file(bundle / GRAPH_FILE))
    rewrite(bundle, ("files", name), spec)
    assert refusal(bundle) == f"files: found {name!r}, expected plain file names"


def test_a_file_name_that_no_file_can_have_is_missing(bundle: Path) -> None:
    rewrite(bundle, ("files", "a\0b"), {"sha256": "", "size": 0})
    assert refusal(bundle, "a\0b").startswith("missing")


@pytest.mark.parametrize("name", [GRAPH_FILE, WEIGHTS_FILE])
def test_graph_and_weights_must_be_listed(bundle: Path, name: str) -> None:
    remove(bundle, ("files", name))
    assert refusal(bundle) == f"files: {name} is not listed"


@pytest.mark.parametrize("symbol", ["", "ab", "\ud800"])
def test_symbols_of_a_vocabulary_are_single_characters(bundle: Path, symbol: str) -> None:
    rewrite(bundle, ("vocabulary", 0), symbol)
    assert refusal(bundle) == f"vocabulary: found {symbol!r}, expected single characters"


def test_symbols_that_are_bytes_are_below_256(bundle: Path) -> None:
    rewrite(bundle, ("symbols",), "bytes")
    read_manifest(bundle)  # é is byte 233
    rewrite(bundle, ("vocabulary", 0), "Ā")
    assert refusal(bundle) == "vocabulary: found a symbol above U+00FF, expected bytes"


def test_a_vocabulary_holds_a_character_once(bundle: Path) -> None:
    rewrite(bundle, ("vocabulary", 1), "a")
    assert refusal(bundle) == "vocabulary: a character stands in it twice"


SENSELESS: list[tuple[str, tuple[str | int, ...], Any, str]] = [
    *(("name", ("name",), name, "found") for name in ("", "a/b", "a\nb", "a\n", "é", "a" * 101)),
    ("num_parameters", ("num_parameters",), -1, "found -1, expected at least 0"),
    ("vocabulary", ("vocabulary",), [], "found no characters"),
    ("symbols", ("symbols",), "words", "found 'words', expected characters or bytes"),
    ("vocabulary", ("vocabulary",), ["a"], "found 1 characters, expected [2], the last axis of"),
    ("vocabulary", ("graph", "inputs", 1, "name"), "other", "found 2 characters, expected []"),
    ("states", ("states",), [], "found none"),
    ("states[0].dtype", ("states", 0, "dtype"), "float64", "found 'float64', expected 'float32'"),
    ("graph.opset", ("graph", "opset"), OPSET + 1, "found 21, expected 1 to 20; use the torsor"),
    ("graph.ir_version", ("graph", "ir_version"), IR_VERSION + 1, "found 11, expected 1 to 10"),
    ("graph.operators.torsor", ("graph", "operators", "torsor"), VERSION + 1, "found version 2"),
    ("graph.operators.other", ("graph", "operators", "other"), VERSION, "found version 1"),
    ("graph.max_steps", ("graph", "max_steps"), 0, "found 0, expected 1 to 65536"),
    ("graph.max_steps", ("graph", "max_steps"), 1 << 17, "found 131072, expected 1 to 65536"),
    ("graph.max_steps", ("graph", "max_steps"), 1 << 70, f"found {1 << 70}, expected at most"),
    ("graph.correct_every", ("graph", "correct_every"), 1 << 70, f"found {1 << 70}, expected at"),
    ("num_parameters", ("num_parameters",), 1 << 70, f"found {1 << 70}, expected at most"),
    ("graph.correct_every", ("graph", "correct_every"), -1, "found -1, expected at least 0"),
    ("graph.bias.dtype", ("graph", "inputs", 1, "dtype"), "float8", "found 'float8', expected"),
    ("targets", ("targets", 1, "name"), "mixing", "found 'mixing' twice"),
    ("parity.max_error", ("parity", "max_error"), 1.1e-5, "found 1.1e-05, expected 0 to the"),
    ("parity.max_error", ("parity", "max_error"), -1e-9, "found -1e-09, expected 0 to the"),
]


@pytest.mark.parametrize(("key", "place", "value", "problem"), SENSELESS)
def test_values_that_make_no_sense_to_this_reader_are_refused(
    bundle: Path, key: str, place: tuple[str | int, ...], value: Any, problem: str
) -> None:
    rewrite(bundle, place, value)
    assert refusal(bundle).startswith(f"{key}: {problem}")


NOT_OF_A_TASK: list[tuple[str, tuple[str | int, ...], Any, str]] = [
    ("vocabulary", ("vocabulary",), ["a"], "found 1 characters, expected none beside a task"),
    ("task.inputs", ("task", "inputs"), "x", "found 'x', expected 'characters' or 'vectors'"),
    ("task.targets", ("task", "targets"), "x", "found 'x', expected 'classes' or 'vectors'"),
    ("task.better", ("task", "better"), "more", "found 'more', expected 'lower' or 'higher'"),
    ("task.input_size", ("task", "input_size"), 0, "found 0, expected at least 1"),
    ("task.output_size", ("task", "output_size"), -1, "found -1, expected at least 1"),
    ("task.trials.count", ("task", "trials", "count"), 0, "found 0, expected 1 to 9, all that"),
    ("task.trials.count", ("task", "trials", "count"), 10, "found 10, expected 1 to 9, all that"),
    (
        "graph.inputs",
        ("task", "input_size"),
        4,
        "found float32 ['K', 'B', 3], expected float32 (K, B, 4) as task says",
    ),
    (
        "graph.inputs",
        ("task", "inputs"),
        "characters",
        "found float32 ['K', 'B', 3], expected int64 (K, B) as task says",
    ),
    (
        "graph.outputs",
        ("task", "output_size"),
        3,
        "found float32 ['K', 'B', 2], expected float32 (K, B, 3) as task says",
    ),
    (
        "graph.inputs",
        ("graph", "inputs", 0, "name"),
        "forced",
        "found no tensor of that name, expected float32 (K, B, 3) as task says",
    ),
    ("vocabulary", ("task",), None, "found no characters, expected at least one"),
]


@pytest.mark.parametrize(("key", "place", "value", "problem"), NOT_OF_A_TASK)
def test_values_that_make_no_sense_in_a_task_are_refused(
    task_bundle: Path, key: str, place: tuple[str | int, ...], value: Any, problem: str
) -> None:
    rewrite(task_bundle, place, value)
    assert refusal(task_bundle).startswith(f"{key}: {problem}")


@pytest.mark.parametrize("name", [GRAPH_FILE, WEIGHTS_FILE, TRIALS_FILE])
def test_a_task_needs_every_file_and_whole(task_bundle: Path, name: str) -> None:
    (task_bundle / name).write_bytes(name.encode()[::-1])
    assert refusal(task_bundle, name).startswith("sha256: found")
    (task_bundle / name).unlink()
    assert refusal(task_bundle, name) == "missing; export the bundle again"
    remove(task_bundle, ("files", name))
    assert refusal(task_bundle) == f"files: {name} is not listed"


@pytest.mark.parametrize("name", ["a", "osm-rnn_2.1", "A" * 100])
def test_plain_model_names_are_fine(bundle: Path, name: str) -> None:
    rewrite(bundle, ("name",), name)
    assert read_manifest(bundle).name == name
