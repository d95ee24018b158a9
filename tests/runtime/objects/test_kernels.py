"""Combining bytes: every operation and dtype against numpy on whole arrays, on any cut into ranges."""

import re
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ucx.protocol.errors import InvalidRequestError
from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.objects.kernels import Kernel, combine_bytes, problem
from hoplite_ucx.runtime.objects.layouts import EXTENSIONS, decode_layout

UFUNCS = {
    Operation.SUM: np.add,
    Operation.PROD: np.multiply,
    Operation.MIN: np.minimum,
    Operation.MAX: np.maximum,
    Operation.AND: np.bitwise_and,
    Operation.OR: np.bitwise_or,
    Operation.XOR: np.bitwise_xor,
}
INTEGERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
INTEGER = " (sum them, or put floating-point numbers)"
FLOATS = ["f2", "f4", "f8", "g", "c8", "c16"]


def sources(dtype: str, count: int = 4, length: int = 50) -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [(generator.random(length) * 10).astype(dtype) for _ in range(count)]


def combine(op: Operation, arrays: list[np.ndarray], divisor: int = 0) -> np.ndarray:
    layout = values.encode(arrays[0]).layout
    data = combine_bytes(layout, op, tuple(array.tobytes() for array in arrays), divisor)
    return np.frombuffer(data, arrays[0].dtype)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize("op", [Operation.SUM, Operation.PROD, Operation.MIN, Operation.MAX])
def test_arithmetic(op: Operation, dtype: str) -> None:
    arrays = sources(dtype)
    with np.errstate(all="ignore"):
        expected = reduce(UFUNCS[op], arrays)
    assert np.array_equal(combine(op, arrays), expected)


@pytest.mark.parametrize("dtype", [*INTEGERS, "?"])
@pytest.mark.parametrize("op", [Operation.AND, Operation.OR, Operation.XOR])
def test_bits(op: Operation, dtype: str) -> None:
    arrays = sources(dtype)
    assert combine(op, arrays).tobytes() == reduce(UFUNCS[op], arrays).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_mean_is_a_sum_that_is_divided_once(dtype: str) -> None:
    arrays = sources(dtype)
    assert np.array_equal(combine(Operation.MEAN, arrays), reduce(np.add, arrays))
    mean = combine(Operation.MEAN, arrays, 4)
    assert np.array_equal(mean, reduce(np.add, arrays) / np.asarray(4, dtype))
    assert np.array_equal(combine(Operation.MEAN, arrays[:1], 2), arrays[0] / np.asarray(2, dtype))
    np.testing.assert_allclose(mean, np.mean(arrays, axis=0), rtol=1e-2)


@pytest.mark.parametrize(
    ("value", "op", "reason"),
    [
        (np.arange(3.0), Operation.AND, "and is not defined for float64"),
        (np.arange(3), Operation.MEAN, "the mean of int64 values is not int64"),
        (np.zeros(3, "m8[s]"), Operation.MEAN, "mean is not defined"),
        (np.zeros(3, bool), Operation.SUM, "use 'or' and 'and'"),
        (np.zeros(3, "U4"), Operation.MAX, "not defined"),
        (np.zeros(3, "M8[s]"), Operation.SUM, "not defined"),
        (np.zeros(3, [("a", "f4")]), Operation.SUM, "not defined"),
        ("a text", Operation.SUM, "a str cannot be reduced"),
        ([np.arange(3.0), np.zeros(2, bool)], Operation.SUM, "use 'or' and 'and'"),
    ],
)
def test_what_has_no_meaning_is_named_and_not_combined(value: object, op: Operation, reason: str) -> None:
    encoded = values.encode(value)
    found = problem(decode_layout(encoded.layout, encoded.size), op)
    assert found is not None
    assert reason in found
    data = encoded.to_bytes()
    for parts in [(data,), (data, data)]:
        with pytest.raises(InvalidRequestError, match=re.escape(found)):
            combine_bytes(encoded.layout, op, parts)


