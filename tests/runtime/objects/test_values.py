"""Values become objects and come back equal: every kind of array, trees, and whatever pickles."""

import array
import gc
import sys
import tracemalloc
import weakref
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ucx.errors import InvalidRequestError
from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.objects.layouts import (
    EXTENSIONS,
    ArrayLayout,
    BundleLayout,
    DictNode,
    Kind,
    Leaf,
    NamedTupleNode,
    TreeLayout,
    decode_layout,
    encode_layout,
)
from hoplite_ucx.runtime.objects.trees import difference

NUMERIC = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", "G"]


def round_trip(value: object) -> Any:
    """Through memory, as a put and a get do it."""
    encoded = values.encode(value)
    memory = bytearray(encoded.size)
    marks = list(encoded.copy_into(memoryview(memory)))
    assert marks == sorted(marks)
    assert (marks[-1] if marks else 0) == encoded.size
    assert encoded.size == len(encoded.to_bytes())
    return values.decode(memoryview(bytes(memory)), encoded.layout)


def assert_same(left: np.ndarray, right: np.ndarray) -> None:
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("dtype", [*NUMERIC, ">f4", ">i8", "M8[ns]", "m8[s]", "S5", "U3"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4), (2, 0, 3), (2, 3, 4)])
def test_every_dtype_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    assert_same(round_trip(array), array)


@pytest.mark.parametrize("name", EXTENSIONS)
def test_types_of_ml_dtypes(name: str) -> None:
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    array = np.arange(1, 4).astype(dtype)
    assert_same(round_trip(array), array)
    number = dtype(1)
    assert type(round_trip(number)) is dtype
    assert round_trip(number) == number
    fields = np.zeros(3, [("a", dtype)])
    assert round_trip(fields).dtype == fields.dtype, "numpy would describe it as bytes without a meaning"


def test_structured_and_subarray_dtypes() -> None:
    dtype = np.dtype([("a", "<f4"), ("b", [("x", "<i8"), ("y", "S3")]), ("c", "<u2", (2, 3))])
    array = np.zeros(5, dtype)
    array["a"] = range(5)
    array["c"] = 7
    assert_same(round_trip(array), array)


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype([("a", "i1"), ("b", "f8")], align=True),
        np.dtype((np.record, [("a", "i4")])),
        np.dtype("i1", metadata={"enum": {"red": 1}}),
    ],
    ids=["aligned", "record", "metadata"],
)
def test_what_numpy_does_not_compare_comes_back_too(dtype: np.dtype[Any]) -> None:
    plain = round_trip(np.zeros(3, [(name, dtype.fields[name][0]) for name in dtype.names or ()] or dtype.str))
    array = round_trip(np.zeros(3, dtype))
    assert repr(array.dtype) == repr(dtype)
    assert array.dtype.metadata == dtype.metadata
    assert plain.dtype.metadata is None


def test_fortran_order_stays() -> None:
    array = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    result = round_trip(array)
    assert result.flags.f_contiguous
    assert np.array_equal(result, array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(100.0)[::3],
        np.arange(100.0)[::-1],
        np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2),
        np.broadcast_to(np.arange(4.0), (3, 4)),
        np.arange(60.0).reshape(3, 4, 5)[:, ::2, 1:3],
    ],
    ids=["strided", "reversed", "transposed", "broadcast", "sliced"],
)
def test_arrays_that_are_not_contiguous(array: np.ndarray) -> None:
    result = round_trip(array)
    assert result.flags.c_contiguous
    assert np.array_equal(result, array)


def test_a_large_array_is_copied_in_pieces() -> None:
    array = np.arange(3 << 20, dtype=np.float64)
    encoded = values.encode(array)
    memory = bytearray(encoded.size)
    marks = list(encoded.copy_into(memoryview(memory)))
    assert len(marks) >= encoded.size // values.PIECE
    assert bytes(memory) == array.tobytes()


