"""What a value is after its journey."""

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

import hoplite_ucx as hoplite
from hoplite_ucx.errors import InvalidRequestError
from tests.first_hour.findings import finding
from tests.tools.peaks import growth_of_put

_SECONDS = 60
"""Ends a hang; nothing here takes a second."""


class Weights(NamedTuple):
    w: Any
    b: Any


def _cluster() -> Any:
    return hoplite.connect(memory=64 << 20)


def _refused(call: Any, *given: Any, **named: Any) -> str:
    """The text of the refusal."""
    try:
        result = call(*given, **named)
    except InvalidRequestError as error:
        return str(error)
    raise AssertionError(f"not refused: {result!r}")


def _reduced(cluster: Any, *values: Any) -> Any:
    return cluster.get(cluster.reduce([cluster.put(value) for value in values]), timeout=_SECONDS)


@finding("3", "zip(a.items(), b.values()) after put and get, and after reduce")
def order_of_keys() -> str:
    value = {"weights": np.ones(3), "bias": np.ones(2), "a": {3: 1.0, "x": 2.0, 1: 3.0}}
    with _cluster() as cluster:
        for result in (cluster.get(cluster.put(value)), _reduced(cluster, value, value)):
            assert list(result) == list(value), list(result)
            assert list(result["a"]) == list(value["a"]), list(result["a"])
    return "keys keep their order"


@finding("10a", 'create(b"x" * 10**6)')
def bytes_as_a_shape() -> str:
    with _cluster() as cluster:
        assert "not the bytes" in _refused(cluster.create, b"x" * 10**6)
        assert "dimensions" in _refused(cluster.create, [2] * 10**6)
        assert "larger than" in _refused(cluster.create, (1 << 40, 1 << 40))
    return "InvalidRequestError at once"


@finding("11a", "reduce of an OrderedDict, a named tuple, Python and numpy numbers")
def kinds_of_values() -> str:
    value = OrderedDict(z=Weights(np.ones(3), 2.5), a=[3, np.float32(1)])
    with _cluster() as cluster:
        result = _reduced(cluster, value, value, value)
        assert _reduced(cluster, 3, 4) == 7
    assert repr(result) == repr(OrderedDict(z=Weights(np.full(3, 3.0), 7.5), a=[9, np.float32(3)]))
    return "they are reduced, and come back as what they were"


@finding("11b", "reduce of float8 and int4 arrays of ml_dtypes")
def narrow_types() -> str:
    import ml_dtypes

    with _cluster() as cluster:
        for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4):
            result = _reduced(cluster, np.ones(3, dtype), np.ones(3, dtype))
            assert result.dtype == dtype
            assert result.tolist() == [2, 2, 2]
    return "they are reduced in their own dtype"


@finding("11c", "reduce of trees with a text in them, or with other shapes")
def errors_of_reduce() -> str:
    with _cluster() as cluster:
        texts = {"w": np.ones(3), "optimizer": ["adam"]}
        found = _refused(_reduced, cluster, texts, texts)
        assert "a str at ['optimizer'][0]" in found, found
        shapes = [{"w": np.ones(shape, "f4")} for shape in [(3, 4), (4, 3)]]
        found = _refused(_reduced, cluster, *shapes)
        assert "float32[3, 4] and float32[4, 3] at ['w']" in found, found
    return "errors name the leaf, its dtype and its shape"


@finding("12", "put of large bytes, and what it takes in memory")
def memory_of_bytes() -> str:
    size = 64 << 20
    growth = growth_of_put("bytes", size)
    assert growth < 1.5 * size, f"the process grows by {growth / size:.1f} × the size"
    return "the object itself, and nothing else"
