"""OSMFormer: attention over states that are elements of a matrix group.

"Subgroups of U(d) Induce Natural RNN and Transformer Architectures", arXiv 2602.18417: similarity
Re tr(H_i* H_j), and two tangent phases a layer, attention and grounding. Where the paper leaves a
choice open: every phase of every layer has its own Γ, tokens are ambient matrices that all layers
share, and attention looks back over a window, so that a stream's state is of constant size.

**Positions.** Attention over a plain prefix is a function of a set and doesn't learn order: it ends
near bigrams. Learned absolute positions were as bad, as they break the symmetry.
What works is native to the group: R_p, a rotation by p·ω of the maximal torus, acts on keys from
the left, and each head h looks for a lag by a torus element K_h of its own. Only R_i* R_j = R_(j-i)
ever matters, and states leave a layer un-rotated, so the model is relative throughout. A key keeps
its rotation in the mean: the lag that it came from leaves a signature.

Letters: B batch, T time, V input size, Y output size, W context, d size of the group, n of its real
matrices, m planes of its torus, D = dim g.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from train.groups.by_name import group_names, make_group
from train.groups.torus import Torus
from train.layers.group_attention import (
    Heads,
    Turn,
    attend,
    attend_in_block,
    attention_targets,
    turned,
    turns_at,
)
from train.layers.group_readout import PROTOTYPES, VISIBLE, Prototypes, read
from train.layers.mixing import MATRICES, MIXINGS, Mixing, mixing_subspaces, mixing_targets, step
from train.layers.sliding_window import BLOCK, SEEN, UNSEEN, Block, Update, Windowed
from train.layers.torus_positions import num_planes
from train.model import Action, State, Symmetry, Target, Weights, drive, on_axis
from train.settings import check_choices, check_range

TOKEN_STD = 0.1
PROTOTYPE_STD = 0.3
SHARPNESS = 4.0  # of attention at the start: the score of a state with itself
LONGEST_WAVE = 100.0  # ω_k = 100^(-k/m)
PHASES = ("attention", "grounding")
MAX_D, MAX_LAYERS, MAX_CONTEXT = 512, 64, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class OsmFormerConfig:
    """Sizes of an OSMFormer over a group."""

    input_size: int
    output_size: int
    group: str = field(
        default="so", metadata={"help": "group that the states are in", "choices": group_names()}
    )
    d: int = field(default=15, metadata={"help": "size of the group, as in SO(d)"})
    layers: int = field(default=3, metadata={"help": "each an attention and a grounding phase"})
    heads: int = field(default=2, metadata={"help": "attention heads, one lag each at the start"})
    context: int = field(default=32, metadata={"help": "states that attention sees, its own too"})
    mixing: str = field(
        default="linear", metadata={"help": "map of the tangents before exp", "choices": MIXINGS}
    )
    rank: int = field(
        default=32, metadata={"help": "of the low-rank mixing", "only": ("mixing", "low-rank")}
    )

    def __post_init__(self) -> None:
        check_range("d", self.d, 1, MAX_D)
        check_choices(self)
        make_group(self.group, self.d)
        check_range("layers", self.layers, 1, MAX_LAYERS)
        check_range("heads", self.heads, 1, 64)
        check_range("context", self.context, 2, MAX_CONTEXT)
        check_range("rank", self.rank, 1, MAX_D**2)


class OsmFormer(Windowed):
    """H_i = exp(proj M_x) in layer 0, then in every layer

        s_ij = β_h Re tr((R_i K_h H_i)* R_j H_j) / d,   j in i - W + 1 ... i,   α = softmax_j s
        H_i <- H_i exp(Γ_a proj(H_i* Σ_hj α_hij R_i* R_j H_j))     attention
        H_i <- H_i exp(Γ_g proj(H_i* M_x))                         grounding

    and y_v = τ Re tr(H_i* P_v) + b_v after the last. The logits don't see X -> R X R* of tokens,
    prototypes and C (Γ -> Ad Γ Ad*) for R in the maximal torus, or for any R in G if ω and the
    phases are 0; left multiplication alone they do see, as layer 0 is exp(proj M).

    | weight                         | shape     |                                          |
    |--------------------------------|-----------|------------------------------------------|
    | `input`                        | (V, n, n) | M, free matrices                         |
    | `layers.L.attention.sharpness` | (heads)   | β                                        |
    | `layers.L.attention.frequency` | (m)       | ω, radians a position                    |
    | `layers.L.attention.phase`     | (heads,m) | angles of K_h                            |
    | `layers.L.PHASE.mixing`        | (D, D)    | Γ; see `train.layers.mixing`             |
    | `layers.L.PHASE.gain`          | ()        | factor of the tangent taken; 0: no phase |
    | `readout...`                   |           | P, τ, b; `train.layers.group_readout`    |
    """

    family = "osm-former"
    Config = OsmFormerConfig
    learning_rate = 0.015
    long_learning_rate = 0.003
    correct_every = 0  # every state is made anew from its character: nothing drifts
    grows = "d"

    def __init__(self, config: OsmFormerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config, self.group = config, make_group(config.group, config.d)
        V, Y, m = config.input_size, config.output_size, num_planes(self.group)

        def normal(std: float, *shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator) * std

        self.tokens = nn.Parameter(normal(TOKEN_STD, V, self.group.ambient_dim))
        self.prototypes = Prototypes(self.group, Y, PROTOTYPE_STD, generator)
        L, heads = config.layers, config.heads
        frequency = LONGEST_WAVE ** (-torch.arange(m) / max(m, 1))  # (m)
        lags = torch.arange(1.0, heads + 1).unsqueeze(-1)  # head h looks h + 1 back
        self.log_sharpness = nn.Parameter(torch.full((L, heads), SHARPNESS).log())
        self.frequency = nn.Parameter(frequency.repeat(L, 1))
        self.phase = nn.Parameter((-lags * frequency).repeat(L, 1, 1))
        self.gain = nn.Parameter(torch.ones(L, len(PHASES)))
        self.mixings = nn.ModuleList(
            Mixing(config.mixing, self.group, config.rank, generator) for _ in range(L * 2)
        )

    def weights(self) -> Weights:
        """Free matrices for tokens, prototypes in the group, sharpness exp(·)."""
        weights = {"input": self.group.ambient(self.tokens)}
        for layer in self._ks():
            name = f"layers.{layer}.attention"
            weights[f"{name}.sharpness"] = self.log_sharpness[layer].exp()
            weights[f"{name}.frequency"] = self.frequency[layer]
            weights[f"{name}.phase"] = self.phase[layer]
            for i, phase in enumerate(PHASES):
                mixing = self.mixings[2 * layer + i]
                assert isinstance(mixing, Mixing)
                weights[f"layers.{layer}.{phase}.gain"] = self.gain[layer, i]
                weights |= mixing.weights(f"layers.{layer}.{phase}.mixing")
        return weights | self.prototypes.weights()

    def init_state(self, batch: int) -> State:
        """An empty window a layer, and H = I: (B, n, n) to read out."""
        n, W = self.group.size, self.config.context
        H = self.group.identity().to(self.tokens).expand(batch, -1, -1).contiguous()
        seen = {SEEN: torch.zeros(batch, W - 1).to(self.tokens)}
        window = torch.zeros(batch, W - 1, n, n).to(self.tokens)
        windows = {f"layers.{layer}": window.clone() for layer in self._ks()}
        return {"H": H, **seen, **windows}

    def update(self, weights: Weights, state: State, x: Tensor) -> State:
        """All layers at one position; every window drops its oldest state."""
        return self._advance(weights, state, x.unsqueeze(1))[0]

    def readout(self, weights: Weights, state: State) -> Tensor:
        """y_v = τ Re tr(H* P_v) + b_v: (..., Y)."""
        return read(self.group, weights, state["H"])

    def scan(self, weights: Weights, state: State, xs: Tensor) -> tuple[State, Tensor]:
        """All positions at once, each layer after the other."""
        fresh = not state[SEEN].any()  # then there is nothing to look back at
        state, Hs = self._advance(weights, state, xs.transpose(0, 1), fresh)
        return state, self.readout(weights, {"H": Hs.transpose(0, 1)})

    def windows(self) -> tuple[str, ...]:
        """The states that every layer takes in."""
        return (*(f"layers.{layer}" for layer in self._ks()), SEEN)

    def placed(self, weights: Weights, entries: State, places: Tensor) -> State:
        """R_j H_j: keys and values at once."""
        placed = State()
        for name, H in entries.items():
            cos, sin = self._turns(weights, name, places)
            placed[name] = turned(self.group, H, (cos[:, 0], sin[:, 0]))
        return placed

    def update_in_block(self, weights: Weights, state: State, block: Block, x: Tensor) -> Update:
        """All layers at one position."""
        del state
        M, H = drive(weights["input"], x), self._start(weights, x)  # (B, n, n)
        own, entries, places = State(), State(), block.places()
        for layer in self._ks():
            name = f"layers.{layer}"
            entries[name], (cos, sin) = H, self._turns(weights, name, places)
            turns = turned(self.group, H.unsqueeze(1), (cos, sin))  # (B, 1 + h, nn)
            own[name] = block.enter(name, turns[:, 0])
            A = attend_in_block(
                self.group,
                turns[:, 1:],
                (cos[:, 0], sin[:, 0]),
                block.past[name],
                own[name],
                block.hidden,
            )
            H = self._move(weights, f"{name}.attention", H, A)
            H = self._move(weights, f"{name}.grounding", H, M)
        return Update({"H": H}, own, entries)

    def elements(self, state: State) -> Tensor:
        """The state that is read out."""
        return state["H"]

    def targets(self) -> list[Target]:
        """Every phase's Γ or C and gain, positions, heads; the prototypes and the tokens."""
        c, found = self.config, list[Target]()
        for layer in self._ks():
            for phase in PHASES:
                name, told = f"layers.{layer}.{phase}", f"{phase} of layer {layer}"
                taken = f"the tangent that {told} takes"
                found += mixing_targets(c.mixing, self.group, f"{name}.mixing", taken)
                found.append(Target(name, f"{name}.gain", ("zero",), f"{told}, on or off"))
            found += attention_targets(f"layers.{layer}.attention", f"layer {layer}", c.heads)
        tokens = Target("input", "input", ("zero",), "matrices of the tokens: 0 moves nothing")
        return [*found, PROTOTYPES, tokens]

    def symmetries(self) -> list[Symmetry]:
        """X -> R X R* for R in the torus that commutes with positions, or another order of planes.

        The torus of a group that commutes changes nothing, but all of its planes are alike.
        """
        group, layers = self.group, [f"layers.{i}.attention" for i in self._ks()]
        if group.algebra is not None:
            told = "everything conjugated by a rotation that commutes with those of positions"
            return [Symmetry("conjugation", "halves", group.size, told, self._conjugated(1))]
        actions = self._conjugated(2 if isinstance(group, Torus) else 1)
        actions += on_axis(0, *(f"{name}.frequency" for name in layers))
        actions += on_axis(1, *(f"{name}.phase" for name in layers))
        told = "planes in another order"
        return [Symmetry("planes", "permutation", group.d, told, actions)][: group.d - 1]

    def _conjugated(self, inner: int) -> tuple[Action, ...]:
        mixings = [f"layers.{i}.{phase}.mixing" for i in self._ks() for phase in PHASES]
        kind, algebra = self.config.mixing, self.group.algebra
        ambient = ["input", "readout.prototypes"]
        actions = on_axis(1, *ambient, inner=inner) + on_axis(2, *ambient, inner=inner)
        if kind == "bch":
            constants = [f"{name}.constant" for name in mixings]
            actions += on_axis(0, *constants, inner=inner) + on_axis(1, *constants, inner=inner)
        if kind in MATRICES:
            actions += on_axis(0, *mixings, algebra=algebra)
            actions += on_axis(1, *mixings, VISIBLE, algebra=algebra)
        return actions

    def subspaces(self, weights: Weights, logits: bool) -> Weights:
        """What the readout sees at I."""
        return mixing_subspaces(self.config.mixing, self.group, weights, logits)

    def _ks(self) -> range:
        return range(self.config.layers)

    def _advance(
        self, weights: Weights, state: State, xs: Tensor, fresh: bool = False
    ) -> tuple[State, Tensor]:
        """T positions (B, T) through all layers: the state, and the elements (B, T, n, n)."""
        Ms, H = drive(weights["input"], xs), self._start(weights, xs)  # (B, T, n, n)
        T, past = H.shape[1], self.config.context - 1
        seen = torch.cat([state[SEEN], torch.ones_like(Ms[:, :, 0, 0])], dim=1)  # (B, past + T)
        after = {SEEN: seen[:, -past:]}
        skipped = past if fresh else 0
        hidden = self._hidden(seen[:, skipped:], T)
        for layer in self._ks():
            window = state[f"layers.{layer}"]
            after[f"layers.{layer}"] = torch.cat([window[:, T:], H[:, -past:]], dim=1)
            keys = H if fresh else torch.cat([window, H], dim=1)  # (B, past + T, n, n)
            name = f"layers.{layer}"
            A = attend(self.group, self._heads(weights, name), H, keys, hidden)
            H = self._move(weights, f"{name}.attention", H, A)
            H = self._move(weights, f"{name}.grounding", H, Ms)
        return {"H": H[:, -1], **after}, H

    def _heads(self, weights: Weights, layer: str) -> Heads:
        return Heads(*(weights[f"{layer}.attention.{field}"] for field in Heads._fields))

    def _turns(self, weights: Weights, layer: str, places: Tensor) -> Turn:
        num_places = self.config.context - 1 + BLOCK
        return turns_at(self.group, self._heads(weights, layer), places, num_places)

    def _start(self, weights: Weights, xs: Tensor) -> Tensor:
        """exp(proj M_x); of characters once a character, of vectors once a position."""
        table = weights["input"]
        if xs.is_floating_point():
            return self.group.exp(self.group.project(drive(table, xs)))
        return drive(self.group.exp(self.group.project(table)), xs)

    def _hidden(self, seen: Tensor, T: int) -> Tensor:
        """0 where a position may look, `UNSEEN` where not: (B, 1, T, S)."""
        S, W = seen.shape[1], self.config.context
        places = torch.arange(S, device=seen.device)
        lag = places[S - T :].unsqueeze(-1) - places  # (T, S)
        near = ((lag >= 0) & (lag < W)).to(seen)
        hidden: Tensor = (near * seen.unsqueeze(1) < 0.5).to(seen).unsqueeze(1) * UNSEEN
        return hidden

    def _move(self, weights: Weights, phase: str, H: Tensor, A: Tensor) -> Tensor:
        gain = weights[f"{phase}.gain"]
        return step(self.group, weights, f"{phase}.mixing", H, A, gain)
