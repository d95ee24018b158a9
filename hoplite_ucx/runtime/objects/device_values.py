"""Values whose arrays are on a GPU: where a put goes, the copy into a device's memory, and arrays on that memory.

Arrays are recognised by `__cuda_array_interface__`, which CuPy and torch have; neither is imported on the way in. On
the way out, CuPy makes arrays on a device's memory, and tensors are made of those.

Copies run on the caller's stream, behind whatever computes the array, and a piece counts as put only when its event is
done. Results are complete when they are returned: nobody has to wait for a stream of ours.
"""

import ctypes as c
import importlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu.arithmetic import array_on
from hoplite_ucx.gpu.copies import address, copy
from hoplite_ucx.gpu.driver import CudaError, UnavailableError
from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.runtime.objects import tensors
from hoplite_ucx.runtime.objects.layouts import Leaf

PIECE = 16 << 20
"""How much of an array is copied before receivers hear of it."""


def device_of(array: Any) -> int | None:
    """The number of the device that an array is on; None if it is on the host."""
    if isinstance(array, np.ndarray):
        return None
    if (on_device := getattr(array, "is_cuda", None)) is not None:  # torch's
        return int(array.device.index) if on_device else None
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        return None
    device = getattr(array, "device", None)
    number = getattr(device, "id", getattr(device, "index", None))
    return int(number) if number is not None else _device_at(interface["data"][0])


def is_array_type(kind: type) -> bool:
    """Whether values of this class are arrays of CuPy, and nothing more. CuPy is not imported."""
    return kind is getattr(sys.modules.get("cupy"), "ndarray", None)


def on_host(array: Any, stream: int | None) -> Any:
    """The array as one of NumPy: itself, or a copy of what is on a device, made when its stream has come so far."""
    if isinstance(array, np.ndarray):
        return array
    driver = cuda.load()
    with driver.current(array.device.id):
        driver.call("cuStreamSynchronize", _stream(array, stream))
    return array.get()


def placement_uuid(arrays: Iterable[Any]) -> bytes:
    device = placement(arrays)
    return b"" if device is None else cuda.load().uuid(device)


def fill(leaf: Leaf, memory: memoryview | Window, device: int, out: Any) -> None:
    """Fill an array of CuPy, or a tensor, of the leaf's dtype and shape on that device."""
    make = partial(array_from, leaf, memory, device)
    with importlib.import_module("cupy").cuda.Device(device):
        if tensors.is_tensor(type(out)):
            tensors.fill(out, tensors.on_device(leaf, lambda dtype: make(dtype=dtype)))
        else:
            out[...] = make()
        cuda.load().call("cuStreamSynchronize", _stream(out, None))


def placement(arrays: Iterable[Any]) -> int | None:
    """The device on which a value is stored best: the one that has most of it, if that is half of its bytes or more."""
    sizes: Counter[int | None] = Counter()
    on_host = 0
    for array in arrays:
        if isinstance(array, np.ndarray) or getattr(array, "is_cpu", False):
            on_host += array.nbytes
        elif hasattr(array, "nbytes"):
            sizes[device_of(array)] += array.nbytes
    sizes[None] += on_host
    on_devices = {device: size for device, size in sizes.items() if device is not None and size}
    if not on_devices or 2 * sum(on_devices.values()) < sizes.total():
        return None
    return max(on_devices, key=lambda device: on_devices[device])


def copy_into(pieces: Iterable[tuple[Leaf, Any]], memory: Window, stream: int | None = None) -> Iterator[int]:
    """Copy arrays to a device, on their streams or on this one; yields how many leading bytes are final."""
    driver = cuda.load()
    for leaf, array in pieces:
        place = memory[leaf.offset : leaf.offset + leaf.nbytes()]
        there = device_of(array)
        if there is not None and not driver.reaches(there, memory.device):
            array, there = on_host(array, stream), None
        with driver.current(memory.device if there is None else there):  # a default stream is that of its device
            source = _in_order(leaf, array)
            if there is None:
                copy(place, source.reshape(-1, order="A").view(np.uint8).data)
                yield leaf.offset + place.nbytes
            else:
                yield from _copy_on_stream(driver, place, _pointer(source), leaf.offset, _stream(source, stream))


def _copy_on_stream(driver: cuda.Driver, place: Window, pointer: int, offset: int, stream: int) -> Iterator[int]:
    ends: list[tuple[int, int]] = []
    try:
        for start in range(0, place.nbytes, PIECE):
            size = min(PIECE, place.nbytes - start)
            driver.call("cuMemcpyAsync", place.pointer + start, pointer + start, size, stream)
            event = driver.value(c.c_void_p, "cuEventCreate", cuda.NO_TIMING)
            driver.call("cuEventRecord", event, stream)
            ends.append((event, offset + start + size))
        for event, end in ends:
            driver.call("cuEventSynchronize", event)
            yield end
    finally:
        for event, _ in ends:
            driver.call("cuEventDestroy_v2", event)