def test_trees_of_arrays() -> None:
    tree = {"w": [np.arange(3), (np.eye(2), np.array(1.5))], "b": {"x": np.zeros((0, 2)), 3: np.arange(5, dtype="f2")}}
    layout = decode_layout(values.encode(tree).layout, values.encode(tree).size)
    assert isinstance(layout, TreeLayout)
    result = round_trip(tree)
    assert set(result) == {"w", "b"}
    assert isinstance(result["w"][1], tuple)
    assert_same(result["w"][1][0], np.eye(2))
    assert_same(result["b"][3], tree["b"][3])  # type: ignore[call-overload,index]


def test_dicts_keep_the_order_of_their_keys() -> None:
    tree = {"z": np.arange(3), "a": {3: np.eye(2), "y": np.arange(2), -1: np.zeros(1), "x": np.ones(1)}, "m": 1.5}
    result = round_trip(tree)
    assert list(result) == ["z", "a", "m"]
    assert list(result["a"]) == [3, "y", -1, "x"]
    assert_same(result["a"][3], np.eye(2))
    assert_same(result["a"][-1], np.zeros(1))


def test_dicts_of_any_order_have_their_bytes_in_the_same_places() -> None:
    one, other = np.arange(3), np.arange(4.0)
    left, right = values.encode({"a": one, "b": other}), values.encode({"b": other, "a": one})
    assert left.to_bytes() == right.to_bytes()
    assert difference(left.layout, right.layout) is None


class Point(NamedTuple):
    x: object
    y: object


class Empty(NamedTuple):
    pass


class Tagged(NamedTuple("Tagged", [("x", object)])):
    """Carries more than its fields."""


LEAVES = [
    True,
    0,
    -(2**63),
    2**63 - 1,
    2.5,
    -0.0,
    float("inf"),
    1 - 2j,
    np.float32(1.5),
    np.uint8(200),
    np.bool_(True),
    np.datetime64("2020-01-01", "ns"),
    np.complex128(1j),
    np.longdouble(3),
    b"",
    b"bytes",
    bytearray(b"bytes"),
    bytearray(),
]


@pytest.mark.parametrize("value", LEAVES, ids=repr)
def test_numbers_and_bytes_come_back_as_what_they_were(value: object) -> None:
    """By themselves, and within trees."""
    for result in (round_trip(value), round_trip({"b": [value], "a": np.arange(3)})["b"][0]):
        assert type(result) is type(value)
        assert repr(result) == repr(value)
    encoded = values.encode([value])
    assert not isinstance(decode_layout(encoded.layout, encoded.size), BundleLayout)


def test_numbers_lie_side_by_side() -> None:
    assert values.encode([1.0] * 16).size == 128
    assert values.encode([*([1.0] * 100), np.zeros(4)]).size == 832 + 32


NUMBERS = st.one_of(st.booleans(), st.integers(), st.floats(), st.complex_numbers())
KEYS = st.one_of(st.integers(), st.text(), st.booleans(), st.none(), st.floats(allow_nan=False))


@given(st.one_of(st.lists(NUMBERS), st.lists(NUMBERS).map(tuple), st.dictionaries(KEYS, NUMBERS)))
def test_flat_trees_of_numbers_come_back_as_they_were(value: Any) -> None:
    result = round_trip(value)
    assert type(result) is type(value)
    assert repr(result) == repr(value)


@given(st.one_of(st.lists(NUMBERS, max_size=16), st.dictionaries(st.text(max_size=3), NUMBERS, max_size=16)))
def test_flat_trees_of_numbers_are_laid_out_like_any_other(value: Any) -> None:
    """They take another way, which remembers layouts."""
    try:
        other = values._encode_tree(value)
    except values._NotATreeError:
        return
    encoded = values.encode(value)
    assert encoded.layout == other.layout
    assert encoded.to_bytes() == other.to_bytes()


def test_names_that_are_equal_but_not_the_same_are_kept_apart() -> None:
    for value in ({1: 2}, {True: 2}, {1.0: 2}, {1: 2}):
        assert repr(round_trip(value)) == repr(value)


