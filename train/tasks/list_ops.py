"""ListOps: work out a nested list of MIN, MAX, MED and SM over digits.

The rules of Long Range Arena (LRA), after Nangia and Bowman: at depth d, from 1, a node is an
operation with probability 1/4 if d < max_depth, else a digit; an operation has 2 to `max_args`
arguments. A list's length counts its digits, openers and closers. Lists are distinct, and their
lengths lie strictly between `min_length` and `max_length`. LRA's sizes are lengths 500 to 2,000 and
96,000 lists to train on; the defaults are a budget for CPUs. In characters, without parentheses as
LRA's readers have them, `[MAX 2 [SM 7 8 ] ]` is

    10-13: [MIN [MAX [MED [SM    0-9: the digits    14: ]    15: padding after the end

Labels lean to 0 and 9, so beside the accuracy stands `majority`: what always naming the most common
label gives.
"""

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from train.settings import Settings, check_range
from train.tasks.task import Part, Scores, Trials
from train.tasks.trial_task import HELD_OUT_TRIALS, TrialTask

Tree = int | tuple[str, tuple["Tree", ...]]  # a digit, or an operation and its arguments

OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
CLOSER = "]"
TOKENS = (*"0123456789", *OPERATIONS, CLOSER)
PADDING = len(TOKENS)
OPERATION_SHARE = 0.25
TREES_AT_ONCE = 2048
MOST_TRIES = 1000  # trees drawn for one that is kept, before giving up


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOpsConfig:
    """Sizes of ListOps."""

    min_length: int = field(default=20, metadata={"help": "lists are longer than this"})
    max_length: int = field(default=200, metadata={"help": "lists are shorter than this"})
    max_depth: int = field(default=10, metadata={"help": "most levels of nesting"})
    max_args: int = field(default=10, metadata={"help": "most arguments of an operation"})
    num_train: int = field(default=10_000, metadata={"help": "lists to train on"})
    pool_seed: int = field(default=0, metadata={"help": "decides which lists"})

    def __post_init__(self) -> None:
        check_range("min_length", self.min_length, 0, 65_534)
        check_range("max_length", self.max_length, self.min_length + 2, 65_536)
        check_range("max_depth", self.max_depth, 2, 10)
        check_range("max_args", self.max_args, 2, 10)
        check_range("num_train", self.num_train, 1, 10**6)
        check_range("pool_seed", self.pool_seed, 0, 2**63 - 1)


class ListOps(TrialTask):
    """Accuracy of the list's value, named after its last token; about 0.17 is the majority's."""

    name = "list-ops"
    Config = ListOpsConfig
    takes = "characters"
    targets, pooled = "classes", True
    long = True
    headline = "accuracy"
    better = "higher"

    def __init__(self, config: ListOpsConfig, settings: Settings) -> None:
        super().__init__(config, settings)
        self.input_size, self.output_size = len(TOKENS) + 1, 10

    @functools.cached_property
    def pool(self) -> list[tuple[bytes, int]]:
        """Distinct lists and their values: the validation part, the test part, then training's."""
        return draw_pool(self.config, self.config.num_train + 2 * HELD_OUT_TRIALS)

    def sample(self, num_trials: int, generator: torch.Generator) -> Trials:
        """Lists of the training part, padded to the longest of them."""
        chosen = torch.randint(self.config.num_train, (num_trials,), generator=generator)
        return make_trials([self.pool[2 * HELD_OUT_TRIALS + i] for i in chosen.tolist()])

    def draw_held_out(self, part: Part, generator: torch.Generator) -> Trials:
        """All lists of a part."""
        del generator
        first = {"valid": 0, "test": HELD_OUT_TRIALS}[part]
        return make_trials(self.pool[first : first + HELD_OUT_TRIALS])

    def score(self, outputs: Tensor, trials: Trials) -> Scores:
        """Loss, accuracy, and the accuracy of the most common label."""
        share = trials.targets.flatten().bincount().max() / trials.targets.numel()
        return super().score(outputs, trials) | {"majority": float(share)}


def draw_pool(config: ListOpsConfig, size: int) -> list[tuple[bytes, int]]:
    """Distinct lists of the right length, a token a byte, and their values."""
    generator = torch.Generator().manual_seed(config.pool_seed)
    index = {token: i for i, token in enumerate(TOKENS)}
    pool: dict[bytes, int] = {}
    for _ in range(0, MOST_TRIES * size, TREES_AT_ONCE):
        for tree in draw_trees(config, TREES_AT_ONCE, generator):
            pool[bytes(index[token] for token in to_tokens(tree))] = evaluate(tree)
        if len(pool) >= size:
            return list(pool.items())[:size]
    raise ValueError(
        f"num_train: found {len(pool)} distinct lists in {MOST_TRIES * size:,} tries, expected "
        f"{size}; move min_length and max_length apart or ask for fewer"
    )


