"""Tensors of torch: their bytes as arrays of numpy, tensors on memory, in pickles, and filled in place.

Torch is imported here only to make a tensor: a value that is one shows that it is loaded. Dense tensors of dtypes that
numpy or ml_dtypes has are stored as their elements, in C order; gradients, hooks and attributes are not stored, so what
comes back is a plain tensor, as a state_dict has it. Sparse, quantized and nested tensors, and subclasses, are left to
torch's own pickling. ml_dtypes is not needed: where numpy has no dtype, an integer of the same size stands for it.

Tensors cannot be read-only: they are made on memory that is their user's to write to (see `transports.shm.writable`).
"""

import importlib
import pickle
import sys
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from hoplite_ucx.runtime.objects.layouts import EXTENSIONS, Array, Kind, Leaf, dtype_name
from hoplite_ucx.runtime.objects.unfit import UnfitError
from hoplite_ucx.transports.shm import writable

_SAME_AS_NUMPY = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_NOT_IN_NUMPY = tuple(name for name in EXTENSIONS if name.startswith(("bfloat16", "float8")))
_TENSOR = Kind.TORCH
_IN_BAND = 512
"""Tensors up to this many bytes are a part of the pickle that they are in."""


class _Dtypes:
    """Of the torch that is loaded, in its words and in ours."""

    def __init__(self, torch: ModuleType) -> None:
        self.stored: dict[Any, tuple[str, Any]] = {}
        """By dtype: its description, and the dtype that stands for it if numpy has none."""
        self.made: dict[str, tuple[np.dtype[Any], Any]] = {}
        """By a leaf's description: numpy's dtype, and torch's if numpy's only stands for it."""
        for name in _SAME_AS_NUMPY:
            if hasattr(torch, name):  # some came with later versions
                self.stored[getattr(torch, name)] = (np.dtype(name).str, None)
                self.made[np.dtype(name).str] = (np.dtype(name), None)
        for name in _NOT_IN_NUMPY:
            dtype = getattr(torch, name, None)
            if dtype is not None:
                self.stored[dtype] = (name, torch.int16 if dtype.itemsize == 2 else torch.uint8)
                self.made[name] = (np.dtype(np.int16 if dtype.itemsize == 2 else np.uint8), dtype)


_dtypes_of = lru_cache(1)(_Dtypes)


def is_tensor(kind: type) -> bool:
    """Whether values of this class are tensors and nothing more."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "nn") and kind in (torch.Tensor, torch.nn.Parameter)


def found(tensor: Any) -> tuple[Any, Kind, str] | None:
    """As `leaves.as_leaf`: None, if it is not dense."""
    torch = sys.modules["torch"]
    dtype, on_host = _dtypes_of(torch).stored.get(tensor.dtype), tensor.is_cpu
    if tensor.layout is not torch.strided or tensor.is_nested or (dtype is None and tensor.is_quantized):
        return None
    if not on_host and tensor.is_meta:
        raise _without_data()
    if dtype is None:
        what = f"a tensor of {tensor.dtype}, which nobody else knows and torch itself cannot pickle,"
        raise UnfitError(what, "put another view of it, such as view(torch.uint8)")
    try:
        _check_memory(tensor)
    except RuntimeError as error:  # inside of vmap, for example, there are tensors without memory
        raise UnfitError(f"a tensor that cannot be read ({error})", "put a plain tensor") from error
    return tensor if on_host else tensor.detach(), _TENSOR, dtype[0]


def on_host(tensor: Any) -> Array:
    """As an array of numpy, whose dtype may be another of the same size: on the tensor's own memory, if it can be."""
    stand_in = _dtypes_of(sys.modules["torch"]).stored[tensor.dtype][1]
    try:
        plain = tensor if stand_in is None else tensor.detach().view(stand_in)
        array: Array = plain.numpy(force=True)
    except RuntimeError as error:
        raise UnfitError(f"a tensor that cannot be read ({error})", "look at its device") from error
    return array


def address(tensor: Any) -> int:
    """Where its bytes lie as they are stored; 0 if they do not, or are on a device."""
    plain = tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()
    return int(tensor.data_ptr()) if plain else 0


def _without_data() -> UnfitError:
    return UnfitError("a meta tensor, which has no data,", "give it data first, with to_empty(device=...) for example")


def _check_memory(tensor: Any) -> None:
    """Numpy would read beyond the end."""
    count = tensor.numel()
    if not count:
        return
    if not tensor.is_contiguous():
        count = 1 + sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
    if (tensor.storage_offset() + count) * tensor.itemsize > tensor.untyped_storage().nbytes():
        what = f"a tensor of {list(tensor.shape)} whose memory was freed"
        raise UnfitError(what, "put it before its storage is resized, or gather its shards first")


