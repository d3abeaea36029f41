"""The symmetries of `train.models.lightning`: those of arXiv 2408.17221 that a stack really has.

| symmetry             | moves                                                   | exact          |
|----------------------|---------------------------------------------------------|----------------|
| `layers.0.attention` | Q, K -> C Q, C^-T K in every head                       | always         |
| `layers.0.scale`     | Q, V -> λ Q, V / λ: the paper's scaling of A and V      | always         |
| `layers.0.basis`     | V -> P V in every head, what reads it -> · P^-1         | plain blocks   |
| `input`              | what stands for characters in another basis             | plain blocks   |
| `layers.0.heads`     | heads of one layer in another order                     | plain blocks   |
| `layers.0.units`     | units of the MLP in another order                       | residual       |
| `stream`             | the numbers of x in another order, the same in all heads | residual      |
| `heads`              | heads in another order, the same in all layers          | residual       |

Norms, skips and μ of a residual block see the basis of x: of its changes they leave the orders.
The paper's scaling of layers is `basis` with P a number.
"""

from train.model import Action, Symmetry, on_axis


def symmetries_of(
    *, layers: int, heads: int, a: int, d: int, f: int, decays: bool
) -> list[Symmetry]:
    """All of a stack; f is the width of the MLPs of residual blocks, 0 of plain ones."""
    found = list[Symmetry]()
    for i in range(layers):
        name = f"layers.{i}"
        told = f"queries and keys of every head of layer {i} in another basis"
        actions = on_axis(0, f"{name}.query") + on_axis(0, f"{name}.key", dual=True)
        found.append(Symmetry(f"{name}.attention", "invertible", a, told, actions))
        told = f"scores of layer {i} times a number, values over it"
        actions = on_axis(0, f"{name}.query") + on_axis(0, f"{name}.value", dual=True)
        found.append(Symmetry(f"{name}.scale", "scale", 1, told, actions))
    more = _residual(layers, heads, a, d, f, decays) if f else _plain(layers, heads, a, d, decays)
    return found + [symmetry for symmetry in more if symmetry.size > 1 or symmetry.group[0] == "i"]


def _plain(layers: int, heads: int, a: int, d: int, decays: bool) -> list[Symmetry]:
    told = "the numbers that stand for inputs in another basis"
    actions = on_axis(1, "input") + on_axis(1, *_readers(0, layers), dual=True)
    found, n = [Symmetry("input", "invertible", d, told, actions)], d // heads
    for i in range(layers):
        name, above = f"layers.{i}", _readers(i + 1, layers)
        told = f"what every head of layer {i} gives in another basis"
        actions = on_axis(0, f"{name}.value") + on_axis(1, *above, dual=True)
        found.append(Symmetry(f"{name}.basis", "invertible", n, told, actions))
        told = f"heads of layer {i} in another order"
        actions = _heads(name, n, a, decays) + on_axis(1, *above, inner=n)
        found.append(Symmetry(f"{name}.heads", "permutation", heads, told, actions))
    return found


def _residual(layers: int, heads: int, a: int, d: int, f: int, decays: bool) -> list[Symmetry]:
    found, n, names = list[Symmetry](), d // heads, [f"layers.{i}" for i in range(layers)]
    for i, name in enumerate(names):
        told = f"units of the MLP of layer {i} in another order"
        actions = on_axis(0, f"{name}.mlp.up") + on_axis(1, f"{name}.mlp.down")
        found.append(Symmetry(f"{name}.units", "permutation", f, told, actions))
    ends = ("query", "key", "value", "shift", "mlp.up")
    read = [f"{name}.{end}" for name in names for end in ends]
    down = [f"{name}.mlp.down" for name in names]

    def stream(inner: int) -> tuple[Action, ...]:
        return on_axis(1, "input", *read, "readout", inner=inner) + on_axis(0, *down, inner=inner)

    told = "the numbers of every head in another order, the same in all heads and layers"
    actions = stream(1) + on_axis(0, *(f"{name}.value" for name in names))
    found.append(Symmetry("stream", "permutation", n, told, actions))
    told = "heads in another order, the same in all layers"
    actions = tuple(action for name in names for action in _heads(name, n, a, decays))
    found.append(Symmetry("heads", "permutation", heads, told, stream(n) + actions))
    return found


def _heads(name: str, n: int, a: int, decays: bool) -> tuple[Action, ...]:
    """The heads of a layer: rows of Q, K and V, and γ."""
    scores = on_axis(0, f"{name}.query", f"{name}.key", inner=a)
    values = on_axis(0, f"{name}.value", inner=n)
    return scores + values + (on_axis(0, f"{name}.decay") if decays else ())


def _readers(i: int, layers: int) -> list[str]:
    """What reads the input of layer i: its matrices, or the readout."""
    names = [f"layers.{i}.{end}" for end in ("query", "key", "value")]
    return names if i < layers else ["readout"]
