"""Arrays of CuPy, which are always on a device: their bytes on the host, and arrays on a device made of them.

CuPy is imported here only to make an array. Its errors have classes of their own for each library of CUDA's.
"""

import importlib
from typing import Any

from hoplite_ucx.runtime.objects import device_values
from hoplite_ucx.runtime.objects.layouts import Array
from hoplite_ucx.runtime.objects.unfit import UnfitError

_ON_HOST = 'use like="numpy"'


is_cupy = device_values.is_array_type


def on_host(array: Any, stream: int | None) -> Array:
    """A copy, made when its stream, or this one, has come so far."""
    try:
        host: Array = device_values.on_host(array, stream)
    except Exception as error:  # the driver's, the runtime's or CuPy's own
        what = f"a CuPy array whose device cannot be read ({error})"
        raise UnfitError(what, "look at the device: what is on it may be lost") from error
    return host


def on_device(array: Array) -> Any:
    """A copy on the current device."""
    try:
        cupy: Any = importlib.import_module("cupy")
    except Exception as error:  # a broken one may raise anything
        what = f"a CuPy array, and CuPy cannot be imported here ({error})"
        raise UnfitError(what, f"install hoplite-ucx[gpu], or {_ON_HOST}") from error
    try:
        return cupy.asarray(array)
    except Exception as error:  # as above
        what = f"a CuPy array, and no device here takes it ({error})"
        raise UnfitError(what, f"look at the device and its driver, or {_ON_HOST}") from error