@pytest.mark.parametrize("count", [16, 17, 256, 257])
@pytest.mark.parametrize("make", [list, tuple, lambda numbers: dict(enumerate(numbers)), lambda numbers: [[*numbers]]])
def test_numbers_without_an_array_are_a_tree_only_if_they_are_few(count: int, make: Callable[[Any], Any]) -> None:
    numbers = make(range(count))
    for value, most in ((numbers, 16), ({"n": numbers, "w": np.zeros(3)}, 256)):
        encoded = values.encode(value)
        is_tree = isinstance(decode_layout(encoded.layout, encoded.size), TreeLayout)
        assert is_tree == (count <= most)
        assert repr(round_trip(value)) == repr(value)


@pytest.mark.parametrize("value", [Point(np.arange(3), {"b": 1, "a": Point(2.5, ())}), Empty(), [Empty(), 1]], ids=repr)
def test_named_tuples(value: Any) -> None:
    result = round_trip(value)
    assert type(result) is type(value)
    assert repr(result) == repr(value)


def test_an_ordered_dict_that_carries_more_than_its_items_is_pickled() -> None:
    """As the state of a model does."""
    value = OrderedDict(a=np.arange(3), b=1)
    value._metadata = {"version": 2}  # type: ignore[attr-defined]
    assert round_trip(value)._metadata == {"version": 2}


def test_a_view_that_numpy_would_give_back_as_another_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="a memoryview cannot be pickled"):
        values.encode(memoryview(b"abc").cast("c"))
    longs = memoryview(array.array("q", [1, 2]))
    assert round_trip(longs) == longs


def test_what_cannot_be_pickled_is_not_explained_by_what_is_not_a_tree() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be pickled") as failed:
        values.encode({"a": np.zeros(3), "b": lambda: None})
    assert failed.value.__cause__ is not None
    assert failed.value.__cause__.__context__ is None


def test_a_tuple_that_carries_more_than_its_fields_is_pickled() -> None:
    value = Tagged(1.0)
    value.more = 5  # type: ignore[attr-defined]
    assert round_trip(value).more == 5


def test_a_named_tuple_whose_class_nobody_could_find_is_refused() -> None:
    here = namedtuple("here", "x")  # type: ignore[name-match]
    with pytest.raises(InvalidRequestError, match="cannot be pickled"):
        values.encode(here(1.0))


@pytest.mark.parametrize(
    ("module", "name", "fields"),
    [
        ("tests.no_such_module", "Point", ("x", "y")),
        (__name__, "NoSuchClass", ("x", "y")),
        (__name__, "Point", ("y", "x")),
        (__name__, "round_trip", ("x", "y")),
        ("", "Point", ("x", "y")),
    ],
)
def test_a_named_tuple_that_is_another_here_is_refused(module: str, name: str, fields: tuple[str, ...]) -> None:
    node = NamedTupleNode(fields, (0, 0), module, name)
    layout = encode_layout(TreeLayout(node, (Leaf("<f8", (1,)),)))
    with pytest.raises(InvalidRequestError, match="named tuple"):
        values.decode(memoryview(bytes(8)), layout)


def test_ordered_dicts() -> None:
    value = OrderedDict(z=np.arange(2), a=OrderedDict(y=1, b=2))
    result = round_trip(value)
    assert type(result) is type(result["a"]) is OrderedDict
    assert repr(result) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        *(None, "text", 2**63, [], {}, (), {"a": "text", "b": np.arange(3)}, {1.5: np.arange(2)}, {1, 2}, {2**70: 1}),
        *({"\ud800": 1}, [1.0] * 1000, defaultdict(int, a=1), np.array([None]), [[], {}]),
        np.zeros(1, [("a", "f4")])[0],
    ],
    ids=lambda value: repr(value)[:30],
)
def test_everything_else_is_pickled(value: object) -> None:
    encoded = values.encode(value)
    assert isinstance(decode_layout(encoded.layout, encoded.size), BundleLayout)
    result = round_trip(value)
    assert repr(result) == repr(value)


def test_a_tree_that_shares_its_branches_is_not_walked_for_ever() -> None:
    tree: list[object] = []
    for _ in range(60):
        tree = [tree, tree]
    assert values.encode(tree).size < 1000


