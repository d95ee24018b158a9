"""What measured objects hold, so that every byte that arrives can be compared.

An object is made from a seed; every place of it has another value, and sums of objects are exact in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "fill", "matches"]

Array = npt.NDArray[np.float32]

_BLOCK = 1 << 20
_PATTERN: Array = np.arange(_BLOCK, dtype=np.float32) % 1021


def fill(array: Array, seeds: Sequence[int]) -> None:
    """The sum of the objects of these seeds."""
    for start, expected in _blocks(len(array), seeds):
        array[start : start + len(expected)] = expected


def matches(array: Array, seeds: Sequence[int]) -> bool:
    return all(
        np.array_equal(array[start : start + len(expected)], expected) for start, expected in _blocks(len(array), seeds)
    )


def _blocks(count: int, seeds: Sequence[int]) -> Iterator[tuple[int, Array]]:
    multiple = _PATTERN * np.float32(len(seeds))
    for number, start in enumerate(range(0, count, _BLOCK)):
        added = np.float32(sum(seeds) + len(seeds) * (number % 7))
        yield start, multiple[: count - start] + added