def are_tied(one: Any, other: Any) -> bool:
    """Whether two tensors are the same elements in the same memory."""
    return bool(
        one.dtype is other.dtype
        and one.is_set_to(other)
        and one.is_conj() == other.is_conj()
        and one.is_neg() == other.is_neg()
    )


def on_memory(leaf: Leaf, memory: memoryview, copy: bool = False) -> Any:
    """A leaf as a tensor, on this memory, which is to be writable, or on its own. Raises `UnfitError`."""
    torch = _imported()
    dtype, meant = _made(torch, leaf)
    if 0 in leaf.shape:
        array = np.empty(leaf.shape, dtype)
    else:
        array = np.ndarray(leaf.shape, dtype, memory, leaf.offset, None, "F" if leaf.fortran else "C")
        if copy:
            array = array.copy("K")
    tensor = torch.from_numpy(array)
    return tensor if meant is None else tensor.view(meant)


def on_device(leaf: Leaf, array: Callable[[np.dtype[Any]], Any]) -> Any:
    """A leaf as a tensor on a device. `array` makes one of CuPy with that dtype, on whose memory it lies. Raises
    `UnfitError`."""
    torch = _imported()
    dtype, meant = _made(torch, leaf)
    if not torch.cuda.is_available():
        what = f"a tensor, and torch {torch.__version__} has no CUDA here"
        raise UnfitError(what, 'install a torch that has CUDA, or use like="cupy"')
    tensor = torch.from_dlpack(array(dtype))
    return tensor if meant is None else tensor.view(meant)


def _made(torch: Any, leaf: Leaf) -> tuple[np.dtype[Any], Any]:
    """Numpy's dtype for a tensor's memory, and torch's if numpy's only stands for it."""
    known = _dtypes_of(torch).made.get(leaf.dtype) if isinstance(leaf.dtype, str) else None
    if known is None:
        raise UnfitError(f"{dtype_name(leaf.dtype)}, which torch {torch.__version__} does not have", 'use like="numpy"')
    return known


def description(dtype: Any) -> str | None:
    """Of a dtype of torch, as leaves have it; None if it is torch's alone."""
    known = _dtypes_of(sys.modules["torch"]).stored.get(dtype)
    return None if known is None else known[0]


def check_fillable(tensor: Any) -> None:
    """Raises `UnfitError` for a tensor that cannot be written to in place."""
    torch = sys.modules["torch"]
    if tensor.is_meta:
        raise _without_data()
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise UnfitError("a tensor that is not dense", "give a dense one")
    if any(not step and extent > 1 for extent, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise UnfitError("an expanded tensor, whose elements share memory", "give its contiguous()")
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise UnfitError("a tensor made in inference mode", "call get within torch.inference_mode() too")
    _check_memory(tensor)


def fill(tensor: Any, source: Any) -> None:
    """In place, also if it is on a device or requires gradients; what torch knows of its versions stays right."""
    with sys.modules["torch"].no_grad():
        tensor.copy_(source)


def _imported() -> Any:
    try:
        return importlib.import_module("torch")
    except Exception as error:  # a broken one may raise anything
        what = f"a tensor, and torch cannot be imported here ({error})"
        raise UnfitError(what, 'install torch, or use like="numpy"') from error


# --- in pickles -------------------------------------------------------------------------------------------------


def pickled_by() -> dict[type, Callable[[Any], Any]]:
    """How tensors inside of pickled values are reduced, for a pickler's dispatch table; nothing if there are none.
    Parameters are not named: torch takes them apart into a tensor and what makes it a parameter."""
    torch = sys.modules.get("torch")
    return {} if torch is None or not hasattr(torch, "Tensor") else {torch.Tensor: _reduce}


def _reduce(tensor: Any) -> Any:
    """With its bytes beside the pickle, where torch would copy them into it."""
    plain = not tensor.__dict__ and not tensor._backward_hooks and tensor.device.type == "cpu"
    as_leaf = found(tensor) if plain else None
    if as_leaf is None:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    array: Any = np.ascontiguousarray(on_host(tensor))
    # Of the array itself: with a memoryview in between, Python 3.11.2 crashed when its collector came to clear them.
    data = array.tobytes() if array.nbytes <= _IN_BAND else pickle.PickleBuffer(array.reshape(-1).view(np.uint8))
    return restore, (data, as_leaf[2], tuple(tensor.shape), tensor.requires_grad)


def restore(data: bytes | memoryview, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    """A tensor from a pickle."""
    return on_memory(Leaf(dtype, shape), writable(memoryview(data))).requires_grad_(requires_grad)
