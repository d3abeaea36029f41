"""Ablations: lists of edits to effective weights, as data (Draeger, arXiv 2606.18457, section 2).

    {"name": "no-CC",
     "edits": [{"target": "recurrent", "op": "schur", "alpha": 0.9, "zero": ["CC"]}]}

| op         | on            | keys                | meaning                                       |
|------------|---------------|---------------------|-----------------------------------------------|
| `schur`    | square matrix | `alpha`, `zero`     | W' = Q T' Q^T; T' is T with the couplings     |
|            |               |                     | named in `zero` set to 0                      |
| `zero`     | any target    | `rows`, `columns`   | 0                                             |
| `scale`    | any target    | `factor`,           | factor · W                                    |
|            |               | `rows`, `columns`   |                                               |
| `identity` | square matrix |                     | the identity                                  |
| `rank`     | matrix        | `keep`              | the `keep` largest singular values stay       |
| `project`  | mixing of OSM | `subspace`          | Π W: only the tangents that the readout sees  |
|            |               |                     | stay, or only those that it doesn't           |
| `freeze`   | angles        | `rows`, `columns`   | angle 0: these planes don't turn              |
| `random`   | any edit      | `like`, `seed`      | control: W less a random direction of the     |
|            |               |                     | mass and the kind that `like` removes, which  |
|            |               |                     | must be more than a single number             |
| `symmetry` | whole model   | `kind`, `seed`      | a random element of an exact symmetry acts on |
|            |               |                     | all weights it moves: the function must stay  |

- Edits are applied in order; several may hit one weight.
- An edit that changes nothing is an error, never a no-op.
- `rows` and `columns` are [start, stop) of the target's first and second axis; left out: all.
- `random` and `symmetry` have no `target`: it is that of `like`, or all that the symmetry moves.
- The name is a label: two ablations are the same if their canonical edits are.

How an op changes a weight stands in serve/ablation/ops.py, how a list of edits is applied in
serve/ablation/apply.py, how JSON is read in serve/ablation/parse.py.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass

from serve.manifest.values import Json
from serve.wire.edit_fields import KEYS

Range = tuple[int, int]  # start, stop


class AblationError(ValueError):
    """An ablation that can't be used: `field` is the dotted path of what is wrong."""

    def __init__(self, field: str, found: str, expected: str, remedy: str) -> None:
        self.field = field
        super().__init__(f"{field}: found {found}, expected {expected}; {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change; what an op doesn't take is None or empty."""

    op: str
    target: str = ""
    alpha: float | None = None
    zero: tuple[str, ...] = ()  # of serve.ablation.schur.COUPLINGS, in that order
    rows: Range | None = None
    columns: Range | None = None
    factor: float | None = None
    keep: int | None = None  # singular values
    subspace: str | None = None
    like: "Edit | None" = None
    kind: str | None = None  # the symmetry's name
    seed: int | None = None

    @property
    def place(self) -> str:
        """The target that changes; of a symmetry its name."""
        return self.like.place if self.like else self.kind or self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """A named list of edits; without edits it is the plain model."""

    name: str
    edits: tuple[Edit, ...]


def canonical(ablation: Ablation) -> dict[str, Json]:
    """The ablation as JSON with every default written out; it parses to an equal ablation."""
    return {"name": ablation.name, "edits": [canonical_edit(edit) for edit in ablation.edits]}


def canonical_edit(edit: Edit) -> dict[str, Json]:
    """An edit as JSON: `op` and what it takes, but for a range that is left out."""
    first = ("target", "op") if "target" in KEYS[edit.op] else ("op",)
    keys = (*first, *(key for key in KEYS[edit.op] if key != "target"))
    page = {key: _plain(getattr(edit, key)) for key in keys}
    return {key: value for key, value in page.items() if value is not None}


def ablation_hash(ablation: Ablation) -> str:
    """16 hex digits of the SHA-256 of the canonical edits; the name doesn't count."""
    edits = canonical(ablation)["edits"]
    text = json.dumps(edits, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def controls(ablation: Ablation, seed: int) -> Ablation:
    """The matched random control of an ablation: each edit's own, all with one seed.

    Edits that are no ablation, controls and symmetries, stay as they are.
    """
    edits = [
        edit if edit.op in ("random", "symmetry") else Edit(op="random", like=edit, seed=seed)
        for edit in ablation.edits
    ]
    return dataclasses.replace(ablation, edits=tuple(edits))


def _plain(value: Json) -> Json:
    if isinstance(value, Edit):
        return canonical_edit(value)
    return list(value) if isinstance(value, tuple) else value
