"""Why objects cannot be reduced together, in words: what differs, and where."""

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest

from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.objects.layouts import Leaf, TreeLayout, TupleNode, encode_layout
from hoplite_ucx.runtime.objects.trees import ONLY_THESE, difference, path_of


class Point(NamedTuple):
    x: Any
    y: Any


class Pair(NamedTuple):
    x: Any
    y: Any


class Vector(NamedTuple):
    length: Any
    angle: Any


W = np.zeros((3, 4), np.float32)

DIFFERENT: list[tuple[Any, Any, str]] = [
    (W, W.T.copy(), "float32[3, 4] and float32[4, 3]"),
    ({"w": W}, {"w": W.T.copy()}, "float32[3, 4] and float32[4, 3] at ['w']"),
    ({"w": W}, {"w": np.asfortranarray(W)}, "float32[3, 4] and float32[3, 4] in Fortran order at ['w']"),
    ([W, {3: (W, W)}], [W, {3: (W, np.zeros(2))}], "float32[3, 4] and float64[2] at [1][3][1]"),
    (Point(W, [1.0]), Point(W, [1]), "float and int at .y[0]"),
    (np.zeros(2, [("a", "i4")]), np.zeros(2, [("b", "i4")]), "[('a', '<i4')][2] and [('b', '<i4')][2]"),
    (np.zeros(2, ">f8"), np.zeros(2, "<f8"), ">f8[2] and float64[2]"),
    ([np.float32(1)], [W], "float32 and float32[3, 4] at [0]"),
    (W, [W], "float32[3, 4] and a list"),
    ({"a": [W]}, {"a": (W,)}, "a list and a tuple at ['a']"),
    ([W, W], [W], "a list of 2 and one of 1"),
    ({"a": W, "b": W}, {"a": W}, "only the first has 'b'"),
    ({"a": W}, {1: W, "a": W}, "only the second has 1"),
    ({"a": W, "b": W}, {"a": W, "c": W}, "only the first has 'b', only the second 'c'"),
    ({"x": {}, "w": W}, {"x": dict.fromkeys("abcdef", W), "w": W}, "only the second has 'a', 'b', 'c', … at ['x']"),
    (Point(W, W), Vector(W, W), "named tuples of (x, y) and of (length, angle)"),
    (W, "text", f"a str cannot be reduced ({ONLY_THESE})"),
    ({"w": W, "opt": ["adam"]}, {"w": W}, f"a str at ['opt'][0] cannot be reduced ({ONLY_THESE})"),
    ({"w": W}, {"w": b"bytes"}, f"bytes at ['w'] cannot be reduced ({ONLY_THESE})"),
    (np.zeros(5, np.uint8), b"bytes", f"bytes cannot be reduced ({ONLY_THESE})"),
]


@pytest.mark.parametrize(("one", "other", "text"), DIFFERENT, ids=[text for _, _, text in DIFFERENT])
def test_what_differs_is_named(one: Any, other: Any, text: str) -> None:
    assert difference(values.encode(one).layout, values.encode(other).layout) == text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": W, "b": 1.5}, {"b": 2.5, "a": W}),
        ({"a": W}, OrderedDict(a=W)),
        (2.5, np.float64(3)),
        ([2], [np.array(3)]),
        (Point(W, W), Pair(W, W)),
        (np.zeros(3), memoryview(np.zeros(3))),
    ],
    ids=["order of keys", "OrderedDict", "numbers", "0-d array", "class of a named tuple", "memoryview"],
)
def test_looks_do_not_count(one: Any, other: Any) -> None:
    left, right = values.encode(one), values.encode(other)
    assert left.layout != right.layout
    assert left.size == right.size
    assert difference(left.layout, right.layout) is None


def test_bytes_in_other_places() -> None:
    """No value of ours has such a layout; a hostile one may."""
    first, second = (TreeLayout(TupleNode((0,)), (Leaf("<f8", (1,), offset=offset),)) for offset in (0, 8))
    found = difference(encode_layout(first), encode_layout(second))
    assert found == "two of float64[1] whose bytes lie in different places at [0]"


def test_texts_stay_short() -> None:
    one = {"x" * 10_000: W, "y": [W]}
    other = {"z" * 10_000: W, "y": [W]}
    assert len(difference(values.encode(one).layout, values.encode(other).layout) or "") <= 200
    deep: tuple[Any, Any] = (W, 1)
    for _ in range(50):
        deep = ({"k" * 40: deep[0]}, {"k" * 40: deep[1]})
    assert len(difference(*(values.encode(tree).layout for tree in deep)) or "") <= 300


def test_a_dtype_that_is_not_here_is_still_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory's host may be without ml_dtypes."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    narrow, wide = values.encode(np.zeros(3, ml_dtypes.float8_e4m3fn)).layout, values.encode(np.zeros(3)).layout
    monkeypatch.delattr(ml_dtypes, "float8_e4m3fn")
    assert difference(narrow, wide) == "float8_e4m3fn[3] and float64[3]"


def test_the_way_to_a_leaf() -> None:
    layout = TreeLayout(TupleNode((0, TupleNode((1, 2)))), (Leaf("<f8", (1,)),) * 3)
    assert [path_of(layout, number) for number in range(3)] == [["[0]"], ["[1]", "[0]"], ["[1]", "[1]"]]
