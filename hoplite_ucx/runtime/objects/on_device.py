"""Values on a device, as `get(device=...)` returns them: arrays of CuPy, or the user's own arrays filled."""

from typing import Any

from msgspec.structs import replace

from hoplite_ucx.gpu import copies
from hoplite_ucx.gpu.driver import CudaError
from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.runtime.objects import device_values, values
from hoplite_ucx.runtime.objects.layouts import ARRAYS, ArrayLayout, BundleLayout, Leaf, decode_layout


def decode_on(memory: memoryview | Window, layout: bytes, device: int, *, copy: bool = False) -> Any:
    """The value with its arrays on a device, copied or not; numbers and bytes in it are as they were. What was pickled
    is on the host."""
    found = decode_layout(layout, len(memory))
    try:
        if isinstance(found, BundleLayout):
            return values.decode(_on_host(memory), layout)
        if isinstance(found, ArrayLayout):
            return _restored(found.leaf, memory, device, copy)
        return values.build(found.structure, [_restored(leaf, memory, device, copy) for leaf in found.leaves])
    except CudaError as error:
        raise _lost(error) from error
    except ImportError as error:
        detail = f"device= needs CuPy, which cannot be imported here ({error})"
        raise _failure(FailureKind.INVALID, detail, "pip install 'hoplite-ucx[gpu]'") from error


def fill_on(memory: memoryview | Window, layout: bytes, device: int, out: Any) -> None:
    """Fill the user's array of a device; it must match the object."""
    found = decode_layout(layout, len(memory))
    if not isinstance(found, ArrayLayout):
        detail = f"out= takes one array, and the object is {found}"
        raise _failure(FailureKind.INVALID, detail, "get it without out=")
    leaf, there = found.leaf, device_values.device_of(out)
    if there != device:
        where = "the host" if there is None else f"device {there}"
        detail = f"out is on {where}, and the object is wanted on device {device}"
        raise _failure(FailureKind.INVALID, detail, "give an array of that device")
    try:
        device_values.fill(leaf, memory, out)
    except CudaError as error:
        raise _lost(error) from error


def _restored(leaf: Leaf, memory: memoryview | Window, device: int, own: bool) -> Any:
    if leaf.kind in ARRAYS:
        return device_values.array_from(leaf, memory, device, own=own)
    part = _on_host(memory[leaf.offset : leaf.offset + leaf.nbytes()])
    return values.restored(replace(leaf, offset=0), part)


def _on_host(memory: memoryview | Window) -> memoryview:
    if isinstance(memory, memoryview):
        return memory
    copied = memoryview(bytearray(memory.nbytes))
    copies.copy(copied, memory)
    return copied


def _lost(error: CudaError) -> HopliteError:
    detail = f"the GPU could not be used: {error}"
    return _failure(FailureKind.LOST, detail, "get it without device=; look at nvidia-smi")


def _failure(kind: FailureKind, detail: str, remedy: str) -> HopliteError:
    return Failure(kind, detail, remedy).exception()