def draw_trees(config: ListOpsConfig, num_tries: int, generator: torch.Generator) -> list[Tree]:
    """Draw that many trees level by level, all at once; those of the right length."""
    levels, lengths = [], torch.zeros(num_tries, dtype=torch.int64)
    owners = torch.arange(num_tries)  # of every node of a level, its tree
    for depth in range(1, config.max_depth + 1):
        is_operation = torch.rand(owners.shape, generator=generator) < OPERATION_SHARE
        is_operation &= torch.tensor(depth < config.max_depth)
        count = torch.randint(2, config.max_args + 1, owners.shape, generator=generator)
        digit = torch.randint(10, owners.shape, generator=generator)
        operation = torch.randint(len(OPERATIONS), owners.shape, generator=generator)
        nodes = torch.stack([count * is_operation, digit.where(~is_operation, operation)])
        levels.append((owners, nodes))
        lengths.index_add_(0, owners, 1 + is_operation.long())
        grows = (lengths < config.max_length)[owners]  # too long already: leave it
        owners = owners.repeat_interleave(nodes[0] * grows)
    kept = (config.min_length < lengths) & (lengths < config.max_length)
    return build_trees([nodes[:, kept[owners]] for owners, nodes in levels])


def build_trees(levels: list[Tensor]) -> list[Tree]:
    """The trees of levels (2, nodes): how many arguments a node has, and its operation or digit.

    The arguments of a level's nodes, in order, are the nodes of the next level.
    """
    trees: Iterator[Tree] = iter(())
    names = list(OPERATIONS)
    for counts, values in (level.tolist() for level in reversed(levels)):
        below = trees
        trees = iter(
            [
                (names[value], tuple(itertools.islice(below, count))) if count else value
                for count, value in zip(counts, values, strict=True)
            ]
        )
    return list(trees)


def evaluate(tree: Tree) -> int:
    """The value of a tree; the median of an even count is the middle two's mean, cut to whole."""
    if isinstance(tree, int):
        return tree
    return OPERATIONS[tree[0]]([evaluate(argument) for argument in tree[1]])


def to_tokens(tree: Tree) -> list[str]:
    """`[MAX 2 9 ]` as a list of words."""
    if isinstance(tree, int):
        return [str(tree)]
    inside = itertools.chain.from_iterable(map(to_tokens, tree[1]))
    return [tree[0], *inside, CLOSER]


def to_text(tree: Tree) -> str:
    """As LRA's files have it, in pairs nested to the left: `( ( ( [MAX 2 ) 9 ) ] )`."""
    if isinstance(tree, int):
        return str(tree)
    parts = [*map(to_text, tree[1]), CLOSER]
    return "( " * len(parts) + tree[0] + "".join(f" {part} )" for part in parts)


def from_text(text: str) -> Tree:
    """The tree of a text, with or without parentheses; `ValueError` if it isn't one list."""
    open_lists: list[tuple[str, list[Tree]]] = [("", [])]
    for place, word in enumerate(text.split()):
        if word in OPERATIONS:
            open_lists.append((word, []))
        elif word == CLOSER and len(open_lists) > 1 and open_lists[-1][1]:
            operation, arguments = open_lists.pop()
            open_lists[-1][1].append((operation, tuple(arguments)))
        elif word in TOKENS[:10]:
            open_lists[-1][1].append(int(word))
        elif word not in ("(", ")"):
            raise ValueError(f"list: found {word!r} as word {place}, expected {' '.join(TOKENS)}")
    if len(open_lists) != 1 or len(open_lists[0][1]) != 1:
        raise ValueError(f"list: found {text!r}, expected one digit or one closed list")
    return open_lists[0][1][0]


def make_trials(lists: list[tuple[bytes, int]]) -> Trials:
    """Token indices (T, B), values (1, B), and a mask with a 1 at every list's last token."""
    rows = [torch.tensor(list(tokens)) for tokens, _ in lists]
    inputs = pad_sequence(rows, padding_value=PADDING)
    last = torch.tensor([len(row) - 1 for row in rows])
    mask = (torch.arange(len(inputs)).unsqueeze(-1) == last).float()
    return Trials(inputs, torch.tensor([[value for _, value in lists]]), mask)
