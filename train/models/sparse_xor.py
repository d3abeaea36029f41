"""Two heads of attention that learn which two bits of an input are multiplied.

Han, Ghoshdastidar, "Transformers Provably Learn Sparse XOR with Polylogarithmic Parameters", arXiv
2502.07553: bits are values, frozen random positions on a sphere are keys, and the only parameters
that learn are the queries of two heads. `train.experiments.sparse_xor` takes the paper's one step.

Letters: B batch, T time, d input size (bits), m size of positions and queries.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from train.model import Action, Model, State, Symmetry, Target, Weights, on_axis
from train.settings import check_choices, check_range

KINDS = ("softmax", "linear", "erf")
STARTS = ("opposite", "independent", "same")
MAX_M = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseXorConfig:
    """Sizes of the two heads."""

    input_size: int
    output_size: int
    m: int = field(default=96, metadata={"help": "size of positions and queries"})
    attention: str = field(
        default="softmax", metadata={"help": "from scores to attention", "choices": KINDS}
    )
    queries: str = field(
        default="opposite", metadata={"help": "the second at the start", "choices": STARTS}
    )

    def __post_init__(self) -> None:
        check_range("m", self.m, 1, MAX_M)
        if self.output_size != 1:
            raise ValueError(f"output_size: found {self.output_size}, expected 1")
        check_choices(self)


class SparseXor(Model):
    """y = -(Σ_i γ_i x_i) (Σ_i γ~_i x_i) for x ∈ {-1, +1}^d, whatever came before x.

    | weight      | shape  | paper |                                              |
    |-------------|--------|-------|----------------------------------------------|
    | `attention` | (2, d) | γ, γ~ | `attend` of the positions v_i and θ, θ~      |

    The state is the two sums of the last input. Positions are parameters that don't learn.
    """

    family = "sparse-xor"
    Config = SparseXorConfig
    takes = ("vectors",)
    learning_rate = 0.1
    grows = "m"

    def __init__(self, config: SparseXorConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        positions = sphere(config.input_size, config.m, generator=generator)
        self.positions = nn.Parameter(positions, requires_grad=False)
        self.queries = nn.Parameter(start_queries(config.queries, config.m, generator=generator))

    def weights(self) -> Weights:
        """Exact attention, as it multiplies the bits."""
        return {"attention": attend(self.config.attention, self.positions, self.queries)}

    def init_state(self, batch: int) -> State:
        """No input yet: (B, 2)."""
        return {"heads": torch.zeros(batch, 2).to(self.queries)}

    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        """Σ_i γ_i x_i and Σ_i γ~_i x_i: (B, 2)."""
        del state
        return {"heads": x @ weights["attention"].mT}

    def readout(self, weights: Weights, state: State) -> Tensor:
        """Minus their product: (..., 1)."""
        del weights
        return -state["heads"].prod(-1, keepdim=True)

    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        """All inputs at once; the last one's sums are the state."""
        heads = self.update(weights, state, xs)["heads"]  # (T, B, 2)
        return {"heads": heads[-1]}, self.readout(weights, {"heads": heads})

    def targets(self) -> list[Target]:
        """Each head's attention."""
        d = self.config.input_size
        return [
            Target(
                f"heads.{head}",
                "attention",
                ("zero",),
                f"attention of head {head}: how much of each bit it takes",
                ((head, head + 1), (0, d)),
            )
            for head in range(2)
        ]

    def symmetries(self) -> list[Symmetry]:
        """The heads are multiplied: in either order, one by a number and the other over it."""
        rows = [((head, head + 1), (0, self.config.input_size)) for head in range(2)]
        factors = tuple(Action("attention", 0, dual=i > 0, slice=row) for i, row in enumerate(rows))
        return [
            Symmetry("heads", "permutation", 2, "the heads swapped", on_axis(0, "attention")),
            Symmetry("scale", "scale", 1, "one head times a number, the other over it", factors),
        ]


def attend(kind: str, positions: Tensor, queries: Tensor) -> Tensor:
    """γ_i of each query, from scores v_i · θ: (..., d, m), (..., 2, m) -> (..., 2, d).

    softmax: exp(v_i · θ) / Σ_j exp(v_j · θ); linear: v_i · θ; erf: (1 + erf(v_i · θ)) / 2d.
    The paper compares with the last two, but these definitions are ours.
    """
    scores = queries @ positions.mT
    if kind == "softmax":
        return scores.softmax(-1)
    if kind == "erf":
        return (1.0 + torch.erf(scores)) / (2 * scores.shape[-1])
    return scores


def sphere(
    *shape: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Points uniform on the unit sphere of the last axis."""
    return normalize(torch.randn(*shape, generator=generator, dtype=dtype), dim=-1)


def start_queries(
    kind: str,
    m: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """θ on the sphere, and θ~ = -θ, another point, or the same: (2, m)."""
    pair = sphere(2, m, generator=generator, dtype=dtype)
    if kind == "independent":
        return pair
    return torch.stack([pair[0], -pair[0] if kind == "opposite" else pair[0]])
