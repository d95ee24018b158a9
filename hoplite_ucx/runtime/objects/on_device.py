"""Values on a device, as `get(device=...)` returns them: arrays of CuPy, tensors of torch, or the user's own filled."""

from functools import partial
from typing import Any

from msgspec.structs import replace

from hoplite_ucx.gpu import copies
from hoplite_ucx.gpu.driver import CudaError
from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.runtime.objects import device_values, filling, tensors, values
from hoplite_ucx.runtime.objects.filling import Progress
from hoplite_ucx.runtime.objects.layouts import (
    ARRAYS,
    ArrayLayout,
    BundleLayout,
    Kind,
    Leaf,
    MissingTypeError,
    TreeLayout,
    decode_layout,
    unreadable,
)
from hoplite_ucx.runtime.objects.trees import at, path_of
from hoplite_ucx.runtime.objects.unfit import UnfitError, invalid


def decode_on(
    memory: memoryview | Window, layout: bytes, device: int, *, copy: bool = False, like: Kind | None = None
) -> Any:
    """The value with its arrays on a device, copied or not; numbers and bytes in it are as they were. What was pickled
    is on the host. `like` says which library's arrays they are to be, if not that of those that were put."""
    found = decode_layout(layout, len(memory))
    try:
        if isinstance(found, BundleLayout):
            return values.decode(_on_host(memory), layout)
        return _on_device(found, partial(_restored, memory=memory, device=device, own=copy, like=like))
    except CudaError as error:
        raise _lost(error) from error
    except ImportError as error:
        detail = f"device= needs CuPy, which cannot be imported here ({error})"
        raise invalid(detail, "pip install 'hoplite-ucx[gpu]'") from error


def check_targets(out: object, device: int) -> None:
    """Raises if something that is to be filled is not on the device."""
    for path, target in filling.targets(out):
        there = device_values.device_of(target)
        if there != device:
            where = "the host" if there is None else f"device {there}"
            detail = f"{path} is on {where}, and the object is wanted on device {device}"
            raise invalid(detail, "give arrays of that device, or get it without device=")


def fill_on(
    memory: memoryview | Window, layout: bytes, device: int, out: object, progress: Progress | None = None
) -> None:
    """Fill the user's arrays of a device. If they are not of the object's form, nothing is written."""

    def copy(leaf: Leaf, target: Any) -> None:
        try:
            device_values.fill(leaf, memory, device, target)
        except CudaError as error:
            raise _lost(error) from error

    filling.fill_by(copy, layout, len(memory), out, progress)


def _on_device(layout: ArrayLayout | TreeLayout, restore: Any) -> Any:
    leaves: list[Any] = []
    try:
        if isinstance(layout, ArrayLayout):
            return restore(layout.leaf)
        for leaf in layout.leaves:
            leaves.append(restore(leaf))  # noqa: PERF401, for errors say at which leaf
        return values.build(layout.structure, leaves)
    except UnfitError as error:
        where = at(path_of(layout, len(leaves)))
        raise invalid(f"the object has {error}{where}", error.remedy) from error
    except MissingTypeError as error:
        raise unreadable(error) from error


def _restored(leaf: Leaf, *, memory: memoryview | Window, device: int, own: bool, like: Kind | None) -> Any:
    if leaf.kind not in ARRAYS:
        part = _on_host(memory[leaf.offset : leaf.offset + leaf.nbytes()])
        return values.restored(replace(leaf, offset=0), part)
    make = partial(device_values.array_from, leaf, memory, device, own=own)
    return tensors.on_device(leaf, lambda dtype: make(dtype=dtype)) if (like or leaf.kind) is Kind.TORCH else make()


def _on_host(memory: memoryview | Window) -> memoryview:
    if isinstance(memory, memoryview):
        return memory
    copied = memoryview(bytearray(memory.nbytes))
    copies.copy(copied, memory)
    return copied


def _lost(error: CudaError) -> HopliteError:
    detail = f"the GPU could not be used: {error}"
    return Failure(FailureKind.LOST, detail, "get it without device=; look at nvidia-smi").exception()