@given(st.lists(st.integers(0, 3000), max_size=20))
def test_any_cut_gives_the_same_tree(cuts: list[int]) -> None:
    """Leaves of odd sizes, cut where bytes happen to arrive: ranges end where no element is cut in two."""
    tree = [np.arange(101.0), np.arange(7, dtype="i2"), np.arange(250, dtype="c8"), np.arange(3, dtype="u1")]
    encoded = values.encode(tree)
    data = np.frombuffer(encoded.to_bytes(), np.uint8)
    kernel = Kernel(encoded.layout, Operation.SUM)
    out = np.zeros(encoded.size, np.uint8)
    done = 0
    for cut in [*sorted(min(cut, encoded.size) for cut in cuts), encoded.size]:
        end = kernel.floor(cut)
        assert done <= end <= cut
        kernel.combine(out, data, data, done, end)
        done = end
    assert done == encoded.size
    for leaf, result in zip(tree, values.decode(memoryview(out.tobytes()), encoded.layout), strict=True):
        assert np.array_equal(result, leaf + leaf)


@pytest.mark.parametrize("offset", [0, 64, 832, 896, 1024])
def test_a_piece_of_a_tree(offset: int) -> None:
    """A stripe begins anywhere at a multiple of the alignment, in the middle of a leaf too."""
    tree = [np.arange(101.0), np.arange(7, dtype="i2"), np.arange(250, dtype="c8")]
    encoded = values.encode(tree)
    data = np.frombuffer(encoded.to_bytes(), np.uint8)
    whole, piece = np.zeros(encoded.size, np.uint8), np.zeros(encoded.size - offset, np.uint8)
    Kernel(encoded.layout, Operation.SUM).combine(whole, data, data, 0, encoded.size)
    kernel = Kernel(encoded.layout, Operation.SUM, offset)
    middle = kernel.floor(len(piece) // 2)
    kernel.combine(piece, data[offset:], data[offset:], 0, middle)
    kernel.combine(piece, data[offset:], data[offset:], middle, len(piece))
    assert np.array_equal(piece, whole[offset:])


@pytest.mark.parametrize("name", EXTENSIONS)
def test_types_of_ml_dtypes(name: str) -> None:
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    arrays = [np.array([0.5, 1, 1, 1]).astype(dtype) for _ in range(3)]
    for op in (Operation.SUM, Operation.PROD, Operation.MIN, Operation.MAX):
        assert combine(op, arrays).tobytes() == reduce(UFUNCS[op], arrays).tobytes()
    layout = values.encode(arrays[0]).layout
    if EXTENSIONS[name] != "f":
        assert problem(decode_layout(layout, 4), Operation.MEAN) == f"the mean of {name} values is not {name}" + INTEGER
        return
    sums = combine(Operation.MEAN, arrays)
    mean = combine(Operation.MEAN, arrays, 3)
    expected = (sums.astype(np.float32) / 3).astype(dtype)
    assert mean.tobytes() == expected.tobytes(), "3 has no place in some of these types"


def test_numbers_are_combined_as_one_array() -> None:
    encoded = values.encode({"b": [1.0, 2.0, 3.0], "a": 4.0, "c": 5})
    kernel = Kernel(encoded.layout, Operation.SUM)
    data = np.frombuffer(encoded.to_bytes(), np.uint8)
    out = np.zeros(encoded.size, np.uint8)
    assert kernel.floor(29) == 24
    kernel.combine(out, data, data, 0, 24)
    kernel.combine(out, data, data, 24, encoded.size)
    result = values.decode(memoryview(out.tobytes()), encoded.layout)
    assert result == {"b": [2.0, 4.0, 6.0], "a": 8.0, "c": 10}
    assert list(result) == ["b", "a", "c"]


def test_sums_of_integers_overflow_as_those_of_numpy() -> None:
    assert combine(Operation.SUM, [np.array([200], "u1"), np.array([100], "u1")]) == [44]


def test_the_leaf_that_cannot_be_combined_is_named() -> None:
    encoded = values.encode({"w": np.arange(3.0), "steps": [1.5, 3]})
    found = problem(decode_layout(encoded.layout, encoded.size), Operation.MEAN)
    assert found == f"the mean of int64 values is not int64{INTEGER} at ['steps'][1]"
