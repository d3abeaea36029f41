"""The groups by name."""

from collections.abc import Callable

from train.groups.group import Group
from train.groups.orthogonal import SO, O
from train.groups.torus import DiagonalTorus, Torus
from train.groups.unitary import SU, U

_GROUPS: dict[str, Callable[[int], Group]] = {
    "so": SO,
    "o": O,
    "u": U,
    "su": SU,
    "torus": Torus,
    "diagonal": DiagonalTorus,
}


def group_names() -> tuple[str, ...]:
    """The names that `make_group` knows."""
    return tuple(_GROUPS)


def make_group(name: str, d: int) -> Group:
    """The group of that name and size."""
    if name not in _GROUPS:
        raise ValueError(f"group: found {name!r}, expected one of {', '.join(_GROUPS)}")
    return _GROUPS[name](d)
