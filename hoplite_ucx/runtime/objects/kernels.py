"""How bytes are combined: one kernel per layout and operation, on any range of whole elements.

Arithmetic is numpy's, in the dtype of the sources, so a result has the layout of its sources. A mean is
combined as a sum: slots nest, and only the slot that makes the whole sum divides it.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.objects.layouts import (
    EXTENSIONS,
    Layout,
    MissingTypeError,
    decode_layout,
    kind_of,
    leaves_of,
    unreadable,
)
from hoplite_ucx.runtime.objects.trees import ONLY_THESE, at, irreducible, path_of

Bytes = npt.NDArray[np.uint8]

_UFUNCS: dict[Operation, np.ufunc] = {
    Operation.SUM: np.add,
    Operation.MEAN: np.add,
    Operation.PROD: np.multiply,
    Operation.MIN: np.minimum,
    Operation.MAX: np.maximum,
    Operation.AND: np.bitwise_and,
    Operation.OR: np.bitwise_or,
    Operation.XOR: np.bitwise_xor,
}


def ufunc_name(op: Operation) -> str:
    """Also that of the same function in CuPy."""
    return _UFUNCS[op].__name__


_COUNTING = (Operation.SUM, Operation.MEAN, Operation.PROD)
_INTEGERS = "biu"


def problem(layout: Layout, op: Operation) -> str | None:
    """Why objects of this layout cannot be combined with this operation, or None."""
    what = irreducible(layout)
    if what is not None:
        return f"{what} cannot be reduced ({ONLY_THESE})"
    fine = set()
    for number, leaf in enumerate(leaves_of(layout)):
        dtype = leaf.numpy_dtype()
        if dtype in fine:
            continue
        reason = _reason(dtype, op)
        if reason is not None:
            where = at(path_of(layout, number))
            return f"{reason}{where}"
        fine.add(dtype)
    return None


def _reason(dtype: np.dtype[Any], op: Operation) -> str | None:
    kind = kind_of(dtype)
    if op is Operation.MEAN and kind in _INTEGERS:
        return f"the mean of {dtype.name} values is not {dtype.name} (sum them, or put floating-point numbers)"
    if op in _COUNTING and kind == "b":
        return f"the {op.value} of bools is not a bool (use 'or' and 'and', or put integers)"
    if kind in "USO" or not _defined(op, dtype):
        return f"{op.value} is not defined for {dtype.name}"
    return None


def _defined(op: Operation, dtype: np.dtype[Any]) -> bool:
    none = np.empty(0, dtype)
    try:
        _UFUNCS[op](none, none, out=none)
        if op is Operation.MEAN:
            _divide(none, 1)
    except (TypeError, np.exceptions.DTypePromotionError):
        return False
    return True


def _divide(array: npt.NDArray[Any], divisor: int) -> None:
    """In place, and in the array's own dtype, unless that is too narrow for the divisor."""
    if array.dtype.name in EXTENSIONS:
        array[...] = (array.astype(np.float32) / np.float32(divisor)).astype(array.dtype)
    else:
        np.divide(array, np.asarray(divisor).astype(array.dtype), out=array)


_ANY_SIZE = 1 << 62
_REMEDY = "reduce arrays for which the operation is defined"


class Kernel:
    """Combines ranges of an object, or of a piece of one that begins at `offset`. If the operation is not defined,
    `failure` says why, and nothing may be combined."""

    ready = True
    """Whether it can be used now. One on a device must be compiled first."""

    def __init__(self, layout: bytes, op: Operation, offset: int = 0) -> None:
        self._ufunc: Callable[..., Any] = _UFUNCS[op]
        self._runs: list[tuple[int, int, np.dtype[Any]]] = []
        self.failure: Failure | None = None
        try:
            decoded = decode_layout(layout, _ANY_SIZE)
            detail = problem(decoded, op)
            if detail is not None:
                raise Failure(FailureKind.INVALID, detail, _REMEDY).exception()
        except HopliteError as error:
            self.failure = error.failure
        except MissingTypeError as error:
            self.failure = unreadable(error).failure
        else:
            leaves = sorted(leaves_of(decoded), key=lambda leaf: leaf.offset)
            for leaf in leaves:
                start, length, dtype = leaf.offset - offset, leaf.nbytes(), leaf.numpy_dtype()
                if self._runs and self._runs[-1][1:] == (
                    start,
                    dtype,
                ):  # numbers side by side are combined as one array
                    self._runs[-1] = (self._runs[-1][0], start + length, dtype)
                elif length:
                    self._runs.append((start, start + length, dtype))
        self._starts = [start for start, _, _ in self._runs]

    def floor(self, position: int) -> int:
        """The last position at or before `position` that is between two elements."""
        index = bisect_right(self._starts, position) - 1
        if index < 0:
            return position
        start, end, dtype = self._runs[index]
        return position if position >= end else start + (position - start) // dtype.itemsize * dtype.itemsize

    def combine(self, out: Bytes, left: Bytes, right: Bytes, start: int, end: int, shift: int = 0) -> None:
        """out = left op right between two positions that split no element. `right` lies `shift` bytes lower in its
        array."""
        assert self.failure is None
        for low, high, dtype in self._between(start, end):
            into = out[low:high].view(dtype)
            # Where a side lies in the output already, it is the same memory: one view serves for both.
            first = into if left is out else left[low:high].view(dtype)
            second = into if right is out and not shift else right[low - shift : high - shift].view(dtype)
            self._ufunc(first, second, out=into)

    def divide(self, out: Bytes, start: int, end: int, divisor: int) -> None:
        """Turn sums into means, in place, between two positions that split no element."""
        assert self.failure is None
        for low, high, dtype in self._between(start, end):
            _divide(out[low:high].view(dtype), divisor)

    def settle(self) -> None:
        """Wait until what was combined is there for others. On the host it always is."""

    def _between(self, start: int, end: int) -> Sequence[tuple[int, int, np.dtype[Any]]]:
        """The arrays, or pieces of them, in that range."""
        index = max(0, bisect_right(self._starts, start) - 1)
        if index < len(self._runs):
            low, high, dtype = self._runs[index]
            if low <= start and end <= high:  # nearly always
                return ((start, end, dtype),) if start < end else ()
        pieces = []
        for low, high, dtype in self._runs[index:]:
            if low >= end:
                break
            low, high = max(low, start), min(high, end)
            if low < high:
                pieces.append((low, high, dtype))
        return pieces


def combine_bytes(layout: bytes, op: Operation, parts: tuple[bytes, ...], divisor: int = 0) -> bytes:
    """Combine small objects, in order, and divide the result unless `divisor` is 0. Raises if the operation is not
    defined."""
    size = len(parts[0])
    kernel = Kernel(layout, op)
    if kernel.failure is not None:
        raise kernel.failure.exception()
    first, *others = [np.frombuffer(part, np.uint8) for part in parts]
    out = first.copy()
    with np.errstate(all="ignore"):
        for other in others:
            kernel.combine(out, out, other, 0, size)
        if divisor:
            kernel.divide(out, 0, size, divisor)
    return out.tobytes()
