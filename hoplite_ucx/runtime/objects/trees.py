"""Trees in words, as their layouts describe them: where a leaf is, and why objects cannot be reduced together.

This builds no values from a layout and looks up no class of the user: agents and the directory use it.
"""

from collections.abc import Iterable, Iterator, Sequence
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
    """The way to a leaf; to the first of its places, if it has several."""
    places = _numbers(layout.structure) if isinstance(layout, TreeLayout) else iter(())
    return path_at(layout, next((place for place, each in enumerate(places) if each == number), 0))


def path_at(layout: Layout, place: int) -> list[Step]:
    """The way to a leaf, counted in the order of the tree."""
    path: list[Step] = []
    if isinstance(layout, TreeLayout):
        _find_place(layout.structure, place, path)
    return path[::-1]


def _find_place(node: Node, place: int, path: list[Step]) -> int:
    """Leaves the way in `path`, its end first, and returns -1; or how many leaves more are to be passed."""
    if isinstance(node, int):
        return place - 1
    for index, child in enumerate(node.children):
        place = _find_place(child, place, path)
        if place < 0:
            path.append(_step(node, index))
            break
    return place


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
    found = _between(_top(first), _top(second), leaves_of(first), leaves_of(second))
    return found or _between_ties(first, second) or _between_places(first, second)


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
    same = (one.dtype, one.shape, one.fortran) == (other.dtype, other.shape, other.fortran)
    return None if same else f"{one} and {other}"


def _between_ties(first: Layout, second: Layout) -> str | None:
    """Of trees that are the same otherwise: a tensor that stands in two places is stored once."""
    numbers = list(_numbers(_top(first))), list(_numbers(_top(second)))
    for tied, separate, which in ((*numbers, "first"), (*numbers[::-1], "second")):
        places: dict[int, int] = {}
        for place, number in enumerate(tied):
            before = places.setdefault(number, place)
            if separate[before] != separate[place]:
                names = " and ".join("".join(path_at(first, each)) for each in (before, place))
                return shortened(f"{names} are one tensor in the {which} only (put a clone() of one of them)")
    return None


def _between_places(first: Layout, second: Layout) -> str | None:
    mine, yours = leaves_of(first), leaves_of(second)
    for number, other in zip(_numbers(_top(first)), _numbers(_top(second)), strict=True):
        if mine[number].offset != yours[other].offset:
            where = at(path_of(first, number))
            return f"two of {mine[number]} whose bytes lie in different places{where}"
    return None


def _numbers(node: Node) -> Iterator[int]:
    """Of the leaves, in their order in the tree."""
    if isinstance(node, int):
        yield node
    else:
        for child in node.children:
            yield from _numbers(child)


def _between_keys(one: Sequence[str | int], other: Sequence[str | int]) -> str:
    mine, yours = some_keys(one, other), some_keys(other, one)
    if mine and yours:
        return shortened(f"only the first has {mine}, only the second {yours}")
    return shortened(f"only the first has {mine}" if mine else f"only the second has {yours}")


def some_keys(of: Iterable[object], without: Iterable[object]) -> str:
    """Those of the first that the second has not, or some of them; nothing if there are none."""
    found = set(without)
    keys = [repr(key) for key in islice((key for key in of if key not in found), _MAX_KEYS + 1)]
    return ", ".join(keys[:_MAX_KEYS] + ["…"] * (len(keys) > _MAX_KEYS))


def _shown(node: Node, leaves: Sequence[Leaf]) -> str:
    return str(leaves[node]) if isinstance(node, int) else _KINDS[type(node)]