@pytest.mark.parametrize(
    "view",
    [
        memoryview(b"abc"),
        memoryview(bytearray()),
        memoryview(np.arange(12.0).reshape(3, 4)),
        memoryview(np.arange(12, dtype=">i2").reshape(3, 4))[::2],
        memoryview(np.zeros(3, [("a", "f4"), ("b", "i8")])),
        memoryview(array.array("i", [1, 2, 3])),
    ],
)
def test_memoryviews_come_back_on_the_shared_memory(view: memoryview) -> None:
    encoded = values.encode(view)
    memory = memoryview(encoded.to_bytes())
    result = values.decode(memory, encoded.layout)
    assert isinstance(result, memoryview)
    assert result.readonly
    assert (result.format, result.shape, result.tobytes()) == (view.format, view.shape, view.tobytes())
    if view.nbytes:
        assert np.shares_memory(np.asarray(result), np.frombuffer(memory, np.uint8))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_not_copied_on_the_way_in(kind: Callable[[bytes], Any]) -> None:
    value, memory = kind(bytes(16 << 20)), memoryview(bytearray(16 << 20))
    tracemalloc.start()
    try:
        for _ in values.encode(value).copy_into(memory):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("value", "because"),
    [
        ("text", "a str"),
        ({"optimizer": [1.0, "adam"], "w": np.arange(3)}, "a str at ['optimizer'][1]"),
        ({"a": Point(1.0, {3: None})}, "None at ['a'].y[3]"),
        ([np.array([None])], "an array of dtype object at [0]"),
        ([2**64], "an int of more than 64 bits at [0]"),
        ({"a": {1.5: 1}}, "a dict with a float as a key at ['a']"),
        ([], "an empty list"),
        ({"a": []}, "a dict without an array or a number"),
        ([1, None], "None at [1]"),
        ({"b": 1, "a": "text"}, "a str at ['a']"),
        ([1.0] * 17, "a tree with more than 16 numbers, none of which is in an array,"),
        ([[1.0] * 17], "a tree with more than 16 numbers, none of which is in an array,"),
        ([np.zeros(3)] + [1.0] * 300, "a tree with more than 256 numbers, which are not in arrays,"),
    ],
)
def test_a_pickle_says_why_it_is_one(value: object, because: str) -> None:
    encoded = values.encode(value)
    layout = decode_layout(encoded.layout, encoded.size)
    assert isinstance(layout, BundleLayout)
    assert layout.because == because


def test_why_it_is_one_is_never_long() -> None:
    deep: object = {"x" * 10_000: "text"}
    for _ in range(30):
        deep = {"y" * 50: deep}
    for value in (deep, type("X" * 1000, (), {"__reduce__": lambda _: (str, ())})()):
        encoded = values.encode(value)
        assert decode_layout(encoded.layout, encoded.size)
        assert len(encoded.layout) < 400


def test_buffers_of_a_pickle_are_not_copied() -> None:
    array = np.arange(1 << 17, dtype=np.float64)
    encoded = values.encode({"name": "x", "array": array})
    memory = memoryview(encoded.to_bytes())
    result = values.decode(memory, encoded.layout)
    assert np.array_equal(result["array"], array)
    assert np.shares_memory(result["array"], np.frombuffer(memory, np.uint8))


def test_values_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        round_trip(np.arange(3))[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        round_trip({"x": "y", "a": np.arange(3.0)})["a"][0] = 1


def test_what_cannot_be_pickled_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be pickled"):
        values.encode(sys._getframe())


def test_a_tree_with_too_many_leaves_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="put it in parts"):
        values.encode([np.zeros(1) for _ in range(150_000)])


def _nested(levels: int) -> bytes:
    """Of lists within lists."""
    return b"\x93\xa4tree" + b"\x92\xa4list\x91" * levels + b"\x00" + msgspec.msgpack.encode([["<f8", [1]]])


