"""Arithmetic on a device with CuPy: what NumPy's ufuncs do on the host, under the same names, on arrays of bytes.

Kernels run on the calling thread's current stream, and nothing waits for them: `settle` does. CuPy compiles a kernel
when it is first used, which takes a second and must happen where nobody waits: `prepare` does it ahead.
"""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from hoplite_ucx.gpu.segments import Window

_WORKS_IN_FLOAT32 = ("bfloat16",)
"""Dtypes that divide as float32, as they do on the host."""


class Arithmetic:
    """One operation, by the name of NumPy's ufunc, on one device."""

    def __init__(self, device: int, ufunc: str) -> None:
        import cupy

        self._cupy = cupy
        self.device = device
        self._ufunc = getattr(cupy, ufunc)

    def prepare(self, dtypes: Iterable[np.dtype[Any]], *, divides: bool) -> None:
        """Have the kernels compiled."""
        with self._cupy.cuda.Device(self.device):
            for dtype in set(dtypes):
                some = self._cupy.ones(8, dtype)
                self.apply(some, some, some)
                if divides:
                    self.divide(some, 2)
            self.settle()

    def apply(self, left: Any, right: Any, out: Any) -> None:
        self._ufunc(left, right, out=out)

    def divide(self, array: Any, divisor: int) -> None:
        """In place, to the bits that NumPy's division gives."""
        dtype = array.dtype
        if dtype.name in _WORKS_IN_FLOAT32:
            array[...] = (array.astype(np.float32) / np.float32(divisor)).astype(dtype)
        elif dtype.kind == "c":
            # NumPy divides by a real divisor as it multiplies by its reciprocal.
            parts = array.view(np.dtype(f"f{dtype.itemsize // 2}"))
            self._cupy.multiply(parts, parts.dtype.type(1) / parts.dtype.type(divisor), out=parts)
        else:
            self._cupy.true_divide(array, dtype.type(divisor), out=array)

    def settle(self) -> None:
        """Wait until what this thread asked for is done."""
        self._cupy.cuda.get_current_stream().synchronize()


def supported(dtype: np.dtype[Any]) -> bool:
    """Whether CuPy has arithmetic for a dtype, without importing CuPy. What is not defined for it on the host is not
    defined on a device either."""
    return dtype.isnative and (dtype.char in "?bBhHiIlLqQefdFD" or dtype.name in _WORKS_IN_FLOAT32)


@functools.cache
def defined(ufunc: str, dtype: np.dtype[Any], *, divides: bool = False) -> bool:
    """Whether CuPy has this operation for a dtype, with that same dtype as its result; if not, the host combines."""
    import cupy

    if not dtype.isnative or (dtype.kind == "V" and dtype.name not in _WORKS_IN_FLOAT32):
        return False
    loop = f"{dtype.char}{dtype.char}->{dtype.char}"
    return loop in getattr(cupy, ufunc).types and not (divides and dtype.kind in "biu")


def bytes_on(window: Window) -> Any:
    """The bytes of a window as an array of CuPy, which keeps the mapping alive."""
    return array_on(window, (window.nbytes,), np.dtype(np.uint8))


def array_on(window: Window, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int = 0, order: str = "C") -> Any:
    """An array of CuPy on a window's memory. CuPy has no read-only arrays: who writes to one loses its context."""
    import cupy

    memory = cupy.cuda.UnownedMemory(window.pointer, window.nbytes, window.mapping, window.device)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, offset), order=order)
