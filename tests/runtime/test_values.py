"""Values become objects and come back equal: every kind of array, trees, and whatever pickles."""

import sys
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ucx.errors import InvalidRequestError
from hoplite_ucx.runtime import values
from hoplite_ucx.runtime.layout import ArrayLayout, Leaf, TreeLayout, decode_layout, encode_layout

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


def test_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(100).astype(ml_dtypes.bfloat16)
    assert_same(round_trip(array), array)


def test_structured_and_subarray_dtypes() -> None:
    dtype = np.dtype([("a", "<f4"), ("b", [("x", "<i8"), ("y", "S3")]), ("c", "<u2", (2, 3))])
    array = np.zeros(5, dtype)
    array["a"] = range(5)
    array["c"] = 7
    assert_same(round_trip(array), array)


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


def test_equal_dicts_have_equal_layouts() -> None:
    one, other = np.arange(3), np.arange(4.0)
    assert values.encode({"a": one, "b": other}).layout == values.encode({"b": other, "a": one}).layout


@pytest.mark.parametrize(
    "value",
    [None, 3, 2.5, "text", b"bytes", [1, 2], [], {}, (), {"a": 1, "b": np.arange(3)}, {1.5: np.arange(2)}, {1, 2}],
    ids=repr,
)
def test_everything_else_is_pickled(value: object) -> None:
    result = round_trip(value)
    assert repr(result) == repr(value)


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
        encode_layout(TreeLayout(["dict", ["a"], [5]], (Leaf("<f8", (1,)),))),
        encode_layout(TreeLayout(["what"], (Leaf("<f8", (1,)),))),
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


def test_copying_out() -> None:
    encoded = values.encode(np.arange(6.0).reshape(2, 3))
    memory = memoryview(encoded.to_bytes())
    out = np.empty((2, 3))
    values.copy_out(memory, encoded.layout, out)
    assert np.array_equal(out, np.arange(6.0).reshape(2, 3))
    for wrong in (np.empty(6), np.empty((2, 3), np.float32)):
        with pytest.raises(InvalidRequestError, match="the object is float64"):
            values.copy_out(memory, encoded.layout, wrong)
    bundle = values.encode("text")
    with pytest.raises(InvalidRequestError, match="out= takes one array"):
        values.copy_out(memoryview(bundle.to_bytes()), bundle.layout, out)
