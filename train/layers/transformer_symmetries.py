"""The symmetries of `train.models.transformer`.

| symmetry                   | moves                                                             |
|----------------------------|-------------------------------------------------------------------|
| `layers.0.attention.value` | V, O -> P V, O P^-1 in every head                                 |
| `layers.0.attention.query` | Q, K -> R Q, R K, R turning the planes that positions turn        |
| `layers.0.attention.heads` | heads in another order                                            |
| `layers.0.mlp.units`       | units of the MLP in another order                                 |
| `stream`                   | the numbers of x in another order: norms see any other basis      |
"""

from train.model import Symmetry, on_axis


def symmetries_of(*, layers: int, heads: int, d: int, f: int) -> list[Symmetry]:
    """All of a stack; f is the width of the MLP."""
    names = [f"layers.{k}" for k in range(layers)]
    found = [symmetry for name in names for symmetry in _layer(name, heads, d // heads, f)]
    return [symmetry for symmetry in [*found, _stream(names, d)] if symmetry.size > 1]


def _layer(name: str, heads: int, size: int, f: int) -> list[Symmetry]:
    attention, mlp = f"{name}.attention", f"{name}.mlp"
    Q, K, V, out = (f"{attention}.{end}" for end in ("query", "key", "value", "output"))
    moves = {
        f"{attention}.value": (
            "invertible",
            size,
            "values of every head in another basis",
            on_axis(0, V) + on_axis(1, out, dual=True),
        ),
        f"{attention}.query": (
            "halves",
            size,
            "queries and keys of every head turned alike",
            on_axis(0, Q, K),
        ),
        f"{attention}.heads": (
            "permutation",
            heads,
            "heads in another order",
            on_axis(0, Q, K, V, inner=size) + on_axis(1, out, inner=size),
        ),
        f"{mlp}.units": (
            "permutation",
            f,
            "units of the MLP in another order",
            on_axis(0, f"{mlp}.gate", f"{mlp}.up") + on_axis(1, f"{mlp}.down"),
        ),
    }
    return [Symmetry(key, *rest) for key, rest in moves.items()]


def _stream(names: list[str], d: int) -> Symmetry:
    rows = [f"{name}.{end}" for name in names for end in ("attention.output", "mlp.down")]
    norms = [f"{name}.{part}.norm" for name in names for part in ("attention", "mlp")]
    ends = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
    columns = [f"{name}.{end}" for name in names for end in ends]
    actions = on_axis(0, *norms, *rows, "norm") + on_axis(1, "input", *columns, "readout")
    return Symmetry("stream", "permutation", d, "the numbers of x in another order", actions)
