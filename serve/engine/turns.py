"""Whose turn it is: which groups of streams one tick advances. A group costs a run.

| groups                      | in a tick                                                          |
|-----------------------------|--------------------------------------------------------------------|
| live, of plain weights      | all                                                                |
| live, of ablated weights    | `ABLATED_A_TICK`, in turn                                          |
| of background streams       | as many, in turn, where no live group runs; beside live ones a     |
|                             | single one, every `BACKGROUND_EVERY` ticks                         |

So a hundred ablations slow a plain stream by a constant, and a sweep slows nobody by much. Groups
that have waited stand in a line, and who was advanced goes to its end: nobody is passed for ever.
"""

from collections.abc import Sequence

from serve.engine.stream import Stream

ABLATED_A_TICK = 4
BACKGROUND_EVERY = 16  # ticks


class Turns:
    """Remembers who was advanced last; the engine's thread alone uses it."""

    def __init__(self) -> None:
        self._ablated, self._background = Line(), Line()
        self._since = 0  # ticks since a background group ran, while one wants to

    def pick(self, groups: Sequence[list[Stream]]) -> list[list[Stream]]:
        """Those that advance now, of groups that share weights and are live or background."""
        plain = [g for g in groups if not g[0].background and is_plain(g[0])]
        ablated = [g for g in groups if not g[0].background and not is_plain(g[0])]
        picked = plain + self._ablated.next(ablated, ABLATED_A_TICK)
        waiting = [g for g in groups if g[0].background]
        self._since = self._since + 1 if waiting else 0
        num_background = ABLATED_A_TICK
        if picked:
            num_background = int(self._since >= BACKGROUND_EVERY)
        background = self._background.next(waiting, num_background)
        if background:
            self._since = 0
        return picked + background


class Line:
    """Groups in the order of their turns."""

    def __init__(self) -> None:
        self._order: list[int] = []  # by the session's id, which lives as long as its streams

    def next(self, groups: Sequence[list[Stream]], count: int) -> list[list[Stream]]:
        """The first `count` of these; they go to the end, and so does who has just come."""
        here = {id(group[0].session): group for group in groups}
        known = [key for key in self._order if key in here]
        order = list(dict.fromkeys([*known, *here]))
        self._order = order[count:] + order[:count]
        return [here[key] for key in order[:count]]


def is_plain(stream: Stream) -> bool:
    """Whether a stream runs on its bundle's own weights."""
    return stream.session is stream.bundle.plain.session
