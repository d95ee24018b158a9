"""Combining bytes: every operation and dtype against numpy on whole arrays, on any cut into ranges."""

import re
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ucx.protocol.errors import InvalidRequestError
from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime import values
from hoplite_ucx.runtime.kernels import Kernel, combine_bytes, problem
from hoplite_ucx.runtime.layout import decode_layout

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


def test_bfloat16_sums() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = [array.astype(ml_dtypes.bfloat16) for array in sources("f4")]
    assert combine(Operation.SUM, arrays).tobytes() == reduce(np.add, arrays).tobytes()
    mean = combine(Operation.MEAN, arrays, 4)
    np.testing.assert_allclose(mean.astype("f4"), np.mean([array.astype("f4") for array in arrays], axis=0), rtol=0.02)


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
        (np.arange(3), Operation.MEAN, "the mean of int64"),
        (np.zeros(3, "m8[s]"), Operation.MEAN, "mean is not defined"),
        (np.zeros(3, bool), Operation.SUM, "use 'or' and 'and'"),
        (np.zeros(3, "U4"), Operation.MAX, "not defined"),
        (np.zeros(3, "M8[s]"), Operation.SUM, "not defined"),
        (np.zeros(3, [("a", "f4")]), Operation.SUM, "not defined"),
        ("a text", Operation.SUM, "must be arrays"),
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
