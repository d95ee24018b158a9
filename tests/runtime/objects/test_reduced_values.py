"""Values of every kind through real processes: reduced by agents that know nothing of what they looked like."""

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest

from hoplite_ucx.errors import InvalidRequestError
from hoplite_ucx.protocol.messages import Operation
from tests.tools.live import Live
from tests.tools.peaks import growth_of_put

SIZES = [3, 1 << 20]
"""Of arrays: those of the first are combined in the directory's messages, the others in slots."""


class State(NamedTuple):
    step: int
    weights: Any


@pytest.mark.parametrize("everywhere", [False, True], ids=["reduce", "allreduce"])
@pytest.mark.parametrize("size", SIZES)
def test_a_result_looks_like_its_first_contributor(live: Live, size: int, everywhere: bool) -> None:
    a, b, c = live.hosts
    weights = np.arange(size, dtype=np.float32)
    first = a.put({"z": weights, "loss": 0.5, "a": State(3, [weights, np.float32(1)])})
    second = b.put(OrderedDict(a=State(4, [weights, np.float32(2)]), z=weights, loss=0.25))
    target = c.reduce([first, second], everywhere=everywhere)
    result = c.get(target)
    looks = {first: (dict, ["z", "loss", "a"]), second: (OrderedDict, ["a", "z", "loss"])}
    assert (type(result), list(result)) == looks[c.contributors(target)[0]]
    assert (type(result["loss"]), result["loss"]) == (float, 0.75)
    assert type(result["a"]) is State
    assert (type(result["a"].step), result["a"].step) == (int, 7)
    assert np.array_equal(result["z"], 2 * weights)
    assert np.array_equal(result["a"].weights[0], 2 * weights)
    assert result["a"].weights[1] == np.float32(3)


def test_numbers_by_themselves(live: Live) -> None:
    a, b, c = live.hosts
    assert c.get(c.reduce([a.put(2), b.put(3)])) == 5
    assert c.get(c.reduce([a.put(2.0), b.put(4.0)], Operation.MEAN)) == 3.0
    assert c.get(c.reduce([a.put(np.uint8(200)), b.put(np.uint8(100))])) == np.uint8(44), "as numpy has it"


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "int4", "bfloat16"])
def test_types_of_ml_dtypes(live: Live, name: str) -> None:
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    a, b, c = live.hosts
    for size in SIZES:
        result = c.get(c.reduce([a.put(np.ones(size, dtype)), b.put(np.full(size, 2, dtype))]))
        assert result.dtype == dtype
        assert (result == np.full(size, 3, dtype)).all()


@pytest.mark.parametrize("size", SIZES)
def test_errors_name_the_leaf(live: Live, size: int) -> None:
    a, b, c = live.hosts
    wide, tall = np.zeros((4, size), "f4"), np.zeros((size, 4), "f4")
    with pytest.raises(InvalidRequestError) as caught:
        c.get(c.reduce([a.put({"w": wide}), b.put({"w": tall})]))
    texts = (f"float32[4, {size}]", f"float32[{size}, 4]")
    assert any(f"{one} and {other} at ['w']" in str(caught.value) for one, other in (texts, texts[::-1]))
    with pytest.raises(InvalidRequestError, match=r"a str at \['optimizer'\]\[0\] cannot be reduced"):
        c.get(c.reduce([host.put({"w": wide, "optimizer": ["adam"]}) for host in (a, b)]))
    with pytest.raises(InvalidRequestError, match="bytes cannot be reduced"):
        c.get(c.reduce([host.put(bytes(size)) for host in (a, b)]))


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "memoryview"])
def test_a_put_of_bytes_takes_no_memory_but_the_object(kind: str) -> None:
    size = 128 << 20
    assert growth_of_put(kind, size) < 1.5 * size, "a pickle would be another copy at least"


@pytest.mark.parametrize("size", [0, 10, 1 << 20])
def test_bytes(live: Live, size: int) -> None:
    a, b, _ = live.hosts
    for value in (bytes(size), bytearray(size)):
        result = b.get(a.put(value))
        assert type(result) is type(value)
        assert result == value
    view = b.get(a.put(memoryview(bytes(size))))
    assert isinstance(view, memoryview)
    assert view.readonly
    assert view == bytes(size)
