"""A stand-in for a torch that has CUDA: tensors on arrays of CuPy, with as much of torch as is used of it.

Torch's own wheels without CUDA make no tensors on devices, and those with it do not start on a made-up driver. Names
and meanings are torch's; bytes really lie on the device, and work really runs on its streams.
"""

import types
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np


@dataclass(frozen=True)
class Dtype:
    name: str
    itemsize: int

    def __str__(self) -> str:
        return f"torch.{self.name}"


_NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64")
DTYPES = {name: Dtype(name, np.dtype(name).itemsize) for name in _NAMES}
BFLOAT16 = Dtype("bfloat16", 2)


class Tensor:
    """On a device. The array has the dtype's size, if not its name."""

    layout = strided = object()
    is_quantized = is_nested = is_meta = is_cpu = requires_grad = False
    is_cuda = True
    grad_fn = None

    def __init__(self, array: Any, dtype: Dtype | None = None) -> None:
        self.array = array
        self.dtype = dtype or DTYPES[array.dtype.name]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def device(self) -> Any:
        return types.SimpleNamespace(type="cuda", index=self.array.device.id)

    @property
    def itemsize(self) -> int:
        return int(self.array.itemsize)

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    def numel(self) -> int:
        return int(self.array.size)

    def stride(self) -> tuple[int, ...]:
        if not self.array.size:  # of which CuPy says 0
            return tuple(
                int(np.prod([max(extent, 1) for extent in self.shape[axis + 1 :]])) for axis in range(len(self.shape))
            )
        return tuple(step // self.itemsize for step in self.array.strides)

    def storage_offset(self) -> int:
        return (self.data_ptr() - int(self.array.data.mem.ptr)) // self.itemsize

    def untyped_storage(self) -> Any:
        size = int(self.array.data.mem.size)
        return types.SimpleNamespace(nbytes=lambda: size)

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def data_ptr(self) -> int:
        return int(self.array.data.ptr)

    def contiguous(self) -> "Tensor":
        with self.array.device:
            return Tensor(cupy.ascontiguousarray(self.array), self.dtype)

    def detach(self) -> "Tensor":
        return Tensor(self.array, self.dtype)

    def view(self, dtype: Dtype) -> "Tensor":
        stored = np.dtype(np.int16) if dtype is BFLOAT16 else np.dtype(dtype.name)
        return Tensor(self.array.view(stored), dtype)

    def copy_(self, source: "Tensor") -> "Tensor":
        assert source.dtype is self.dtype
        with self.array.device:
            self.array[...] = source.array
        return self

    def numpy(self, *, force: bool) -> Any:
        assert force, "it is not on the host"
        return self.array.get()

    def is_set_to(self, other: "Tensor") -> bool:
        return (self.data_ptr(), self.shape, self.stride()) == (other.data_ptr(), other.shape, other.stride())

    def is_conj(self) -> bool:
        return False

    is_neg = is_inference = is_conj


class Parameter(Tensor):
    pass


def from_dlpack(array: Any) -> Tensor:
    """As torch does it: on the same memory, which is kept."""
    return Tensor(cupy.from_dlpack(array))


def _current_stream(device: Any = None) -> Any:
    number = getattr(device, "index", device)
    with cupy.cuda.Device(number) if number is not None else nullcontext():
        stream = cupy.cuda.get_current_stream()
    return types.SimpleNamespace(cuda_stream=stream.ptr, synchronize=stream.synchronize)


def module() -> types.ModuleType:
    """What takes the place of torch in `sys.modules`."""
    made: Any = types.ModuleType("torch")
    made.__version__ = "made up"
    made.Tensor, made.strided, made.bfloat16 = Tensor, Tensor.strided, BFLOAT16
    made.nn = types.SimpleNamespace(Parameter=Parameter)
    for name, dtype in DTYPES.items():
        setattr(made, name, dtype)
    made.from_dlpack, made.no_grad = from_dlpack, nullcontext
    made.is_inference_mode_enabled = lambda: False
    made.cuda = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, current_stream=_current_stream
    )
    return made
