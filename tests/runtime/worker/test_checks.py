"""What `create` is asked for is refused at once if no array can be made of it."""

import time
from typing import Any

import numpy as np
import pytest

from hoplite_ucx.errors import InvalidRequestError
from hoplite_ucx.runtime.worker.checks import check_array, check_count


class _Raising:
    @property
    def dtype(self) -> None:
        raise ZeroDivisionError


BAD_SHAPES: dict[str, Any] = {
    "bytes": b"x" * 10**6,
    "few bytes": b"\1\2",
    "bytearray": bytearray(10),
    "memoryview": memoryview(b"abc"),
    "text": "12",
    "many dimensions": [2] * 10**6,
    "more dimensions than can be counted": range(1 << 60),
    "many dimensions in an array": np.ones(10**6, int),
    "a matrix": np.ones((2, 2), int),
    "an array without dimensions": np.array(3),
    "an array of floats": np.ones(3),
    "huge": 1 << 62,
    "huger": 10**5000,
    "a huge product": (1 << 40, 1 << 40),
    "a huge product that is empty": (1 << 61, 0, 1 << 61),
    "negative": (3, -1),
    "nested": [[1, 2], [3]],
    "None": None,
    "a set": {1, 2},
    "a generator": (extent for extent in (1, 2)),
    "bools": (True, 2),
    "floats": (2.0,),
}


@pytest.mark.parametrize("shape", BAD_SHAPES.values(), ids=BAD_SHAPES)
def test_what_is_not_a_shape(shape: Any) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidRequestError) as caught:
        check_array(shape, np.float64)
    assert time.monotonic() - started < 10, "a product of a million extents takes minutes"
    assert len(str(caught.value)) < 300


BAD_DTYPES: dict[str, Any] = {
    "a name": "nonsense",
    "bytes": b"x" * 10**6,
    "objects": object,
    "a syntax error": "f8,,",
    "no size": "V0",
    "no fields": [],
    "many fields": "f8," * 10**5,
    "one that raises": _Raising(),
    "a number": 3,
    "a list of junk": [("a",)],
}


@pytest.mark.parametrize("dtype", BAD_DTYPES.values(), ids=BAD_DTYPES)
def test_what_is_not_a_dtype(dtype: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_array(3, dtype)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("shape", [3, (), [], (2, 3), [np.int32(2), 3], range(1, 4), np.array([2, 3]), (0, 5)])
def test_shapes(shape: Any) -> None:
    assert check_array(shape, "f4").shape == np.empty(shape).shape


@pytest.mark.parametrize("what", ["refs", "sources"])
def test_an_empty_list_is_named_and_not_a_count_that_nobody_gave(what: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"the list of {what} is empty"):
        check_count(0, 0, what)
