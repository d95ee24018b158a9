"""Trees in words, as their layouts describe them: where a leaf is, and why objects cannot be reduced together.

This builds no values from a layout and looks up no class of the user: agents and the directory use it.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import TypeAlias

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.runtime.objects.layouts import (
    ArrayLayout,
    BundleLayout,
    DictNode,
    Inner,
    Kind,
    Layout,
    Leaf,
    ListNode,
    NamedTupleNode,
    Node,
    TreeLayout,
    TupleNode,
    leaves_of,
    read_layout,
)

ONLY_THESE = "only arrays, numbers, and dicts, lists and tuples of them can"
"""Be reduced, says an error text about everything else."""

_RAW = (Kind.BYTES, Kind.BYTEARRAY)
_MAX_TEXT = 200
_MAX_KEYS = 3
_KINDS: dict[type[Inner], str] = {
    DictNode: "a dict",
    ListNode: "a list",
    TupleNode: "a tuple",
    NamedTupleNode: "a named tuple",
}

Step: TypeAlias = str
"""From a node to one of its children, as a user would write it: ['key'], [0] or .name."""


def at(path: Sequence[Step]) -> str:
    """Where in a tree; nothing for the whole of it."""
    return shortened(f" at {''.join(path)}") if path else ""


def shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def irreducible(layout: Layout) -> str | None:
    """What in an object of this layout cannot be reduced, and where; None if all of it can."""
    if isinstance(layout, BundleLayout):
        return layout.because or "a pickled object"
    for number, leaf in enumerate(leaves_of(layout)):
        if leaf.kind in _RAW:
            return f"{leaf.kind.value}{at(path_of(layout, number))}"
    return None


def path_of(layout: Layout, number: int) -> list[Step]:
    """The way to a leaf."""
    return (_path_below(layout.structure, number) or []) if isinstance(layout, TreeLayout) else []


def _path_below(node: Node, number: int) -> list[Step] | None:
    if isinstance(node, int):
        return [] if node == number else None
    for index, child in enumerate(node.children):
        below = _path_below(child, number)
        if below is not None:
            return [_step(node, index), *below]
    return None


def _step(node: Inner, index: int) -> Step:
    match node:
        case DictNode(keys):
            return f"[{keys[index]!r}]"
        case NamedTupleNode(fields):
            return f".{fields[index]}"
        case _:
            return f"[{index}]"


@lru_cache(16)
def difference(one: bytes, other: bytes) -> str | None:
    """Why objects of these two layouts cannot be reduced together; None if their forms are the same."""
    try:
        first, second = read_layout(one), read_layout(other)
    except HopliteError as error:
        return error.failure.detail
    for layout in (first, second):
        what = irreducible(layout)
        if what is not None:
            return f"{what} cannot be reduced ({ONLY_THESE})"
    return _between(_top(first), _top(second), leaves_of(first), leaves_of(second))


def _top(layout: Layout) -> Node:
    assert isinstance(layout, ArrayLayout | TreeLayout)
    return layout.structure if isinstance(layout, TreeLayout) else 0


def _between(one: Node, other: Node, first: Sequence[Leaf], second: Sequence[Leaf]) -> str | None:
    path: list[Step] = []
    found = _first_between(one, other, first, second, path)
    return None if found is None else f"{found}{at(path[::-1])}"


def _first_between(
    one: Node, other: Node, first: Sequence[Leaf], second: Sequence[Leaf], path: list[Step]
) -> str | None:
    """The first difference in the tree; the path to it is left in `path`, the end first."""
    if isinstance(one, int) or isinstance(other, int):
        if isinstance(one, int) and isinstance(other, int):
            return _between_leaves(first[one], second[other])
        return f"{_shown(one, first)} and {_shown(other, second)}"
    if type(one) is not type(other):
        return f"{_KINDS[type(one)]} and {_KINDS[type(other)]}"
    if isinstance(one, DictNode) and isinstance(other, DictNode) and one.keys != other.keys:
        return _between_keys(one.keys, other.keys)
    if isinstance(one, NamedTupleNode) and isinstance(other, NamedTupleNode) and one.fields != other.fields:
        return shortened(f"named tuples of ({', '.join(one.fields)}) and of ({', '.join(other.fields)})")
    if len(one.children) != len(other.children):
        return f"{_KINDS[type(one)]} of {len(one.children)} and one of {len(other.children)}"
    for index, (mine, yours) in enumerate(zip(one.children, other.children, strict=True)):
        found = _first_between(mine, yours, first, second, path)
        if found is not None:
            path.append(_step(one, index))
            return found
    return None


def _between_leaves(one: Leaf, other: Leaf) -> str | None:
    if one.form() == other.form():
        return None
    shown, also = str(one), str(other)
    return f"{shown} and {also}" if shown != also else f"two of {shown} whose bytes lie in different places"


def _between_keys(one: Sequence[str | int], other: Sequence[str | int]) -> str:
    mine, yours = _some_keys(one, other), _some_keys(other, one)
    if mine and yours:
        return shortened(f"only the first has {mine}, only the second {yours}")
    return shortened(f"only the first has {mine}" if mine else f"only the second has {yours}")


def _some_keys(of: Sequence[str | int], without: Sequence[str | int]) -> str:
    found = set(without)
    keys = [repr(key) for key in islice((key for key in of if key not in found), _MAX_KEYS + 1)]
    return ", ".join(keys[:_MAX_KEYS] + ["…"] * (len(keys) > _MAX_KEYS))


def _shown(node: Node, leaves: Sequence[Leaf]) -> str:
    return str(leaves[node]) if isinstance(node, int) else _KINDS[type(node)]