@pytest.mark.parametrize(
    "layout",
    [
        b"",
        b"garbage",
        encode_layout(ArrayLayout(Leaf("<f8", (100,)))),
        encode_layout(ArrayLayout(Leaf("<f8", (1,), offset=1))),
        encode_layout(ArrayLayout(Leaf("O", (1,)))),
        encode_layout(ArrayLayout(Leaf("|V8", (1 << 61, 1 << 61)))),
        encode_layout(ArrayLayout(Leaf("nonsense", (1,)))),
        encode_layout(TreeLayout(DictNode(("a",), (5,)), (Leaf("<f8", (1,)),))),
        encode_layout(TreeLayout(DictNode(("a",), (0, 0)), (Leaf("<f8", (1,)),))),
        encode_layout(TreeLayout(DictNode(("a", "b"), (0, 0), (0, 0)), (Leaf("<f8", (1,)),))),
        encode_layout(TreeLayout(DictNode(("a", "b"), (0, 0), (1, 2)), (Leaf("<f8", (1,)),))),
        encode_layout(TreeLayout(NamedTupleNode(("x",), (0, 0), __name__, "Point"), (Leaf("<f8", (1,)),))),
        encode_layout(ArrayLayout(Leaf("<f8", (1,), kind=Kind.COMPLEX, offset=8))),
        encode_layout(ArrayLayout(Leaf("<i4", (2,), kind=Kind.INT))),
        encode_layout(ArrayLayout(Leaf("<c8", (), kind=Kind.FLOAT))),
        encode_layout(ArrayLayout(Leaf("<M8[s]", (1,), kind=Kind.MEMORYVIEW))),
        msgspec.msgpack.encode(["array", ["<f8", [1], False, 0, "something"]]),
        msgspec.msgpack.encode(["tree", ["what"], [["<f8", [1]]]]),
        msgspec.msgpack.encode(["tree", ["dict", [None], [0]], [["<f8", [1]]]]),
        _nested(70),
        _nested(100_000),
        msgspec.msgpack.encode(["array", [[1, 2, 3], [1]]]),
    ],
)
def test_layouts_that_make_no_sense_are_refused(layout: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        values.decode(memoryview(bytes(8)), layout)


@given(st.binary(max_size=200), st.binary(max_size=64))
def test_no_layout_from_the_network_does_more_than_fail(layout: bytes, data: bytes) -> None:
    try:
        decoded = decode_layout(layout, len(data))
    except InvalidRequestError:
        return
    assert str(decoded)


@given(st.binary(max_size=200))
def test_any_two_layouts_can_be_compared(layout: bytes) -> None:
    assert difference(layout, values.encode(np.arange(3)).layout)


def test_values_that_are_pickled_keep_nothing_of_their_putter() -> None:
    """An error that is caught on the way must not be a part of a cycle: it would hold the frames of all callers."""

    def put() -> weakref.ref[Kept]:
        kept = Kept()
        values.encode(["text", 1])
        values.encode({"a": [1, "text"]})
        return weakref.ref(kept)

    gc.collect()
    gc.disable()
    try:
        assert put()() is None
    finally:
        gc.enable()


class Kept:
    pass


def test_copies_can_be_written_to() -> None:
    value = {"f": np.asfortranarray(np.eye(3)), "m": memoryview(b"abc"), "n": 3, "b": b"bytes"}
    encoded = values.encode(value)
    memory = memoryview(encoded.to_bytes())
    result = values.decode_copy(memory, encoded.layout)
    assert result["f"].flags.f_contiguous
    result["f"][0] = 5
    result["m"][0] = 5
    assert (result["n"], result["b"], bytes(result["m"])) == (3, b"bytes", b"\x05bc")
    assert bytes(values.decode(memory, encoded.layout)["m"]) == b"abc"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.zeros((3, 4), "f4"), "array float32[3, 4]"),
        (3, "int"),
        (np.float32(1), "float32"),
        (b"bytes", "bytes of length 5"),
        (memoryview(b"bytes"), "memoryview of uint8[5]"),
        ([np.zeros(3)], "tree of 1 arrays (float64[3])"),
        ({"a": 1.5, "b": [np.zeros(3)] * 4}, "tree of 5 leaves (float, float64[3], float64[3], float64[3], …)"),
        ({"a": "text"}, "a pickled object (a str at ['a'])"),
    ],
)
def test_layouts_in_words(value: object, shown: str) -> None:
    encoded = values.encode(value)
    assert str(decode_layout(encoded.layout, encoded.size)) == shown