def array_from(
    leaf: Leaf, memory: memoryview | Window, device: int, *, own: bool = False, dtype: np.dtype[Any] | None = None
) -> Any:
    """An array of CuPy on a device: on the memory itself if that is there, else on its own, which is filled. Its dtype
    may be another one of the same size."""
    cupy = importlib.import_module("cupy")
    dtype, order = dtype or leaf.numpy_dtype(), "F" if leaf.fortran else "C"
    with cupy.cuda.Device(device):
        if isinstance(memory, Window) and memory.device == device and not own and 0 not in leaf.shape:
            return array_on(memory, leaf.shape, dtype, leaf.offset, order)
        array = cupy.empty(leaf.shape, dtype, order)
        if array.nbytes:
            source = memory[leaf.offset : leaf.offset + array.nbytes]
            driver = cuda.load()
            stream = cupy.cuda.get_current_stream().ptr
            driver.call("cuMemcpyAsync", array.data.ptr, address(source), array.nbytes, stream)
            driver.call("cuStreamSynchronize", stream)
        return array


def zeros_on(device: int, leaf: Leaf) -> Any:
    """A fresh array of CuPy. Raises an `InvalidRequestError` if there is no such device, or no CuPy."""
    check_device(device)
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        detail = f"device= needs CuPy, which cannot be imported here ({error})"
        raise _invalid(detail, "pip install 'hoplite-ucx[gpu]'") from error
    with cupy.cuda.Device(device):
        return cupy.zeros(leaf.shape, leaf.numpy_dtype())


def visible_devices() -> dict[bytes, int]:
    """The devices of this process, by UUID. Raises an `InvalidRequestError` that says why there are none."""
    try:
        driver = cuda.load()
        return {driver.uuid(number): number for number in range(driver.count)}
    except (UnavailableError, CudaError) as error:
        raise _invalid(f"there is no GPU here: {error}", "leave device= out, or run where there is one") from error


def check_device(device: object) -> bytes:
    """The UUID of a device that a user names by its number. Raises an `InvalidRequestError`."""
    if isinstance(device, bool) or not isinstance(device, int):
        raise TypeError(f"device is the number of a CUDA device, not {device!r}")
    uuids = visible_devices()
    for uuid, number in uuids.items():
        if number == device:
            return uuid
    raise _invalid(f"there is no device {device} here", f"this process sees the devices 0 to {len(uuids) - 1}")


def devices_for(device: int) -> tuple[bytes, ...]:
    """The wanted device, and all others of this process whose memory it can read."""
    wanted = check_device(device)
    driver = cuda.load()
    others = visible_devices().items()
    return wanted, *(uuid for uuid, number in others if uuid != wanted and driver.reaches(device, number))


def _in_order(leaf: Leaf, array: Any) -> Any:
    """The array with its bytes one behind the other, as the leaf has them."""
    if isinstance(array, np.ndarray):
        return np.asarray(array, order="F" if leaf.fortran else "C")
    if leaf.fortran:
        return array
    if hasattr(array, "data_ptr"):
        return array.contiguous()
    if array.__cuda_array_interface__.get("strides") is None:
        return array
    return importlib.import_module("cupy").ascontiguousarray(array)


def _stream(array: Any, given: int | None) -> int:
    """That on which the array is computed, as far as its library tells."""
    if given is not None:
        return given
    if hasattr(array, "data_ptr"):
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
    return int(array.__cuda_array_interface__.get("stream") or 0)


def current_stream() -> int | None:
    """What this thread computes on, unless it is the default stream: a put on another thread has to know."""
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    if cupy is not None and cupy.cuda.is_available() and (pointer := cupy.cuda.get_current_stream().ptr):
        return int(pointer)
    if torch is not None and torch.cuda.is_initialized() and (pointer := torch.cuda.current_stream().cuda_stream):
        return int(pointer)
    return None


def _pointer(array: Any) -> int:
    """Torch has its own way to tell, also of what its interface for others does not know, as bfloat16."""
    return int(array.data_ptr() if hasattr(array, "data_ptr") else array.__cuda_array_interface__["data"][0])


def _device_at(pointer: int) -> int:
    number = c.c_int()
    ordinal = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    cuda.load().call("cuPointerGetAttribute", c.byref(number), ordinal, pointer)
    return number.value


def _invalid(detail: str, remedy: str) -> HopliteError:
    return Failure(FailureKind.INVALID, detail, remedy).exception()
