"""The geometry of lightning self-attention: its map, symmetries, and the dimension of its image.

Henry, Marchetti, Kohn, "Geometry of Lightning Self-Attention", arXiv 2408.17221, whose input is a
matrix of tokens that all see each other. `train.models.lightning` is the causal model for text.

Letters: d_0 ... d_l widths, l number of layers, a_i attention dimensions, t tokens, N inputs.
Layers are counted from 1, as in the paper.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jacrev, vmap

WEIGHT_STD = 0.6
ROWS_PER_NUMBER = 2.5  # equations for each number in the weights
LEAST_GAP = 1e6  # between the last singular value that counts and the first that doesn't


class Layer(NamedTuple):
    """The weights of one layer."""

    query: Tensor  # (a, d) Q
    key: Tensor  # (a, d) K
    value: Tensor  # (d', d) V


class Measured(NamedTuple):
    """A numerical rank, and the ratio of singular values that it is read from."""

    dimension: int
    gap: float


def lightning_map(layers: Sequence[Layer], X: Tensor, normalised: bool = False) -> Tensor:
    """X -> V X Xᵀ A X with A = Kᵀ Q, layer after layer: (..., d_0, t) -> (..., d_l, t).

    Token i becomes Σ_j (K x_j · Q x_i) V x_j; if normalised Σ_j softmax_j(K x_j · Q x_i) V x_j.
    """
    for Q, K, V in layers:
        scores = (K @ X).mT @ (Q @ X)  # (..., t, t): from token, to token
        X = V @ X @ (scores.softmax(-2) if normalised else scores)
    return X


def scale_layers(layers: Sequence[Layer], factors: Sequence[float]) -> list[Layer]:
    """Layer scaling: layer i < l by a factor of its own, and the last by what makes up for them.

    A factor on layer i is its power 3^(l - i) at the output.
    """
    if len(factors) != len(layers) - 1:
        raise ValueError(f"factors: found {len(factors)}, expected one fewer than layers")
    last = math.prod(c ** -(3 ** (len(layers) - i)) for i, c in enumerate(factors, 1))
    scaled = zip(layers, [*factors, last], strict=True)
    return [layer._replace(value=c * layer.value) for layer, c in scaled]


def change_attention(layer: Layer, C: Tensor, scale: float = 1.0) -> Layer:
    """Intra-layer: Q, K -> C Q, C^-ᵀ K for C in GL_a; A, V -> scale·A, V / scale."""
    query, key = scale * C @ layer.query, torch.linalg.solve(C.mT, layer.key)
    return Layer(query, key, layer.value / scale)


def change_basis(layers: Sequence[Layer], i: int, P: Tensor) -> list[Layer]:
    """Inter-layer: the tokens between layers i and i + 1 in another basis, x -> P x."""
    if not 1 <= i < len(layers):
        raise ValueError(f"layer: found {i}, expected 1 to {len(layers) - 1}")
    before, after = layers[i - 1], layers[i]
    changed = [before._replace(value=P @ before.value)]
    changed += [Layer(*(torch.linalg.solve(P, W, left=False) for W in after))]
    return [*layers[: i - 1], *changed, *layers[i + 1 :]]


def expected_dimension(
    widths: Sequence[int], attention_dims: Sequence[int], normalised: bool = False
) -> int:
    """The paper's dimension of the set of all maps with these sizes, for t >= 2 tokens.

    Σ_i [α_i (2 d_{i-1} - α_i) + d_{i-1} d_i] - (l - 1) δ² - l with α_i = min(a_i, d_{i-1}) and
    hidden widths δ; l more if normalised. Raises `ValueError` where the formula doesn't hold.
    """
    layers, hidden = len(attention_dims), widths[1:-1]
    if layers < 1 or len(widths) != layers + 1 or min(*widths, *attention_dims) < 1:
        raise ValueError(
            f"widths: found {list(widths)} with attention dimensions {list(attention_dims)}, "
            "expected positive numbers, one more width than layers"
        )
    if len(set(hidden)) > 1 or any(width > widths[0] for width in hidden):
        raise ValueError(
            f"widths: found {list(hidden)} hidden, expected one width, at most the input's "
            f"{widths[0]}: the formula is for bottlenecks"
        )
    ranks = [min(a, d) for a, d in zip(attention_dims, widths, strict=False)]
    if not normalised and any(a == 1 < b for a, b in zip(ranks, ranks[1:], strict=False)):
        raise ValueError(
            f"attention dimensions: found {list(attention_dims)}, expected no 1 before a larger "
            "one: such a layer hides the skew part of the next layer's A"
        )
    pairs = zip(ranks, widths, widths[1:], strict=False)
    free = sum(rank * (2 * d - rank) + d * out for rank, d, out in pairs)
    return free - sum(d * d for d in hidden) - (0 if normalised else layers)


def measured_dimension(
    widths: Sequence[int],
    attention_dims: Sequence[int],
    *,
    num_tokens: int = 3,
    num_inputs: int | None = None,
    normalised: bool = False,
    seeds: Sequence[int] = (0, 1, 2),
) -> Measured:
    """The rank of the Jacobian from weights to outputs: the largest over random weights.

    Outputs are those of `num_inputs` random inputs, by default enough of them. In float64; raises
    `ArithmeticError` where no gap between singular values shows the rank.
    """
    shapes = layer_shapes(widths, attention_dims)
    if num_inputs is None:
        numbers = sum(math.prod(shape) for shape in shapes)
        num_inputs = math.ceil(ROWS_PER_NUMBER * numbers / (num_tokens * widths[-1]))
    ranks = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        layers = random_layers(widths, attention_dims, generator)
        size = (num_inputs, widths[0], num_tokens)
        X = torch.randn(size, generator=generator, dtype=torch.float64)
        ranks.append(numerical_rank(jacobian(layers, X, normalised)))
    clear = [rank for rank in ranks if rank.gap >= LEAST_GAP]
    if not clear:
        raise ArithmeticError(
            f"rank: found {ranks}, expected a gap of {LEAST_GAP:.0e}; more inputs"
        )
    return max(clear)


def layer_shapes(widths: Sequence[int], attention_dims: Sequence[int]) -> list[tuple[int, int]]:
    """Shapes of Q, K and V of the first layer, then of the next."""
    sizes = zip(attention_dims, widths, widths[1:], strict=False)
    return [shape for a, d, out in sizes for shape in ((a, d), (a, d), (out, d))]


def random_layers(
    widths: Sequence[int], attention_dims: Sequence[int], generator: torch.Generator
) -> list[Layer]:
    """Normal weights, in float64."""
    matrices = [
        torch.randn(shape, generator=generator, dtype=torch.float64) * WEIGHT_STD
        for shape in layer_shapes(widths, attention_dims)
    ]
    return group_layers(matrices)


def group_layers(matrices: Sequence[Tensor]) -> list[Layer]:
    """Q, K, V, Q, K, V, ... as layers."""
    return [Layer(*matrices[i : i + 3]) for i in range(0, len(matrices), 3)]


def jacobian(layers: Sequence[Layer], X: Tensor, normalised: bool = False) -> Tensor:
    """Derivatives of all outputs on inputs X (N, d_0, t) by all weights: (N d_l t, weights)."""
    matrices = tuple(matrix for layer in layers for matrix in layer)

    def outputs(matrices: tuple[Tensor, ...], one: Tensor) -> Tensor:
        return lightning_map(group_layers(matrices), one, normalised).flatten()

    parts = vmap(jacrev(outputs), in_dims=(None, 0))(matrices, X)  # (N, d_l t, rows, columns) each
    return torch.cat([part.flatten(2) for part in parts], dim=-1).flatten(0, 1)


def numerical_rank(J: Tensor) -> Measured:
    """The rank of a matrix, whose rows count alike: singular values up to the widest gap."""
    length = torch.linalg.vector_norm(J, dim=1, keepdim=True)
    values = torch.linalg.svdvals(J / length.clamp(min=torch.finfo(J.dtype).tiny))
    noise = values[:1] * torch.finfo(J.dtype).eps
    values = torch.cat([values.clamp(min=noise), noise])
    gap, last = (values[:-1] / values[1:]).max(0)
    return Measured(int(last) + 1, float(gap))
