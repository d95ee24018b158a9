"""Leaves of users' values: which values are arrays or bytes, and what they are stored as.

Arrays of other libraries are recognised without importing one: whoever has a tensor has loaded torch. Their bytes are
read where they lie, through an array of numpy; what lies on a device comes to the host when it is copied, not before.
"""

import array
import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from hoplite_ucx.runtime.objects import cupy_arrays, tensors
from hoplite_ucx.runtime.objects.layouts import Array, Kind, describe_dtype, dtype_of, kind_of

Found: TypeAlias = tuple[Any, Kind, Any]
"""An array, of numpy or of another library; what the value was; and the description of the dtype."""

_SCALAR_KINDS = "biufcmM"
_BYTE = np.dtype(np.uint8).str
_CDATA: type = ctypes.Structure.__mro__[1]
_CARRY_MORE = (np.ndarray, np.generic, bytes, bytearray, memoryview, array.array, _CDATA)
"""Of these the buffer is not all: subclasses have attributes, and structures of ctypes have types."""


def as_leaf(value: object) -> Found | None:
    """A value as an array, without a copy; None if it is something else, numbers of Python included. Raises
    `UnfitError` for an array that has no bytes."""
    kind: Any = type(value)
    look = _way_to_look(kind)
    return None if look is None else look(value)


def on_host(found: Any, stream: int | None) -> Array:
    """The array of a leaf as one of numpy, which may have another dtype of the same size; on its own memory, or a copy
    if that is on a device, made when its stream has come so far. Raises `UnfitError`."""
    if isinstance(found, np.ndarray):
        return found
    return tensors.on_host(found) if tensors.is_tensor(type(found)) else cupy_arrays.on_host(found, stream)


@lru_cache(256)
def _way_to_look(kind: type) -> Callable[[Any], Found | None] | None:
    """At values of this class; None if they are not arrays."""
    if issubclass(kind, np.ndarray):
        return _of_numpy
    if issubclass(kind, np.generic):
        return _of_scalar
    if kind in (bytes, bytearray):
        return _of_bytes
    if kind is memoryview:
        return _of_view
    if issubclass(kind, dict | list | tuple | str | int | float | complex | type(None)):
        return None
    if tensors.is_tensor(kind):
        return tensors.found
    if cupy_arrays.is_cupy(kind):
        return _of_cupy
    if kind is array.array:
        return _of_python_array
    if issubclass(kind, ctypes.Array):
        return _of_buffer
    if issubclass(kind, _CARRY_MORE) or any(map(tensors.is_tensor, kind.__mro__)):
        return None
    return _of_dlpack if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__") else _of_buffer


def _of_numpy(value: Array) -> Found | None:
    return _of_array(value, Kind.ARRAY)


def _of_scalar(value: np.generic) -> Found | None:
    plain = kind_of(value.dtype) in _SCALAR_KINDS and type(value) is value.dtype.type
    return (np.asarray(value), Kind.SCALAR, describe_dtype(value.dtype)) if plain else None


def _of_bytes(value: bytes | bytearray) -> Found | None:
    return np.frombuffer(value, np.uint8), Kind.BYTES if type(value) is bytes else Kind.BYTEARRAY, _BYTE


def _of_view(value: memoryview) -> Found | None:
    try:
        found = np.asarray(value)
    except (ValueError, TypeError, NotImplementedError):
        return None
    same = (found.shape, found.itemsize) == (value.shape, value.itemsize)  # else numpy knows no such format
    return _of_array(found, Kind.MEMORYVIEW) if same and _native(found.data.format) == _native(value.format) else None


_LONGER = str.maketrans("lL", "qQ") if np.dtype("l").itemsize == np.dtype("q").itemsize else {}


_NATIVE_ORDER = "@<" if sys.byteorder == "little" else "@>"


def _native(form: str) -> str:
    """The format of a memoryview, without what makes no difference."""
    return form.lstrip(_NATIVE_ORDER).translate(_LONGER)


def _of_python_array(value: "array.array[Any]") -> Found | None:
    found = _of_view(memoryview(value)) if value.typecode not in "uw" else None
    return None if found is None else (found[0], Kind.PYTHON_ARRAY, found[2])


def _of_cupy(value: Any) -> Found | None:
    """It stays where it is until it is copied into the store. It comes back as what its user asks for: an array of
    numpy can be made everywhere, one on a device cannot."""
    try:
        return value, Kind.ARRAY, describe_dtype(value.dtype)
    except ValueError:
        return None


def _of_dlpack(value: Any) -> Found | None:
    """Of a library that is not known by name: it comes back as an array of numpy."""
    try:
        on_host = value.__dlpack_device__()[0] == _HOST
        found = np.from_dlpack(value) if on_host else None
    except Exception:  # a library's own: the value is pickled, or that says why it cannot be
        return None
    return None if found is None else _of_array(found, Kind.ARRAY)


_HOST = 1
"""As DLPack numbers devices."""


def _of_buffer(value: Any) -> Found | None:
    try:
        return _of_view(memoryview(value))
    except (TypeError, ValueError, BufferError):
        return None


def _of_array(value: Array, kind: Kind) -> Found | None:
    if type(value) not in (np.ndarray, np.memmap):
        return None  # subclasses carry more than their bytes
    dtype = value.dtype
    try:
        description = describe_dtype(dtype)
    except ValueError:
        return None
    # Dtypes that are equal for numpy can still differ in this:
    plain = dtype.metadata is None and (dtype.fields is None or repr(dtype_of(description)) == repr(dtype))
    return (value, kind, description) if plain else None
